"""Quarantine: tasks whose reset, tools or checks fail again and again are left out for a growing number of rounds.

Knows: failures in a row of each task, until which round it is out.
Does not know: what a failure is, who is selected instead. Rounds are counted, not steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FIRST_ROUNDS = 16
"""Rounds of the first quarantine of a task; each further one lasts twice as long (ours)."""


@dataclass(kw_only=True)
class Record:
    """One task's failures."""

    streak: int = 0
    """Failed groups in a row since the last success or quarantine."""
    times: int = 0
    """Quarantines so far."""
    until: int = 0
    """First round (number of rounds before it) at which it may be selected again."""


class Quarantine:
    """`after` failed groups in a row put a task in quarantine."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.records: dict[int, Record] = {}
        """By task row; only tasks that ever failed."""

    def report(self, task: int, failed: bool | None, rounds: int) -> bool:
        """A group of `task` failed, succeeded or said nothing (None), after `rounds` rounds; True if the task is quarantined by it."""
        if not failed:
            if failed is False and task in self.records:
                self.records[task].streak = 0
            return False
        record = self.records.setdefault(task, Record())
        record.streak += 1
        if record.streak < self.after:
            return False
        record.streak = 0
        record.until = rounds + FIRST_ROUNDS * 2**record.times
        record.times += 1
        return True

    def active(self, rounds: int) -> list[int]:
        """Rows of the tasks that may not be selected in the round that has `rounds` rounds before it."""
        return [task for task, record in self.records.items() if record.until > rounds]

    def release(self, tasks: Iterable[int]) -> None:
        """Forget the failures of `tasks`."""
        for task in tasks:
            self.records.pop(task, None)
