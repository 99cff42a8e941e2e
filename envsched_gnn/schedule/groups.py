"""Groups as they come in: from rewards or from an engine, with whatever a trainer may put in them.

Knows: how to pair a Selection with rewards, what counts as a number, when a group failed.
Does not know: which groups are expected, what their statistics are used for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from envsched_gnn.errors import HistoryError
from envsched_gnn.records import Rollout, RolloutGroup, Selection

FAILURES: frozenset[str] = frozenset({"timeout", "crashed", "out_of_memory"})
"""Statuses that speak of the environment, not of the policy."""


def groups_of(selection: Selection, rewards: Any) -> list[RolloutGroup]:
    """One group a pick from `rewards` [B][K]: nested sequences, an array or a tensor; ragged; None and NaN are masked, None for a row too.

    Raises:
        HistoryError: the number of rows is not the number of picks.
    """
    rows = rewards.tolist() if hasattr(rewards, "tolist") else list(rewards)
    if len(rows) != len(selection.picks):
        raise HistoryError(
            f"rewards of step {selection.step}: {len(rows)} rows for {len(selection.picks)} picks; expected one row a pick, in rank order. "
            "Use None for a group without rewards."
        )
    return [
        RolloutGroup(group_id=p.group_id, env_id=p.env_id, task_id=p.task_id, step=selection.step, rollouts=_rollouts(row))
        for p, row in zip(selection.picks, rows, strict=True)
    ]


def _rollouts(row: Any) -> tuple[Rollout, ...]:
    if row is None:
        return ()
    values = row.tolist() if hasattr(row, "tolist") else row
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        values = [values]
    return tuple(Rollout(reward=reward) for reward in values)


def numbers(rewards: Sequence[Any]) -> tuple[list[float | None], list[int]]:
    """(rewards as floats or None, positions of those that are no numbers at all)."""
    values: list[float | None] = []
    strange = []
    for k, reward in enumerate(rewards):
        try:
            values.append(None if reward is None else float(reward))
        except (TypeError, ValueError, OverflowError):
            values.append(None)
            strange.append(k)
    return values, strange


def failed(group: RolloutGroup, rewards: Sequence[float | None]) -> bool | None:
    """Whether reset, tools or checks failed: True if no rollout has a reward and one failed, False if one has a reward, else None."""
    if any(reward is not None and not math.isnan(reward) for reward in rewards):
        return False
    return True if any(rollout.status in FAILURES for rollout in group.rollouts) else None


def collect(groups: Iterable[RolloutGroup] | Selection, rewards: Any, take: Callable[[list[RolloutGroup]], object]) -> None:
    """Hand everything that comes to `take` in one list, also when the iterable raises on the way.

    Raises:
        HistoryError: rewards do not fit the selection, or nothing that came is a RolloutGroup.
    """
    if isinstance(groups, Selection):
        groups = groups_of(groups, rewards)
    taken: list[RolloutGroup] = []
    try:
        taken.extend(groups)
    finally:
        take(taken)
    if taken and not any(isinstance(group, RolloutGroup) for group in taken):
        raise HistoryError(f"observe: got {type(taken[0]).__name__}; expected RolloutGroup, or observe(selection, rewards).")
