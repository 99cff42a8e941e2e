"""The mixture on embeddings: the same predictor, with the neighbours of the dense graph of the same pool.

Knows: where a dense graph of a ledger's pool comes from, how its neighbours follow those that the replay keeps.
Does not know: predictors from inside, figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_geometric.data import HeteroData

from envsched_gnn.errors import GraphError
from envsched_gnn.graph.configured import dense_graph, kept_graph
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import GroupStatistics
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.records import Evidence, Prediction

if TYPE_CHECKING:
    from envsched_gnn.eval.replay.recorded import Recorded

NAME = "mixture_dense"


@dataclass(frozen=True, kw_only=True)
class ElsewhereNear:
    """A predictor whose neighbours are those of another graph of the same tasks, observed in the same order."""

    shared: Neighbors
    """Of the replay, which inserts what is observed."""
    predictor: HeuristicPredictor

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """Its own, once its neighbours have caught up."""
        self.predictor.neighbors.insert(self.shared.observed)
        return self.predictor.predict(graph, evidence, step)

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Its own."""
        self.predictor.update(step, groups, before)


def dense_mixture(recorded: Recorded, neighbors: Neighbors) -> ElsewhereNear:
    """Preset `default` on the dense graph of a ledger's pool; see `dense_graph_of` for the errors."""
    near = Neighbors(dense_graph_of(recorded))
    return ElsewhereNear(shared=neighbors, predictor=HeuristicPredictor("default", near, v_floor=recorded.config.predict.v_floor))


def dense_graph_of(recorded: Recorded) -> HeteroData:
    """The ledger's graph if it is dense, its dense twin if it holds embeddings, else that of the pool, built once and kept in the cache.

    Raises:
        GraphError: the tasks are simulated, or there are neither embeddings nor a pool to embed.
        ConfigError: the embedding model is not there.
    """
    graph = recorded.graph
    if graph.embedding_model:
        return graph if graph.feature_config.get("similarity") == "dense" else dense_graph(graph)
    if recorded.kind == "simulated":
        raise GraphError(f"{recorded.path}: {NAME} of a simulated ledger, whose tasks hold no text to embed. Name the other predictors.")
    if recorded.pool is None:
        cure = "Give --pool, or --graph with one that `envsched graph build POOL --similarity dense` wrote."
        raise GraphError(f"{recorded.path}: {NAME} needs embeddings, and the graph holds none. {cure}")
    config = recorded.config
    return kept_graph(recorded.pool, replace(config, graph=replace(config.graph, similarity="dense")))
