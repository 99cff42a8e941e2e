"""A round of any policy: the trips between policy and engine, and which groups there are to learn from.

Knows: what `use` and `more` of a Selection mean.
Does not know: policies, engines, how anything is learned.

    selection = policy.select(step)
    while it has picks: roll it out, observe it; if selection.more: select(step, request_id="trip 1"), ...

Most policies make one trip. DAPO makes several (`filter`), Pilot-Commit pilots first (`pilot`), DOTS looks at references (`reference`).
An engine that learns inside `rollout` learns from every trip it plays; one that is to learn right plays without learning, and then learns
from `Round.train`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from envsched_gnn.history import ZERO_VARIANCE, group_statistics
from envsched_gnn.records import RolloutGroup, Selection
from envsched_gnn.schedule.book import Book
from envsched_gnn.stopwatch import Stopwatch


class Policy(Protocol):
    """What a round needs of a policy: `EnvSched`, `Uniform` and `Peer` are some."""

    book: Book

    @property
    def batch_size(self) -> int:
        """Tasks of a step."""
        ...

    def select(self, step: int, n: int | None = None, request_id: str | None = None) -> Selection:
        """Propose tasks."""
        ...

    def observe(self, groups: Iterable[RolloutGroup] | Selection, rewards: Any = None) -> None:
        """Take the groups that came back."""
        ...

    def cancel(self, group_ids: Iterable[str]) -> None:
        """These will not report."""
        ...


class Rollouts(Protocol):
    """What a round needs of an engine."""

    def rollout(self, selection: Selection) -> Iterable[RolloutGroup]:
        """Groups as they finish: `selection.num_rollouts` rollouts a pick, or the engine's own number."""
        ...


@dataclass(frozen=True, kw_only=True)
class Round:
    """What came of a step."""

    step: int
    selections: tuple[Selection, ...]
    """Of all trips that picked something."""
    groups: tuple[RolloutGroup, ...]
    """All that came back, trip by trip in rank order."""
    train: tuple[RolloutGroup, ...]
    """Those to learn from; pilots are part of the group of their task."""

    @property
    def selection(self) -> Selection:
        """All picks of the step as one."""
        return Selection(
            step=self.step,
            picks=tuple(pick for selection in self.selections for pick in selection.picks),
            relaxations=tuple(relaxation for selection in self.selections for relaxation in selection.relaxations),
        )

    @property
    def charged(self) -> int:
        """Rollouts spent."""
        return sum(len(group.rollouts) for group in self.groups)


def play_round(policy: Policy, engine: Rollouts, step: int, watch: Stopwatch | None = None) -> Round:
    """All trips of a step: select, roll out, observe, until the policy wants no more. Groups that do not come back are cancelled.

    Args:
        watch: is told what `select`, `rollout` and `observe` take.
    """
    watch = watch or Stopwatch()
    trips: list[tuple[Selection, list[RolloutGroup]]] = []
    with watch("select"):
        selection = policy.select(step)
    while selection.picks:
        with watch("rollout"):
            came = {group.group_id: group for group in engine.rollout(selection)}
        groups = [came[group_id] for group_id in selection.group_ids if group_id in came]
        with watch("observe"):
            policy.observe(groups)
            policy.cancel([group_id for group_id in selection.group_ids if group_id not in came])
        trips.append((selection, groups))
        if not selection.more:
            break
        with watch("select"):
            selection = policy.select(step, request_id=f"trip {len(trips)}")
    return Round(
        step=step,
        selections=tuple(selection for selection, _ in trips),
        groups=tuple(group for _, groups in trips for group in groups),
        train=tuple(lesson(trips, policy.batch_size, policy.book)),
    )


def lesson(trips: Sequence[tuple[Selection, Sequence[RolloutGroup]]], size: int, book: Book) -> list[RolloutGroup]:
    """The groups of a step's trips that a policy model learns from, see `Use`: at most `size` of those that are filtered."""
    pilots = {group.key: group.rollouts for selection, groups in trips if selection.use == "pilot" for group in groups}
    plain = [group for selection, groups in trips if selection.use == "train" for group in groups]
    filtered = mixed([group for selection, groups in trips if selection.use == "filter" for group in groups], book)
    return [replace(group, rollouts=pilots.get(group.key, ()) + group.rollouts) for group in plain] + filtered[:size]


def mixed(groups: Sequence[RolloutGroup], book: Book) -> list[RolloutGroup]:
    """Those whose rewards, mapped to [0, 1], have variance."""
    rows = [book.row(group.key) for group in groups]
    variance = group_statistics([group.rewards for group in groups], book.low[rows], book.high[rows]).variance
    return [group for group, v in zip(groups, variance.tolist(), strict=True) if v > ZERO_VARIANCE]
