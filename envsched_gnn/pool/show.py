"""What a pool holds, in figures.

Knows: counts of environments, tasks, tools and checks; what a user should look at.
Does not know: execution (the audit scores tasks), where the text is printed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from envsched_gnn.pool.pool import Pool

_NAMED = 5
"""Identities that a warning names."""


def summary(pool: Pool) -> dict[str, Any]:
    """Figures of a pool, as plain values: what `envsched pool show --json` prints."""
    tasks_of = Counter(task.env_id for task in pool.tasks)
    return {
        "source": pool.source,
        "content_hash": pool.content_hash,
        "environments": len(pool.environments),
        "tasks": len(pool.tasks),
        "held_out": sum(task.held_out for task in pool.tasks),
        "env_types": dict(Counter(environment.env_type for environment in pool.environments)),
        "tasks_per_environment": _spread([tasks_of[environment.env_id] for environment in pool.environments]),
        "tools": len({tool["function"]["name"] for environment in pool.environments for tool in environment.tools}),
        "tools_per_environment": _spread([len(environment.tools) for environment in pool.environments]),
        "checks": sum(len(task.verifier.checks) for task in pool.tasks),
        "checks_per_task": _spread([len(task.verifier.checks) for task in pool.tasks]),
        "reward_ranges": [list(bounds) for bounds in sorted(set(pool.reward_ranges))],
        "with_ground_truth": sum(task.ground_truth is not None for task in pool.tasks),
        "empty_environments": list(pool.empty_environments),
        "tasks_without_checks": [task.key for task in pool.tasks if task.verifier.kind == "checks" and not task.verifier.checks],
        "empty_prompts": [task.key for task in pool.tasks if not task.prompt.strip()],
    }


def warnings(figures: dict[str, Any]) -> list[str]:
    """One sentence for each thing in a summary that a user should look at."""
    found = (
        ("empty_environments", "environments have no tasks and are never chosen"),
        ("tasks_without_checks", "tasks have no checks and cannot be scored"),
        ("empty_prompts", "tasks have an empty prompt"),
    )
    return [f"{len(figures[key])} {what}: {_names(figures[key])}." for key, what in found if figures[key]]


def table(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows (label, value) of a printed summary."""
    types = ", ".join(f"{count} {name}" for name, count in figures["env_types"].items())
    return [
        ("pool", figures["source"]),
        ("content hash", figures["content_hash"][:16]),
        ("environments", f"{figures['environments']} ({types}); {len(figures['empty_environments'])} without tasks"),
        ("tasks", f"{figures['tasks']} ({figures['held_out']} held out, {figures['with_ground_truth']} with ground truth)"),
        ("tasks an environment", _range(figures["tasks_per_environment"])),
        ("tools", f"{figures['tools']} names; an environment {_range(figures['tools_per_environment'])}"),
        ("checks", f"{figures['checks']}; a task {_range(figures['checks_per_task'])}"),
        ("tasks without checks", str(len(figures["tasks_without_checks"]))),
        ("reward ranges", ", ".join(f"[{low:g}, {high:g}]" for low, high in figures["reward_ranges"])),
    ]


def _spread(counts: Sequence[int]) -> dict[str, float]:
    return {"min": min(counts), "median": statistics.median(counts), "max": max(counts)}


def _range(spread: dict[str, float]) -> str:
    return f"{spread['min']:g} / {spread['median']:g} / {spread['max']:g} (min / median / max)"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
