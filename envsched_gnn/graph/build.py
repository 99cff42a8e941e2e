"""The dual-relation graph as `torch_geometric.data.HeteroData`.

Knows: the stores of a graph, how to fill them from tensors and from a pool.
Does not know: how a vector is derived from a task (features), who is a neighbour (neighbors), files (io).

`graph["task"]`: `env_index`, `home_index`, `record_index`, `position`, `members`, `identity` [tasks] int64; `held_out` [tasks] bool;
`reward_low`, `reward_high` [tasks] float64; `member_offset`, `within_offset` [environments + 1] int64; `within_similarity` flat float32;
`cross_vectors` [records, d] float64. Where the graph has an embedding model: `embedding` [tasks, e] and `record_embedding` [records, e]
float32, rows of length 1, or 0 where a task or record has no text.
`graph`: `task_ids`, `env_ids`, `pool_hash`, `feature_config`, `within_k`, `cross_k`, `embedding_model` (name and digest; empty: none).

`env_index` is the environment that a task counts for: in quotas, coverage and the within relation. `home_index` is the one that executes it
and stands in its identity. They differ in a shuffled pool alone (`pool/shuffle.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import sparse
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import GraphConfig
from envsched_gnn.errors import GraphError
from envsched_gnn.features.abstract import AbstractRecord
from envsched_gnn.features.build import Features, Report, SimilarityKind, build_features
from envsched_gnn.features.embed import DEFAULT_MODEL, Encoder, model_folder
from envsched_gnn.graph.similarity import quantise
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.shuffle import shown_rows

MAX_ENVIRONMENT_TASKS = 20_000
"""Tasks an environment may hold: its block is dense, 1.6 GB at this size (ours)."""

DEFAULTS = GraphConfig()

Vectors: TypeAlias = Tensor | sparse.csr_matrix
"""One row a task."""


def build_graph(
    pool: Pool,
    *,
    within_neighbors: int = DEFAULTS.within_neighbors,
    cross_neighbors: int = DEFAULTS.cross_neighbors,
    similarity: SimilarityKind = DEFAULTS.similarity,
    embedding: str = DEFAULTS.embedding,
    embedding_batch: int = DEFAULTS.embedding_batch,
    device: str = "auto",
    records: Mapping[str, AbstractRecord] | None = None,
    progress: bool = False,
) -> HeteroData:
    """The graph of a pool: static, deterministic, nothing executed, no rollout needed.

    `similarity` is `tfidf` (paper), `dense` or `both` (ours). `embedding` names a sentence-transformers model or its folder; with a model
    the graph holds embeddings whatever the similarity. Empty: `embed.DEFAULT_MODEL` if the similarity needs one, else none. The model runs
    on `device`, `embedding_batch` texts at a time. `records` (task key -> record, from `features.llm`) replace the statically derived ones.
    `progress` draws bars on stderr.

    Raises:
        GraphError: an environment has more than MAX_ENVIRONMENT_TASKS tasks, or the pool holds no text to embed.
        ConfigError: the embedding model is not there, or sentence-transformers is not.
        PoolError: a shuffled pool lacks a task that another one shows itself as.
    """
    _check_environment_sizes([e.env_id for e in pool.environments], _pool_sizes(pool))
    model = embedding or ("" if similarity == "tfidf" else DEFAULT_MODEL)
    encoder = Encoder(model=model, batch_size=embedding_batch, device=device) if model else None
    if model:
        model_folder(model)  # one that is not there is told before minutes of work
    with _bars(progress) as report:
        features = build_features(pool, records=records, similarity=similarity, encoder=encoder, report=report)
        return _graph_of(pool, features, within_neighbors, cross_neighbors, report)


def _graph_of(pool: Pool, features: Features, within_k: int, cross_k: int, report: Report) -> HeteroData:
    ranges = torch.tensor(pool.reward_ranges, dtype=torch.float64)
    shown = shown_rows(pool)
    embedded = features.embedded
    similarity = features.config["similarity"]
    blocks: list[Vectors] = [] if similarity == "dense" else [features.within[shown]]
    if embedded and similarity != "tfidf":
        blocks.append(torch.from_numpy(embedded.tasks[shown]))
    return assemble_graph(
        env_ids=[environment.env_id for environment in pool.environments],
        env_index=torch.from_numpy(pool.env_index[shown]),
        home_index=torch.from_numpy(pool.env_index.copy()),
        task_ids=[task.task_id for task in pool.tasks],
        within_vectors=blocks,
        cross_vectors=torch.from_numpy(features.cross_vectors),
        record_index=torch.from_numpy(features.record_index[shown]),
        held_out=torch.tensor([task.held_out for task in pool.tasks]),
        reward_low=ranges[:, 0],
        reward_high=ranges[:, 1],
        pool_hash=pool.content_hash,
        feature_config=features.config,
        within_k=within_k,
        cross_k=cross_k,
        embedding=torch.from_numpy(embedded.tasks[shown]) if embedded else None,
        record_embedding=torch.from_numpy(embedded.records) if embedded else None,
        embedding_model=embedded.model if embedded else "",
        report=report,
    )


@contextmanager
def _bars(progress: bool) -> Iterator[Report]:
    """A bar a stage on stderr, or nothing."""
    if not progress:
        yield lambda stage, share: None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    stages: dict[str, TaskID] = {}
    with Progress(console=Console(stderr=True)) as bars:

        def report(stage: str, share: float) -> None:
            """Move the bar of a stage; it appears with its first report."""
            if stage not in stages:
                stages[stage] = bars.add_task(f"graph: {stage}", total=1.0)
            bars.update(stages[stage], completed=share)

        yield report


def _pool_sizes(pool: Pool) -> Int[Tensor, " offsets"]:
    return _offsets(torch.bincount(torch.from_numpy(pool.env_index.copy()), minlength=len(pool.environments)))


def assemble_graph(
    *,
    env_ids: Sequence[str],
    env_index: Int[Tensor, " tasks"],
    home_index: Int[Tensor, " tasks"] | None = None,
    task_ids: Sequence[str],
    within_vectors: Vectors | Sequence[Vectors] | None = None,
    within_blocks: Sequence[Float[Tensor, "n n"]] | None = None,
    cross_vectors: Float[Tensor, "records d"],
    record_index: Int[Tensor, " tasks"],
    held_out: Bool[Tensor, " tasks"] | None = None,
    reward_low: Float[Tensor, " tasks"] | None = None,
    reward_high: Float[Tensor, " tasks"] | None = None,
    pool_hash: str = "",
    feature_config: Mapping[str, Any] | None = None,
    within_k: int = 6,
    cross_k: int = 12,
    embedding: Float[Tensor, "tasks e"] | None = None,
    record_embedding: Float[Tensor, "records e"] | None = None,
    embedding_model: str = "",
    report: Report = lambda stage, share: None,
) -> HeteroData:
    """A graph from tensors alone: what `build_graph` ends with, and what tests and benchmarks use without a pool.

    Give either `within_vectors` (unit vectors a task, dense or CSR; several are joined as blocks of one) or `within_blocks` (one [n, n]
    matrix an environment, its tasks in pool order; `env_ids` order; [0, 0] where it has none). Rewards default to [0, 1], `held_out` to
    none, `home_index` to `env_index`. Embeddings come with the name of their model.

    Raises:
        GraphError: sizes disagree, or an environment has more than MAX_ENVIRONMENT_TASKS tasks.
    """
    tasks, environments = env_index.numel(), len(env_ids)
    _check_sizes(tasks, environments, env_index, task_ids, cross_vectors, record_index)
    members = torch.argsort(env_index, stable=True)
    member_offset = _offsets(torch.bincount(env_index, minlength=environments))
    _check_environment_sizes(env_ids, member_offset)
    gram = _given_blocks(within_blocks, member_offset) if within_blocks is not None else _products(within_vectors, tasks)
    flat, within_offset = within_blocks_of(members, member_offset, gram, report)

    graph = HeteroData()
    store = graph["task"]
    store.num_nodes = tasks
    store.env_index = env_index.to(torch.int64)
    store.home_index = store.env_index if home_index is None else home_index.to(torch.int64)
    store.record_index = record_index.to(torch.int64)
    store.cross_vectors = cross_vectors.to(torch.float64).contiguous()
    store.within_similarity, store.within_offset = flat, within_offset
    store.members, store.member_offset = members, member_offset
    store.position = torch.empty_like(members).scatter_(0, members, torch.arange(tasks) - member_offset[store.env_index[members]])
    store.held_out = torch.zeros(tasks, dtype=torch.bool) if held_out is None else held_out.to(torch.bool)
    store.reward_low = torch.zeros(tasks, dtype=torch.float64) if reward_low is None else reward_low.to(torch.float64)
    store.reward_high = torch.ones(tasks, dtype=torch.float64) if reward_high is None else reward_high.to(torch.float64)
    store.identity = identities([f"{env_ids[e]}/{task}" for e, task in zip(store.home_index.tolist(), task_ids, strict=True)])
    clear_edges(graph)
    graph.task_ids, graph.env_ids = list(task_ids), list(env_ids)
    graph.pool_hash, graph.feature_config = pool_hash, dict(feature_config or {})
    graph.within_k, graph.cross_k = int(within_k), int(cross_k)
    graph.embedding_model = embedding_model
    if embedding is not None and record_embedding is not None:
        store.embedding, store.record_embedding = embedding.to(torch.float32), record_embedding.to(torch.float32)
    flaw = embedding_flaw(store) if embedding_model else ""
    if flaw or (not embedding_model and embedding is not None):
        raise GraphError(f"embeddings of model {embedding_model!r}: {flaw or 'no model named'}. Give both tensors and the model's name.")
    return graph


def embedding_flaw(stores: Mapping[str, Tensor]) -> str:
    """What is wrong with the embeddings of a graph; empty if nothing is."""
    if "embedding" not in stores or "record_embedding" not in stores:
        return "`embedding` or `record_embedding` is missing"
    tasks, records = stores["embedding"], stores["record_embedding"]
    expected = [(len(stores["record_index"]), tasks.shape[-1]), (len(stores["cross_vectors"]), tasks.shape[-1])]
    if [tuple(tasks.shape), tuple(records.shape)] != expected:
        return f"embeddings of shapes {tuple(tasks.shape)} and {tuple(records.shape)}; expected {expected[0]} and {expected[1]}"
    if not all(bool(torch.isfinite(vectors).all()) for vectors in (tasks, records)):
        return "an embedding is not finite"
    return ""


def clear_edges(graph: HeteroData) -> None:
    """Both relations without edges: neighbours depend on what was observed, so a saved graph has none."""
    for relation in ("within", "cross"):
        edges = graph["task", relation, "task"]
        edges.edge_index = torch.empty(2, 0, dtype=torch.int64)
        edges.edge_weight = torch.empty(0, dtype=torch.float32)


def identities(keys: Sequence[str]) -> Int[Tensor, " tasks"]:
    """First 8 bytes of sha256 of each key `env_id/task_id`, as a signed int64: the same in every process and for every order."""
    digests = (hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8] for key in keys)
    return torch.tensor([int.from_bytes(digest, "big", signed=True) for digest in digests], dtype=torch.int64)


def within_blocks_of(
    members: Int[Tensor, " tasks"], member_offset: Int[Tensor, " offsets"], gram: Callable[[Tensor], Tensor], report: Report
) -> tuple[Float[Tensor, " flat"], Int[Tensor, " offsets"]]:
    """Dense s_within of every environment, flat in environment order, 0 on the diagonal; and where each block starts.

    `gram(rows)` gives the [n, n] float64 inner products of an environment's rows. float32 on the grid.
    """
    sizes = member_offset.diff()
    offset = _offsets(sizes * sizes)
    flat = torch.zeros(int(offset[-1]), dtype=torch.float32)
    for env in torch.nonzero(sizes > 1).flatten().tolist():
        rows = members[member_offset[env] : member_offset[env + 1]]
        flat[offset[env] : offset[env + 1]] = quantise(gram(rows)).fill_diagonal_(0.0).flatten()
        if env % 64 == 0:
            report("similarities", (env + 1) / len(sizes))
    report("similarities", 1.0)
    return flat, offset


def _offsets(sizes: Int[Tensor, " n"]) -> Int[Tensor, " n+1"]:
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])


def _products(vectors: Vectors | Sequence[Vectors] | None, tasks: int) -> Callable[[Tensor], Tensor]:
    """Inner products of an environment's rows, in float64.

    Several blocks b of unit rows are joined, normalised again: <u_i, u_j> = sum_b <b_i, b_j> / sqrt(p_i p_j), p = blocks present in a row.
    """
    blocks = vectors if isinstance(vectors, Sequence) else [vectors] if vectors is not None else []
    if not blocks:
        raise GraphError("assemble_graph: neither within_vectors nor within_blocks. Give one of them.")
    for block in blocks:
        if block.shape[0] != tasks:
            raise GraphError(f"within_vectors has {block.shape[0]} rows for {tasks} tasks. Give one row a task.")
    if len(blocks) == 1:
        return lambda rows: _gram(blocks[0], rows)
    scale = torch.stack([_present(block) for block in blocks]).sum(0).clamp(min=1).rsqrt()
    return lambda rows: torch.stack([_gram(block, rows) for block in blocks]).sum(0) * scale[rows, None] * scale[rows]


def _present(block: Vectors) -> Float[Tensor, " tasks"]:
    """1 for each row that is not empty, 0 for one that is."""
    rows = block.any(1) if isinstance(block, Tensor) else torch.from_numpy(np.diff(block.indptr) > 0)
    return rows.to(torch.float64)


def _gram(block: Vectors, rows: Int[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Inner products of some rows. A sparse product costs as much as its columns: only those in use are kept."""
    if isinstance(block, Tensor):
        dense = block[rows].to(torch.float64)
        return dense @ dense.T
    part = block[rows.numpy()]
    used, columns = np.unique(part.indices, return_inverse=True)
    part = sparse.csr_matrix((part.data, columns, part.indptr), shape=(len(rows), len(used)))
    return torch.from_numpy((part @ part.T).toarray())


def _given_blocks(blocks: Sequence[Tensor], member_offset: Tensor) -> Callable[[Tensor], Tensor]:
    sizes = member_offset.diff().tolist()
    if [tuple(block.shape) for block in blocks] != [(n, n) for n in sizes]:
        raise GraphError(f"within_blocks: shapes {[tuple(b.shape) for b in blocks][:5]}; expected squares of sizes {sizes[:5]}.")
    pending = iter([block for block, n in zip(blocks, sizes, strict=True) if n > 1])
    return lambda rows: next(pending).to(torch.float64)


def _check_sizes(
    tasks: int, environments: int, env_index: Tensor, task_ids: Sequence[str], cross_vectors: Tensor, record_index: Tensor
) -> None:
    if tasks == 0:
        raise GraphError("a graph needs at least one task; the pool has none.")
    if len(task_ids) != tasks or record_index.numel() != tasks:
        raise GraphError(
            f"{tasks} environment rows, {len(task_ids)} task ids and {record_index.numel()} record rows; expected equal numbers."
        )
    if not 0 <= int(env_index.min()) <= int(env_index.max()) < environments:
        raise GraphError(
            f"env_index runs from {int(env_index.min())} to {int(env_index.max())}; expected rows of {environments} environments."
        )
    if not 0 <= int(record_index.min()) <= int(record_index.max()) < len(cross_vectors):
        raise GraphError(f"record_index runs up to {int(record_index.max())}; expected rows of {len(cross_vectors)} cross vectors.")


def _check_environment_sizes(env_ids: Sequence[str], member_offset: Tensor) -> None:
    sizes = member_offset.diff()
    largest = int(sizes.argmax())
    if int(sizes[largest]) > MAX_ENVIRONMENT_TASKS:
        raise GraphError(
            f"environment {env_ids[largest]!r} has {int(sizes[largest])} tasks; "
            f"at most {MAX_ENVIRONMENT_TASKS} fit its dense similarity block. "
            "Split the environment into several (for example by task source) or drop tasks."
        )
