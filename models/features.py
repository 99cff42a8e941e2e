"""What the learned network is told: numbers about a task, about what it shows beside others, and about its observed neighbours.

Knows: the columns of every input, in order; that all of them come from the groups of earlier steps alone.
Does not know: weights of the network, targets, which tasks are picked.

`SOURCE` columns describe any observed task; they are also what a neighbour is known by. `CONTEXT` columns describe what surrounds a task
and what the heuristic makes of it. Estimates are differences from their reference, shrunk by W / (W + 1), so that 0 means "nothing known".
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.graph.neighbors import RELATIONS
from envsched_gnn.history import STATS
from envsched_gnn.ops import segment_sum
from envsched_gnn.records import Evidence, Prediction

WEIGHTS = ("weight_long", "weight_short", "weight_informative")
"""log(1 + W) under each half-life: together they tell how often and how long ago a task was seen."""
SOURCE = (*WEIGHTS, *(f"{stat}_long" for stat in STATS), *(f"{stat}_short" for stat in STATS), "informative")
"""A task's own statistics."""
PROBABILITIES = ("p_informative", "prior_within", "prior_cross", "prior_level", "informative_environment")
"""As log-odds: the mixture's p and what it is mixed from; last, the environment's share of informative groups, toward the level."""
CONTEXT = (
    *PROBABILITIES,
    *(f"{relation}_{stat}" for relation in (*RELATIONS, "environment") for stat in STATS),
    *("cross_weight", "environment_weight", "estimate_mean", "estimate_spread", "estimate_dispersion", "predicted_variance"),
)
"""What surrounds a task, and the heuristic's own answer."""
CONTENT = 32
"""Dimensions of a task's content: its embedding, or else its abstract record, projected (ours)."""
ODDS_CLIP = 0.005
"""Probabilities are clipped to [0.005, 0.995] before their log-odds are taken (ours)."""
VARIANCE_SCALE = 4.0
"""Variances of rewards in [0, 1] are at most 1/4."""


def log_odds(p: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`log(p / (1 - p))`, p clipped."""
    return torch.logit(p, ODDS_CLIP)


def source_inputs(evidence: Evidence, rows: Int[Tensor, " n"] | slice) -> Float[Tensor, "n source"]:
    """SOURCE columns of some tasks; float32."""
    w = torch.cat([evidence.weight[:, rows], evidence.informative_weight[None, rows]])
    known = w / (w + 1)
    scale = evidence.reference.new_tensor([VARIANCE_SCALE, 1.0, 1.0])[:, None]
    long, short = ((evidence.estimate[h][:, rows] - evidence.reference[h][:, None]).mul_(scale).mul_(known[h]) for h in range(2))
    z = (evidence.informative_estimate[rows] - evidence.informative_level) * known[2]
    return torch.cat([w.log1p(), long, short, z[None]]).T.to(torch.float32)


def context_inputs(graph: HeteroData, evidence: Evidence, heuristic: Prediction) -> Float[Tensor, "tasks context"]:
    """CONTEXT columns of every task; float32."""
    parts, reference = heuristic.parts, evidence.reference[0]
    environment, weight = environment_estimates(graph["task"].env_index, evidence)
    columns: dict[str, Tensor] = {"p_informative": heuristic.p_informative, "informative_environment": environment[3]}
    columns |= {name: parts[name] for name in PROBABILITIES[1:4]}
    columns = {name: log_odds(column) for name, column in columns.items()}
    for y, (stat, scale) in enumerate(zip(STATS, (VARIANCE_SCALE, 1.0, 1.0), strict=True)):
        columns |= {f"{relation}_{stat}": (parts[f"{relation}_{stat}"] - reference[y]) * scale for relation in RELATIONS}
        columns[f"environment_{stat}"] = (environment[y] - reference[y]) * scale
    mean = parts["estimate_mean"]
    columns |= {"cross_weight": parts["cross_weight"].log1p(), "environment_weight": weight.log1p(), "estimate_mean": mean}
    columns |= {"estimate_spread": VARIANCE_SCALE * mean * (1 - mean), "estimate_dispersion": parts["estimate_dispersion"]}
    columns["predicted_variance"] = VARIANCE_SCALE * heuristic.predicted_variance
    return torch.stack([columns[name].to(torch.float32) for name in CONTEXT], 1)


def environment_estimates(env_index: Int[Tensor, " tasks"], evidence: Evidence) -> tuple[Float[Tensor, "4 tasks"], Float[Tensor, " tasks"]]:
    """(v, m, d on the long horizon, z) of each task's environment, and its weight of z.

    `y_e = (sum_i W_i own_y(i) + ref_y) / (sum_i W_i + 1)` over the tasks of the environment (ours).
    """
    size = int(env_index.max()) + 1
    w = torch.stack([evidence.weight[0], evidence.informative_weight])
    own = torch.cat([evidence.estimate[0], evidence.informative_estimate[None]])
    sums = segment_sum(torch.cat([w, w[[0, 0, 0, 1]] * own]), env_index, size)
    reference = torch.cat([evidence.reference[0], evidence.reference.new_tensor([evidence.informative_level])])
    estimates = (sums[2:] + reference[:, None]) / (sums[[0, 0, 0, 1]] + 1)
    return estimates[:, env_index], sums[1, env_index]


PROJECTION_SEED = 2025
"""Of the fixed random projection (ours)."""


class Content:
    """What each task is about, in CONTENT numbers: its embedding, or the vector of its abstract record, times a fixed random matrix.

    The matrix depends on the number of dimensions alone, so that weights hold for every graph with the same embedding model.
    """

    def __init__(self) -> None:
        self._of: Tensor | None = None
        self._projected: Tensor | None = None

    def __call__(self, graph: HeteroData) -> Float[Tensor, "tasks content"]:
        """Content of every task; computed once a graph and device."""
        store = graph["task"]
        vectors = store.embedding if "embedding" in store else store.cross_vectors
        if self._projected is None or self._of is not vectors:
            d = vectors.shape[1]
            matrix = torch.randn(d, CONTENT, generator=torch.Generator().manual_seed(PROJECTION_SEED)) / CONTENT**0.5
            projected = vectors.float() @ matrix.to(vectors.device)
            self._of, self._projected = vectors, projected if "embedding" in store else projected[store.record_index]
        return self._projected


def content_name(graph: HeteroData) -> str:
    """Whose vectors a task's content is: the embedding model, or this pool's own records, which mean nothing in another pool."""
    model = graph.embedding_model if "embedding" in graph["task"] else ""
    return f"embeddings of {model}" if model else f"abstract records of pool {graph.pool_hash[:12] or '?'}"
