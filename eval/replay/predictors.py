"""The predictors that a replay can judge, by name.

Knows: what each of them is made of, and that one which predicts a single target is read as the other, too.
Does not know: ledgers, scores.

`global_mean`, `own`, `within` and `cross` are the single sources of the method, each alone; `paper` and `mixture` are the two presets;
`learned` corrects the mixture by a network, and `ensemble` weighs both by how well they predicted; `mixture_dense` and `learned_dense` are
the mixture and the network on embeddings.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import PredictConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.eval.replay import potts
from envsched_gnn.eval.replay.dense import on_dense_graph
from envsched_gnn.graph.neighbors import RELATIONS, Neighbors, Relation
from envsched_gnn.history import GroupStatistics
from envsched_gnn.models.learner import Learner
from envsched_gnn.models.predictor import EnsemblePredictor, LearnedPredictor
from envsched_gnn.ops import percentile_rank
from envsched_gnn.predict import mixture, paper
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.predict.mixture import informative_variance
from envsched_gnn.predict.propagate import relation_estimate, shrink
from envsched_gnn.records import Evidence, Prediction

if TYPE_CHECKING:
    from envsched_gnn.eval.replay.recorded import Recorded

NAMES = ("global_mean", "own", "within", "cross", "paper", "mixture", "learned", "ensemble")
"""In the order of tables; they need nothing but the ledger and its graph."""
OF_TEXTS = ("mixture_dense", "learned_dense", potts.NAME)
"""They read the pool's texts besides, and have to be named."""
ALL_NAMES = (*NAMES, *OF_TEXTS)

Forecast = tuple[Float[Tensor, " tasks"], Float[Tensor, " tasks"]]
"""(expected variance, P(informative)) of every task."""


class Judged(Protocol):
    """The part of `predict.Predictor` that a replay needs."""

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """What step `step` would show of every task. The edges of `graph` are the neighbours observed before `step`."""
        ...

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Learn from the groups of `step`; `before` is what was predicted for their tasks."""
        ...


def predictor_of(name: str, neighbors: Neighbors, v_floor: float, recorded: Recorded | None = None) -> Judged:
    """A predictor that has seen nothing. `neighbors` is kept by the replay; `recorded` is what those of OF_TEXTS find them by.

    Raises:
        ConfigError: no predictor of that name; says the nearest one.
        GraphError: one of OF_TEXTS, of a ledger without texts.
    """
    match name:
        case "global_mean":
            return Plain(forecast=global_mean)
        case "own":
            return Plain(forecast=own)
        case "within" | "cross":
            relation: Relation = "within" if name == "within" else "cross"
            return Plain(forecast=lambda evidence: related(evidence, neighbors, relation))
        case "paper":
            return ByVariance(HeuristicPredictor("paper", neighbors, v_floor=v_floor))
        case "mixture":
            return ByProbability(HeuristicPredictor("default", neighbors, v_floor=v_floor))
        case "learned":
            return untrained(neighbors, v_floor)
        case "ensemble":
            return EnsemblePredictor(untrained(neighbors, v_floor))
        case "mixture_dense" if recorded is not None:
            return ByProbability(
                on_dense_graph(name, recorded, neighbors, lambda near: HeuristicPredictor("default", near, v_floor=v_floor))
            )
        case "learned_dense" if recorded is not None:
            return on_dense_graph(name, recorded, neighbors, lambda near: untrained(near, v_floor))
        case potts.NAME if recorded is not None:
            return potts.prompt_graph(recorded)
    near = difflib.get_close_matches(name, ALL_NAMES, n=1)
    cure = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(ALL_NAMES)}."
    raise ConfigError(f"predictor {name!r}: no such predictor. {cure}")


def untrained(neighbors: Neighbors, v_floor: float) -> LearnedPredictor:
    """The network, which learns from the ledger alone, step by step after having predicted it."""
    within_k, cross_k = (neighbors.lists(relation).similarity.shape[1] for relation in RELATIONS)
    return LearnedPredictor(neighbors, Learner(within_k, cross_k), PredictConfig(v_floor=v_floor))


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once; where none is given all but OF_TEXTS, since not every ledger has texts.

    Raises:
        ConfigError: an unknown one.
    """
    for name in names:
        if name not in ALL_NAMES:
            predictor_of(name, None, 0.0)  # type: ignore[arg-type]
    return tuple(dict.fromkeys(names)) or NAMES


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A function of the evidence that learns nothing else."""

    forecast: Callable[[Evidence], Forecast]

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """The function's forecast."""
        variance, p = self.forecast(evidence)
        return Prediction(informativeness=percentile_rank(p), predicted_variance=variance, p_informative=p)

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Nothing to learn."""


def global_mean(evidence: Evidence) -> Forecast:
    """The reference of the variance and the share of z, half-life 8, the same for every task: no ranking at all."""
    return (
        torch.full_like(evidence.informative_weight, float(evidence.reference[0, 0])),
        torch.full_like(evidence.informative_weight, evidence.informative_share),
    )


def own(evidence: Evidence) -> Forecast:
    """A task's own history, shrunk to what holds for all: `(W own + c level) / (W + c)`, c = 2 for the variance (paper), 1 for z (ours)."""
    variance, level = global_mean(evidence)
    return (
        shrink(evidence.estimate[0, 0], evidence.weight[0], variance, paper.SHRINKAGE_STRENGTH),
        shrink(evidence.informative_estimate, evidence.informative_weight, level, mixture.GRAPH_STRENGTH),
    )


def related(evidence: Evidence, neighbors: Neighbors, relation: Relation) -> Forecast:
    """The relation estimates of one relation alone: what the observed neighbours say, and nothing of the task itself."""
    seen, lists = neighbors.observed, neighbors.lists(relation)
    table = torch.stack([evidence.estimate[0, 0, seen], evidence.informative_estimate[seen]])
    weight = torch.stack([evidence.weight[0, seen], mixture.neighbour_weight(evidence.informative_weight[seen])])
    level = evidence.reference.new_tensor([float(evidence.reference[0, 0]), evidence.informative_level])
    strength = evidence.reference.new_tensor([paper.GRAPH_STRENGTH, mixture.GRAPH_STRENGTH])
    rel, _ = relation_estimate(table, weight, torch.tensor([0, 1], device=table.device), level, strength, lists)
    return rel[0].index_select(0, lists.row), rel[1].index_select(0, lists.row)


@dataclass(frozen=True)
class ByVariance:
    """A predictor that selects by its variance u, read as a probability: `p = clip_[0,1](u / E[v | v > floor])` (ours)."""

    predictor: Judged

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """Its prediction, with that p in place of its own."""
        prediction = self.predictor.predict(graph, evidence, step)
        spread = informative_variance(evidence)
        p = (prediction.predicted_variance / spread).clamp(0, 1) if spread > 0 else torch.zeros_like(prediction.predicted_variance)
        return replace(prediction, p_informative=p)

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Its own."""
        self.predictor.update(step, groups, before)


@dataclass(frozen=True)
class ByProbability:
    """A predictor that selects by its p, read as a variance: `u = p E[v | v > floor]` (ours)."""

    predictor: Judged

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """Its prediction, with that u in place of its own."""
        prediction = self.predictor.predict(graph, evidence, step)
        return replace(prediction, predicted_variance=prediction.p_informative * informative_variance(evidence))

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Its own."""
        self.predictor.update(step, groups, before)
