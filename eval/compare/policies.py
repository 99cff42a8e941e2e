"""From an entry of a comparison to its policy.

Knows: what a variant changes beside settings.
Does not know: how any policy chooses, engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import Config
from envsched_gnn.eval.compare.arena import Arena
from envsched_gnn.eval.compare.variants import Entry
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import GroupStatistics, History
from envsched_gnn.models.make import configured_policy
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.records import Evidence, Prediction
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.policies import AnyPolicy


def policy_in(arena: Arena, entry: Entry, config: Config) -> AnyPolicy:
    """The entry's policy, which has seen nothing."""
    if entry.policy == "oracle":
        return arena.oracle(config.run.seed)
    policy = configured_policy(entry.policy, config, arena.pool, arena.graph)
    if entry.variant is not None and entry.variant.recent is not None:
        assert isinstance(policy, EnvSched)
        assert isinstance(policy.predictor, HeuristicPredictor)
        policy.predictor = Recent(policy.predictor, policy.graph, policy.history, entry.variant.recent)
    return policy


class Recent:
    """A predictor whose neighbours are tasks observed in the last `rounds` steps alone: its lists are made anew each step."""

    def __init__(self, predictor: HeuristicPredictor, graph: HeteroData, history: History, rounds: int) -> None:
        self._predictor, self._history, self._rounds = predictor, history, rounds
        predictor.neighbors = Neighbors(graph)

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """As the predictor does, from the neighbours of the last rounds."""
        self._predictor.neighbors.load_state_dict({"observed": self.observed(step)})
        return self._predictor.predict(graph, evidence, step)

    def observed(self, step: int) -> Tensor:
        """Task rows observed in the steps from `step - rounds` on, ascending."""
        return torch.unique(self._history.tasks[self._history.steps >= step - self._rounds])

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """As the predictor does."""
        self._predictor.update(step, groups, before)

    def metrics(self) -> dict[str, float]:
        """The predictor's."""
        return self._predictor.metrics()

    def state_dict(self) -> dict[str, Any]:
        """The predictor's; neighbours follow from the history."""
        return self._predictor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self._predictor.load_state_dict(state)
