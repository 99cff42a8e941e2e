"""From evidence to what the next group of every task will show.

Knows: the protocol of a predictor.
Does not know: quotas, batches, exposure (schedule).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch_geometric.data import HeteroData

from envsched_gnn.history import GroupStatistics
from envsched_gnn.records import Evidence, Prediction


class Predictor(Protocol):
    """What predicts informativeness before any rollout, and may learn from each round."""

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """What step `step` would show of every task, from the groups of earlier steps."""
        ...

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Learn from groups selected at `step`.

        `before` is what was predicted before the round, restricted to the groups' tasks, in their order.
        Late groups of a step come in a further call.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Few figures for a logger, keys `envsched/...`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to predict bit-equally; no task rows, so that a changed pool does not matter."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        ...


__all__ = ["Predictor"]
