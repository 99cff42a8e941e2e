"""A rule's memory on the way to a checkpoint and back, also when the pool has changed between.

Knows: that tables have a row a task or an environment, and how rows are found again.
Does not know: what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from envsched_gnn.schedule.policies.rule import Memory

Tables = dict[str, Tensor]


def dump(memory: Memory, env_ids: Sequence[str], absent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Copies of all tables. Rows of tasks: those of the pool, then those of `absent`, as in the state's list of tasks."""
    absent = absent or {"tasks": {}, "env_ids": [], "environments": {}}
    return {
        "tasks": _appended(memory.tasks, absent["tasks"]),
        "env_ids": [*env_ids, *absent["env_ids"]],
        "environments": _appended(memory.environments, absent["environments"]),
        "shared": {name: table.clone() for name, table in memory.shared.items()},
    }


def load(
    saved: Mapping[str, Any], start: Memory, keys: Sequence[str], row_of: Mapping[str, int], env_ids: Sequence[str]
) -> tuple[Memory, dict[str, Any]]:
    """(memory, what belongs to tasks and environments that are not in the pool). New rows are those of `start`.

    Raises:
        KeyError, ValueError: a table is missing, or has the wrong number of rows.
    """
    env_row = {env_id: row for row, env_id in enumerate(env_ids)}
    tasks, tasks_aside = _placed(saved["tasks"], start.tasks, keys, row_of)
    environments, environments_aside = _placed(saved["environments"], start.environments, saved["env_ids"], env_row)
    aside = {
        "tasks": tasks_aside,
        "env_ids": [env_id for env_id in saved["env_ids"] if env_id not in env_row],
        "environments": environments_aside,
    }
    shared = {name: saved["shared"][name].clone() for name in start.shared}
    return Memory(tasks=tasks, environments=environments, shared=shared), aside


def _appended(tables: Tables, below: Tables) -> Tables:
    return {name: torch.cat([table, below[name]]) if name in below else table.clone() for name, table in tables.items()}


def _placed(saved: Tables, start: Tables, keys: Sequence[str], row_of: Mapping[str, int]) -> tuple[Tables, Tables]:
    """(tables with the saved rows where they belong, the other rows)."""
    known = [at for at, key in enumerate(keys) if key in row_of]
    others = [at for at, key in enumerate(keys) if key not in row_of]
    rows = torch.tensor([row_of[keys[at]] for at in known], dtype=torch.int64)
    placed, aside = {}, {}
    for name, table in start.items():
        if len(saved[name]) != len(keys):
            raise ValueError(f"table {name!r} has {len(saved[name])} rows for {len(keys)} identities")
        placed[name] = table.clone()
        placed[name][rows] = saved[name][torch.tensor(known, dtype=torch.int64)].to(table.dtype)
        aside[name] = saved[name][torch.tensor(others, dtype=torch.int64)].clone()
    return placed, aside
