"""Whether a trainer, its data set and a scheduler fit together, before anything starts.

Knows: the settings of TRL's trainers that a scheduler depends on, the column task_id.
Does not know: how tasks are chosen, how a round goes.
"""

from __future__ import annotations

import logging
from typing import Any

from datasets import Dataset

from envsched_gnn.errors import ConfigError, require
from envsched_gnn.schedule import Scheduler
from envsched_gnn.schedule.policies import AnyPolicy

log = logging.getLogger(__name__)

NAMED = 3
"""Tasks that an error names before it counts the rest."""


def check_settings(trainer: Any, shadow: bool) -> int:
    """Tasks a round: generation_batch_size / num_generations.

    Raises:
        ConfigError: max_steps is not set, the batch does not divide by the group size, or the data set cannot be read row by row.
    """
    args, dataset = trainer.args, trainer.train_dataset
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"train_dataset is of type {type(dataset).__name__}; expected a datasets.Dataset, whose rows can be taken in any order. "
            "Load it without streaming."
        )
    if "task_id" not in dataset.column_names:
        raise ConfigError(f"train_dataset has the columns {dataset.column_names}; expected one named task_id that holds ENV_ID/TASK_ID.")
    require(shadow or args.max_steps > 0, "max_steps", args.max_steps, "the number of updates to make: a schedule has no epochs")
    size = trainer.num_generations
    require(
        args.generation_batch_size % size == 0,
        "generation_batch_size",
        args.generation_batch_size,
        f"a multiple of num_generations = {size}",
    )
    tasks = args.generation_batch_size // size
    if shadow and len(dataset) < tasks:
        raise ConfigError(
            f"train_dataset has {len(dataset)} rows, fewer than the {tasks} tasks of a round. Make generation_batch_size smaller."
        )
    return tasks


def rows_by_task(dataset: Dataset) -> dict[str, int]:
    """Row of each task.

    Raises:
        ConfigError: two rows of one task.
    """
    rows: dict[str, int] = {}
    for row, key in enumerate(dataset["task_id"]):
        if rows.setdefault(key, row) != row:
            raise ConfigError(f"train_dataset: rows {rows[key]} and {row} are both of task {key!r}; expected one row a task. Drop one.")
    return rows


def check_tasks(scheduler: Scheduler, rows: dict[str, int], tasks: int, shadow: bool) -> int:
    """The scheduler can fill a round, and every task that it may propose has a row; returns the step that it can select next.

    A scheduler of your own is not looked into, and begins at 0.

    Raises:
        ConfigError: names what is missing.
    """
    if shadow:
        require(hasattr(scheduler, "shadow"), "shadow", type(scheduler).__name__, "a scheduler with a method shadow, such as EnvSched")
    if not isinstance(scheduler, AnyPolicy):
        return 0
    if not shadow:
        _check_pool(scheduler, rows, tasks)
    return scheduler.book.last_step + 1


def _check_pool(scheduler: AnyPolicy, rows: dict[str, int], tasks: int) -> None:
    held_out = scheduler.graph["task"].held_out.tolist()
    proposable = [key for key, out in zip(scheduler.book.keys, held_out, strict=True) if not out]
    missing = [key for key in proposable if key not in rows]
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        names = ", ".join(map(repr, missing[:NAMED]))
        raise ConfigError(f"train_dataset has no row for {names}{more}, which the scheduler may propose. Add rows with these task_ids.")
    if len(proposable) < tasks:
        raise ConfigError(
            f"the pool has {len(proposable)} tasks that may be trained on, fewer than the {tasks} tasks of a round "
            "(generation_batch_size / num_generations). Make generation_batch_size smaller, or give more tasks."
        )
    if scheduler.batch_size != tasks:
        log.warning("the scheduler's batch_size is %d, a round has %d tasks; quotas follow the former", scheduler.batch_size, tasks)
