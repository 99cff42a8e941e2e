"""Finer environments: an agent role, a scenario or a server of one environment becomes an environment of its own.

Knows: the rule, a dotted path into a task's record; how identities change.
Does not know: file formats, execution. A split environment runs the same source with the same tools.

Environments are split, never merged: each is executed from a source of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envsched_gnn.errors import PoolError, message
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task

ROOTS = ("info", "initial_state")
"""The parts of a task that a rule may look into."""


def regroup(pool: Pool, rule: str) -> Pool:
    """The pool with `env_id` replaced by `env_id.VALUE`, where VALUE stands at the path `rule` of each task; an empty rule changes nothing.

    Task ids, order and everything else stay. Environments without tasks stay as they are.

    Args:
        rule: `info.scenario`, `info.agent.role`, `initial_state.server`: a dotted path to a text, whole number or boolean.

    Raises:
        PoolError: the rule begins with neither `info` nor `initial_state`, or a task holds no such value there; the first one is named;
            or two environments would get the same name.
    """
    if not rule:
        return pool
    root, *path = rule.split(".")
    if root not in ROOTS or not path or not all(path):
        raise PoolError(message("pool.environment_rule", repr(rule), "a path below " + " or ".join(ROOTS), "For example info.scenario."))
    tasks = tuple(replace(task, env_id=f"{task.env_id}.{_value(task, rule)}") for task in pool.tasks)
    pairs = dict.fromkeys((old.env_id, new.env_id) for old, new in zip(pool.tasks, tasks, strict=True))
    parts: dict[str, list[str]] = {environment.env_id: [] for environment in pool.environments}
    for origin, env_id in pairs:
        parts[origin].append(env_id)
    environments = tuple(part for environment in pool.environments for part in _split(environment, parts[environment.env_id]))
    return Pool(environments=environments, tasks=tasks, source=pool.source)


def _split(environment: Environment, env_ids: list[str]) -> list[Environment]:
    return [replace(environment, env_id=env_id) for env_id in env_ids] or [environment]


def _value(task: Task, rule: str) -> str:
    root, *path = rule.split(".")
    value: Any = getattr(task, root)
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(value, str | int) or value == "":
        found = "nothing" if value is None else f"{value!r:.80}"
        cure = "Add it to every task, or change pool.environment_rule."
        raise PoolError(message(f"task {task.key!r}, {rule}", found, "a text, whole number or boolean", cure))
    return str(value)
