"""The pool: all environments and tasks that a scheduler may choose from.

Knows: identities, which task belongs to which environment, the content hash.
Does not know: file formats, execution, features.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from envsched_gnn.errors import PoolError
from envsched_gnn.records import Environment, Task

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Environments and tasks in file order. Every task's environment is present; identities are unique."""

    environments: tuple[Environment, ...]
    tasks: tuple[Task, ...]
    source: str = ""
    """Where it was read from, for messages."""

    def __post_init__(self) -> None:
        _reject_duplicates((e.env_id for e in self.environments), f"{self.source}: environment")
        _reject_duplicates((t.key for t in self.tasks), f"{self.source}: task")
        known = {e.env_id for e in self.environments}
        for task in self.tasks:
            if task.env_id not in known:
                raise PoolError(
                    f"{self.source}: task {task.task_id!r} belongs to environment {task.env_id!r}, which is not in the pool. "
                    "Add the environment or drop the task."
                )
        if not self.tasks:
            raise PoolError(f"{self.source}: no tasks. A pool needs at least one task.")

    @classmethod
    def load(cls, path: str | Path) -> Pool:
        """Read `toolworld`, `bfcl` or a directory (EnvScaler or manifest) with the default options."""
        from envsched_gnn.config import PoolConfig
        from envsched_gnn.pool.load import load_pool

        return load_pool(PoolConfig(path=str(path)))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Identities `env_id/task_id` in pool order."""
        return tuple(task.key for task in self.tasks)

    @cached_property
    def index_of(self) -> dict[str, int]:
        """Row of each identity."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def env_index(self) -> np.ndarray:
        """Row of each task's environment, [tasks] int64."""
        import numpy as np

        row = {e.env_id: i for i, e in enumerate(self.environments)}
        return np.array([row[task.env_id] for task in self.tasks], dtype=np.int64)

    @cached_property
    def reward_ranges(self) -> tuple[tuple[float, float], ...]:
        """[lo, hi] of each task: its own, else its environment's."""
        return tuple(task.reward_range or self.environments[e].reward_range for task, e in zip(self.tasks, self.env_index, strict=True))

    @cached_property
    def empty_environments(self) -> tuple[str, ...]:
        """Environments without tasks: a warning, never an error."""
        used = {task.env_id for task in self.tasks}
        return tuple(e.env_id for e in self.environments if e.env_id not in used)

    @cached_property
    def content_hash(self) -> str:
        """sha256 of everything in the pool, hexadecimal; independent of `source`."""
        digest = hashlib.sha256()
        records: tuple[Environment | Task, ...] = (*self.environments, *self.tasks)
        for record in records:
            digest.update(json.dumps(dataclasses.asdict(record), sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def _reject_duplicates(names: object, what: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]  # type: ignore[call-overload]
    if twice:
        raise PoolError(f"{what} {twice[0]!r} stands more than once ({len(twice)} such). Identities must be unique.")
