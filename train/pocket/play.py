"""Plans of the pocket policy, executed in worker processes; one that a task has seen before is not executed again.

Knows: which of many plans are the same, what becomes of a failed one.
Does not know: models, tokens, groups.

A plan of more calls than its environment allows is cut there. An environment starts every episode of a task in the same state with
chance begun anew, so a plan's reward is a function of the task and the plan. One that reads the clock would repeat its first verdict here.
Failures are not remembered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import REWARDED, Status
from envsched_gnn.train.environments import play
from envsched_gnn.train.workers import Job, Outcome, WorkerPool

Plan = list[dict[str, Any]]
REMEMBERED = 200_000
"""Verdicts kept; the oldest go first (ours)."""


class Player:
    """Plays plans of tasks of one pool."""

    def __init__(self, pool: Pool, workers: WorkerPool) -> None:
        self._pool = pool
        self._workers = workers
        self._verdicts: dict[tuple[int, str], Outcome] = {}

    def play(self, rows: Sequence[int], plans: Sequence[Sequence[Plan]]) -> Iterator[tuple[int, list[Outcome]]]:
        """(position, outcome of each plan) of each task as it finishes; `plans[i]` belong to the task in pool row `rows[i]`."""
        keys = [[(row, json.dumps(plan)) for plan in some] for row, some in zip(rows, plans, strict=True)]
        new = [{key: plan for key, plan in zip(*pair, strict=True) if key not in self._verdicts} for pair in zip(keys, plans, strict=True)]
        found: dict[tuple[int, str], Outcome] = {}
        jobs = [self._job(row, list(some.values())) for row, some in zip(rows, new, strict=True)]
        missing = [len(some) for some in new]
        names = [list(some) for some in new]
        for position, left in enumerate(missing):
            if not left:
                yield position, [self._verdicts[key] for key in keys[position]]
        for position, number, outcome in self._workers.run(jobs):
            key = names[position][number]
            found[key] = self._judged(outcome, key[0], new[position][key])
            missing[position] -= 1
            if not missing[position]:
                yield position, [found.get(key) or self._verdicts[key] for key in keys[position]]
        self._remember(found)

    def _remember(self, found: dict[tuple[int, str], Outcome]) -> None:
        self._verdicts.update((key, outcome) for key, outcome in found.items() if outcome.status in REWARDED)
        for key in list(self._verdicts)[: max(len(self._verdicts) - REMEMBERED, 0)]:
            del self._verdicts[key]

    def _judged(self, outcome: Outcome, row: int, plan: Plan) -> Outcome:
        """What is worth remembering of an outcome: its reward and status."""
        if outcome.status != "ok":
            return outcome
        limit = self._pool.environment_of[self._pool.tasks[row].env_id].max_turns
        status: Status = "truncated" if len(plan) > limit else "ok"
        return Outcome(status=status, reply={"reward": outcome.reply["reward"]}, detail=outcome.detail, seconds=outcome.seconds)

    def _job(self, row: int, plans: Sequence[Plan]) -> Job:
        task = self._pool.tasks[row]
        environment = self._pool.environment_of[task.env_id]
        return Job(environment=environment, task=task, requests=[play([plan], environment.max_turns)[0] for plan in plans])
