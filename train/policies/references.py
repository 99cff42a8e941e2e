"""Reference trajectories: what a scripted policy imitates.

Knows: where each kind of pool keeps one.
Does not know: skill, rewards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envsched_gnn.errors import PoolError, message
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task

Turns = list[list[dict[str, Any]]]
"""Calls `{"name", "arguments"}` of each turn."""
RECORDED = "*reference_rollouts*.jsonl"
"""Recorded episodes beside an EnvScaler pool: lines of `{"task_id", "env_id", "actions": [{"name", "arguments"}], "recorded_reward"}`."""
NO_TOOL = "chat_with_user"
"""EnvScaler's action of answering in words."""


def gold(environment: Environment, task: Task) -> Turns | None:
    """The task's own gold trajectory, turn by turn; None where its ground truth is no list (an answer, say) or it has none.

    Raises:
        PoolError: it is a list of something else than calls.
    """
    truth = task.ground_truth
    if not truth or not isinstance(truth, list | tuple):
        return None
    if environment.env_type == "bfcl":
        from envsched_gnn.pool.bfcl import gold_calls

        return gold_calls(task, environment)
    if not all(_is_call(call) for call in truth):
        cure = "Correct or drop ground_truth."
        raise PoolError(message(task.key, f"ground_truth {str(truth)[:80]!r}", "a list of {'name', 'arguments'}", cure))
    return [[dict(call) for call in truth]]


def recorded(pool: Pool) -> dict[str, tuple[Turns, float]]:
    """Recorded episodes beside the pool's files: trajectory and reward by identity; none where there is no such file.

    Raises:
        PoolError: a line is malformed; names it.
    """
    folder = Path(pool.source)
    files = sorted(folder.glob(RECORDED)) if pool.source and folder.is_dir() else []
    episodes = {}
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
                actions = [action for action in row["actions"] if action["name"] != NO_TOOL]
                episodes[f"{row['env_id']}/{row['task_id']}"] = ([actions], float(row["recorded_reward"]))
            except (ValueError, TypeError, KeyError) as error:
                cure = "Correct the line or move the file away."
                raise PoolError(message(f"{path}:{number}", repr(error), "a recorded episode", cure)) from None
    return episodes


def references(pool: Pool) -> dict[str, Turns]:
    """For each task that has one, by identity: its gold trajectory, else its recorded episode."""
    found = {key: turns for key, (turns, _) in recorded(pool).items() if key in pool.index_of}
    for task in pool.tasks:
        turns = gold(pool.environment_of[task.env_id], task)
        if turns is not None:
            found[task.key] = turns
    return found


def _is_call(call: object) -> bool:
    return isinstance(call, Mapping) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), Mapping)
