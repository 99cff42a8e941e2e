"""The graph that a configuration asks for, and the dense twin of a graph.

Knows: which settings ask for embeddings, where graphs are kept between runs.
Does not know: how a graph is built.
"""

from __future__ import annotations

import hashlib

from torch_geometric.data import HeteroData

from envsched_gnn.config import Config
from envsched_gnn.errors import GraphError
from envsched_gnn.features.embed import DEFAULT_MODEL, model_identity
from envsched_gnn.files import cache_folder
from envsched_gnn.graph.build import assemble_graph, build_graph
from envsched_gnn.graph.io import load_graph, save_graph
from envsched_gnn.pool.pool import Pool


def embedding_asked(config: Config) -> str:
    """The model whose embeddings a configuration needs, as the user names it; empty where it needs none."""
    needed = config.graph.similarity != "tfidf" or config.predict.predictor != "heuristic"
    return config.graph.embedding or (DEFAULT_MODEL if needed else "")


def configured_graph(pool: Pool, config: Config, *, progress: bool = False) -> HeteroData:
    """The graph of a pool that a configuration asks for; see `build_graph`."""
    return build_graph(
        pool,
        within_neighbors=config.graph.within_neighbors,
        cross_neighbors=config.graph.cross_neighbors,
        similarity=config.graph.similarity,
        embedding=embedding_asked(config),
        embedding_batch=config.graph.embedding_batch,
        device=config.run.device,
        progress=progress,
    )


def is_configured(graph: HeteroData, config: Config) -> bool:
    """Whether a graph has the similarity and the embeddings that a configuration asks for; one with embeddings besides does as well."""
    model = embedding_asked(config)
    return graph.feature_config.get("similarity", "tfidf") == config.graph.similarity and (
        not model or graph.embedding_model == model_identity(model)
    )


def kept_graph(pool: Pool, config: Config, *, progress: bool = False) -> HeteroData:
    """The same, built once for all runs on a pool and kept in the cache; the numbers of neighbours are those of `config`."""
    model = embedding_asked(config)
    kind = f"{config.graph.similarity} {model_identity(model)}" if model else ""
    name = pool.content_hash[:24] + (f"-{hashlib.sha256(kind.encode()).hexdigest()[:12]}" if kind else "")
    path = cache_folder() / "graphs" / f"{name}.pt"
    try:
        graph = load_graph(path)
    except (GraphError, OSError):
        graph = configured_graph(pool, config, progress=progress)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_graph(graph, path)
    graph.within_k, graph.cross_k = config.graph.within_neighbors, config.graph.cross_neighbors
    return graph


def dense_graph(graph: HeteroData) -> HeteroData:
    """The same tasks, compared by the embeddings that `graph` holds instead of its own similarities.

    Raises:
        GraphError: it holds none.
    """
    store = graph["task"]
    if not graph.embedding_model:
        raise GraphError(
            f"the graph of pool {graph.pool_hash[:12]} holds no embeddings; expected one built with them. "
            "Build it with `envsched graph build POOL --similarity dense`, or with --embedding to keep its own similarity beside them."
        )
    return assemble_graph(
        env_ids=graph.env_ids,
        env_index=store.env_index,
        home_index=store.home_index,
        task_ids=graph.task_ids,
        within_vectors=store.embedding,
        cross_vectors=store.record_embedding,
        record_index=store.record_index,
        held_out=store.held_out,
        reward_low=store.reward_low,
        reward_high=store.reward_high,
        pool_hash=graph.pool_hash,
        feature_config={**graph.feature_config, "similarity": "dense"},
        within_k=graph.within_k,
        cross_k=graph.cross_k,
        embedding=store.embedding,
        record_embedding=store.record_embedding,
        embedding_model=graph.embedding_model,
    )
