"""Plans of the pocket policy, executed in worker processes; one that a task has seen before is not executed again.

Knows: which of many plans are the same, what becomes of a failed one.
Does not know: models, tokens, groups.

A plan of more calls than its environment allows is cut there. An environment starts every episode of a task in the same state with
chance begun anew, so a plan's reward is a function of the task and the plan. One that reads the clock would repeat its first verdict here.
Failures are not remembered.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import REWARDED, Status
from envsched_gnn.train.environments import play_each
from envsched_gnn.train.workers import Job, Outcome, WorkerPool

Plan = list[dict[str, Any]]
Key = tuple[int, str]
"""Row of a task in the pool, and a plan as text."""
REMEMBERED = 200_000
"""Verdicts kept; the oldest go first (ours)."""


class Player:
    """Plays plans of tasks of one pool."""

    def __init__(self, pool: Pool, workers: WorkerPool) -> None:
        self._pool = pool
        self._workers = workers
        self._verdicts: dict[Key, Outcome] = {}

    def play(self, rows: Sequence[int], plans: Sequence[Sequence[Plan]]) -> Iterator[tuple[int, list[Outcome]]]:
        """(position, outcome of each plan) of each task as it finishes; `plans[i]` belong to the task in pool row `rows[i]`."""
        keys = [[(row, json.dumps(plan)) for plan in some] for row, some in zip(rows, plans, strict=True)]
        new = [{key: plan for key, plan in zip(*pair, strict=True) if key not in self._verdicts} for pair in zip(keys, plans, strict=True)]
        found: dict[Key, Outcome] = {}
        for position in sorted(range(len(rows)), key=lambda position: bool(new[position])):
            if new[position]:
                break
            yield position, [self._verdicts[key] for key in keys[position]]
        for position, outcomes in self._executed([position for position, some in enumerate(new) if some], rows, new):
            found |= outcomes
            yield position, [outcomes.get(key) or self._verdicts[key] for key in keys[position]]
        self._remember(found)

    def _executed(
        self, positions: Sequence[int], rows: Sequence[int], new: Sequence[dict[Key, Plan]]
    ) -> Iterator[tuple[int, dict[Key, Outcome]]]:
        """Outcomes of the new plans of each task: all of a task in one message; where one of them fails, each in a message of its own."""
        again = []
        for place, _, outcome in self._workers.run([self._job(rows[position], list(new[position].values())) for position in positions]):
            position = positions[place]
            if outcome.status != "ok" and len(new[position]) > 1:
                again.append(position)
                continue
            yield position, self._judged(outcome, new[position])
        apart = [(position, key, plan) for position in again for key, plan in new[position].items()]
        left = {position: dict[Key, Outcome]() for position in again}
        for place, _, outcome in self._workers.run([self._job(rows[position], [plan]) for position, _, plan in apart]):
            position, key, plan = apart[place]
            left[position] |= self._judged(outcome, {key: plan})
            if len(left[position]) == len(new[position]):
                yield position, left[position]

    def _remember(self, found: dict[Key, Outcome]) -> None:
        self._verdicts.update((key, outcome) for key, outcome in found.items() if outcome.status in REWARDED)
        for key in list(itertools.islice(self._verdicts, max(len(self._verdicts) - REMEMBERED, 0))):
            del self._verdicts[key]

    def _judged(self, outcome: Outcome, plans: dict[Key, Plan]) -> dict[Key, Outcome]:
        """What is worth remembering of an outcome, by plan: reward and status."""
        if outcome.status != "ok":
            return dict.fromkeys(plans, outcome)
        return {key: self._verdict(key[0], plan, play) for (key, plan), play in zip(plans.items(), outcome.reply["plays"], strict=True)}

    def _verdict(self, row: int, plan: Plan, play: dict[str, Any]) -> Outcome:
        limit = self._pool.environment_of[self._pool.tasks[row].env_id].max_turns
        status: Status = "truncated" if len(plan) > limit else "ok"
        return Outcome(status=status, reply={"reward": play["reward"]}, seconds=sum(play["seconds"].values()))

    def _job(self, row: int, plans: Sequence[Plan]) -> Job:
        task = self._pool.tasks[row]
        environment = self._pool.environment_of[task.env_id]
        return Job(environment=environment, task=task, requests=[play_each(plans, environment.max_turns)])
