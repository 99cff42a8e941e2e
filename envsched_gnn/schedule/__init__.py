"""Batch construction: who is proposed next, and what came of it.

Knows: the protocol of a scheduler, and the two that keep it.
Does not know: how either picks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from envsched_gnn.records import LoadReport, RolloutGroup, Selection
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.explain import Explanation
from envsched_gnn.schedule.uniform import Uniform


class Scheduler(Protocol):
    """What a trainer talks to."""

    def select(self, step: int, n: int | None = None, request_id: str | None = None) -> Selection:
        """Propose tasks before any rollout; the same request returns the same Selection."""
        ...

    def observe(self, groups: Iterable[RolloutGroup] | Selection, rewards: Any = None) -> None:
        """Take the groups that came back, once each by group id."""
        ...

    def cancel(self, group_ids: Iterable[str]) -> None:
        """These groups will never report."""
        ...

    def metrics(self) -> dict[str, float]:
        """Flat figures for the trainer's logger."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Plain data by identity."""
        ...

    def load_state_dict(self, saved: Mapping[str, Any]) -> LoadReport:
        """Restore it, also when the pool has changed."""
        ...


__all__ = ["EnvSched", "Explanation", "Scheduler", "Uniform"]
