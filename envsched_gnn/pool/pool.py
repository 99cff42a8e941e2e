"""The pool: all environments and tasks that a scheduler may choose from.

Knows: identities, which task belongs to which environment, the content hash.
Does not know: file formats, execution, features.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    def row(self, key: str) -> int:
        """Row of `ENV_ID/TASK_ID`.

        Raises:
            PoolError: it is not in the pool.
        """
        row = self.index_of.get(key)
        if row is None:
            raise PoolError(f"task {key!r} is not in the pool {self.source}. Use one pool for scheduler and engine.")
        return row

    @cached_property
    def environment_of(self) -> dict[str, Environment]:
        """Environment of each env_id."""
        return {environment.env_id: environment for environment in self.environments}

    @cached_property
    def env_index(self) -> np.ndarray:
        """Row of each task's environment, [tasks] int64."""
        import numpy as np

        row = {e.env_id: i for i, e in enumerate(self.environments)}
        return np.array([row[task.env_id] for task in self.tasks], dtype=np.int64)

    @cached_property
    def reward_ranges(self) -> tuple[tuple[float, float], ...]:
        """[lo, hi] of each task: its own, else its environment's."""
        return tuple(task.reward_range_in(self.environments[e]) for task, e in zip(self.tasks, self.env_index, strict=True))

    @cached_property
    def empty_environments(self) -> tuple[str, ...]:
        """Environments without tasks: a warning, never an error."""
        used = {task.env_id for task in self.tasks}
        return tuple(e.env_id for e in self.environments if e.env_id not in used)

    @cached_property
    def content_hash(self) -> str:
        """sha256 of everything in the pool as canonical JSON, hexadecimal; independent of `source` and of the file format."""
        digest = hashlib.sha256()
        records: tuple[Environment | Task, ...] = (*self.environments, *self.tasks)
        for record in records:
            bounds = record.reward_range and tuple(map(float, record.reward_range))
            digest.update(_canonical({**vars(record), "reward_range": bounds}))
        return digest.hexdigest()


def _canonical(table: dict[str, Any]) -> bytes:
    """JSON with sorted keys in ASCII; nested records and mappings become objects, tuples lists."""
    try:
        return json.dumps(table, sort_keys=True, default=_object).encode("ascii")
    except TypeError as error:
        name = f"{table['env_id']}/{table['task_id']}" if "task_id" in table else table["env_id"]
        raise PoolError(
            f"{name}: holds what JSON cannot ({error}). Use objects with text keys, lists, text, numbers, booleans and null."
        ) from None


def _object(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {name: float(field) if isinstance(field, int) else field for name, field in vars(value).items()}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r:.80}")


def _reject_duplicates(names: Iterable[str], what: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise PoolError(f"{what} {twice[0]!r} stands more than once ({len(twice)} such). Identities must be unique.")
