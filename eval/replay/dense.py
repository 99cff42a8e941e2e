"""Predictors on embeddings: the same ones, on the dense graph of the same pool.

Knows: where a dense graph of a ledger's pool comes from, how its neighbours follow those that the replay keeps.
Does not know: predictors from inside, figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_geometric.data import HeteroData

from envsched_gnn.errors import GraphError
from envsched_gnn.graph.configured import dense_graph, kept_graph
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import GroupStatistics
from envsched_gnn.models.predictor import LearnedPredictor
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.records import Evidence, Prediction

if TYPE_CHECKING:
    from envsched_gnn.eval.replay.recorded import Recorded

Own = HeuristicPredictor | LearnedPredictor
"""Predictors that have neighbours of their own."""


@dataclass(frozen=True, kw_only=True)
class ElsewhereNear:
    """A predictor on another graph of the same tasks, whose neighbours are observed in the same order."""

    shared: Neighbors
    """Of the replay, which inserts what is observed."""
    graph: HeteroData
    predictor: Own

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """Its own, once its neighbours have caught up."""
        self.predictor.neighbors.insert(self.shared.observed)
        return self.predictor.predict(self.graph, evidence, step)

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Its own."""
        self.predictor.update(step, groups, before)


def on_dense_graph(name: str, recorded: Recorded, shared: Neighbors, make: Callable[[Neighbors], Own]) -> ElsewhereNear:
    """The predictor `name`: what `make` makes of the neighbours in the dense graph of a ledger's pool; errors as of `dense_graph_of`."""
    graph = dense_graph_of(recorded, name)
    return ElsewhereNear(shared=shared, graph=graph, predictor=make(Neighbors(graph)))


def dense_graph_of(recorded: Recorded, name: str) -> HeteroData:
    """The ledger's graph if it is dense, its dense twin if it holds embeddings, else that of the pool, built once and kept in the cache.

    `name` is who needs it.

    Raises:
        GraphError: the tasks are simulated, or there are neither embeddings nor a pool to embed.
        ConfigError: the embedding model is not there.
    """
    graph = recorded.graph
    if graph.embedding_model:
        return graph if graph.feature_config.get("similarity") == "dense" else dense_graph(graph)
    if recorded.kind == "simulated":
        raise GraphError(f"{recorded.path}: {name} of a simulated ledger, whose tasks hold no text to embed. Name the other predictors.")
    if recorded.pool is None:
        cure = "Give --pool, or --graph with one that `envsched graph build POOL --similarity dense` wrote."
        raise GraphError(f"{recorded.path}: {name} needs embeddings, and the graph holds none. {cure}")
    config = recorded.config
    return kept_graph(recorded.pool, replace(config, graph=replace(config.graph, similarity="dense")))
