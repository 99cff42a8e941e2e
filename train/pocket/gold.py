"""Gold trajectories as plans that the pocket policy could write.

Knows: how a literal identifier becomes a reference to the call that first returned it.
Does not know: tokens, models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.references import reference
from envsched_gnn.train.workers import Job, WorkerPool

Call = dict[str, Any]


def gold_plans(pool: Pool, rows: Iterable[int], workers: WorkerPool) -> Iterator[tuple[int, list[Call]]]:
    """(row, plan) of each task that has a gold trajectory of one turn whose calls run, as they finish.

    Each trajectory is executed once, to learn what its calls return.
    """
    known = [row for row in rows if _one_turn(pool.tasks[row].ground_truth)]
    jobs = [_job(pool, row) for row in known]
    for index, _, outcome in workers.run(jobs):
        gold, found = pool.tasks[known[index]].ground_truth, outcome.reply.get("found")
        if outcome.status == "ok" and not outcome.reply.get("errors") and isinstance(found, list) and len(found) == len(gold):
            yield known[index], referring(gold, found)


def referring(calls: Sequence[Call], found: Sequence[str]) -> list[Call]:
    """The same calls, where each argument that an earlier call returned is a reference to the latest such call.

    Args:
        found: `first_identifier` of each call's result.
    """

    def written(value: Any, before: int) -> Any:
        earlier = [call for call in range(before) if isinstance(value, str) and value and value == found[call]]
        return reference(earlier[-1]) if earlier else value

    return [
        {"name": call["name"], "arguments": {name: written(value, number) for name, value in call["arguments"].items()}}
        for number, call in enumerate(calls)
    ]


def _one_turn(gold: Any) -> bool:
    return isinstance(gold, list) and bool(gold) and all(isinstance(call, dict) and {"name", "arguments"} <= call.keys() for call in gold)


def _job(pool: Pool, row: int) -> Job:
    task = pool.tasks[row]
    request = {"op": "play", "turns": [task.ground_truth], "inspect": False}
    return Job(environment=pool.environment_of[task.env_id], task=task, requests=[request])
