"""ToolWorld: the bundled pool generator. Executable environments and tasks in EnvScaler's conventions, from a seed.

Knows: how many of what, what is held out.
Does not know: execution, features, scheduling.

Data: domains in `domains_public` and `domains_trade`, tools in `methods_query`, `methods_change` and `methods_option`, operations and
patterns in `operations` and `patterns`, words in `names`.
Code: `world` draws an environment's variant and `source` writes its class; `outline` decides label, depth and patterns of a task, `cast`
and `state` its records, `task` and `prompt` the rest.

Every environment is drawn from its own random streams: environment i is the same however many there are.
"""

from __future__ import annotations

from envsched_gnn.config import ToolWorldConfig
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.toolworld.outline import labels, outline, spread, worlds
from envsched_gnn.pool.toolworld.source import environment
from envsched_gnn.pool.toolworld.task import build_task
from envsched_gnn.pool.toolworld.world import stream
from envsched_gnn.records import Task

__all__ = ["ToolWorldConfig", "generate", "labels"]


def generate(config: ToolWorldConfig) -> Pool:
    """The pool of a configuration; equal configurations give equal pools in every process."""
    drawn = worlds(config)
    tasks: list[Task] = []
    for world in drawn:
        held_out = _held_out(config, world.index)
        for index in range(config.tasks):
            plan = outline(config, world, index)
            tasks.append(build_task(config.seed, world, plan, binary=config.reward == "binary", held_out=index in held_out))
    return Pool(environments=tuple(environment(world) for world in drawn), tasks=tuple(tasks), source="toolworld")


def _held_out(config: ToolWorldConfig, index: int) -> set[int]:
    """Tasks of environment `index` that are held out: all of them, or a share rounded to whole tasks."""
    if spread(config.seed, "held out", index) < config.held_out_environments:
        return set(range(config.tasks))
    return set(stream(config.seed, "held out", index).sample(range(config.tasks), round(config.held_out_tasks * config.tasks)))
