"""Evaluation: how well the policy does on tasks that it never trains on.

Knows: which tasks are held out and which of them are played, when an evaluation is due, its line of evaluations.jsonl.
Does not know: how a policy plays them, rounds, reports.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envsched_gnn.config_training import EvaluateConfig
from envsched_gnn.errors import HistoryError
from envsched_gnn.files import without_nan, write_atomic
from envsched_gnn.pool.pool import Pool
from envsched_gnn.train.loop import Line, append

Play = Callable[[Sequence[int], int], list[list[float | None]]]
"""(rows of the pool, samples) -> rewards [rows][samples] in the tasks' own ranges; None where a rollout failed. Nothing is learned."""

SOLVED = 1 - 1e-6
"""A rollout whose reward, mapped to [0, 1], reaches this has solved its task."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Rows of the pool that an evaluation plays."""

    tasks: tuple[int, ...]
    """Held-out tasks of environments that are trained on."""
    environments: tuple[int, ...]
    """Tasks of environments none of whose tasks is trained on."""


def held_out(pool: Pool, count: int) -> HeldOut:
    """`count` held-out tasks, half of them of held-out environments; where one half has fewer, the other has more (ours).

    Which ones follows from their identities alone, so that all runs on a pool are evaluated on the same tasks.
    """
    trained = {task.env_id for task in pool.tasks if not task.held_out}
    rows = sorted((row for row, task in enumerate(pool.tasks) if task.held_out and not task.taught), key=lambda row: _draw(pool.keys[row]))
    inside = [row for row in rows if pool.tasks[row].env_id in trained]
    outside = [row for row in rows if pool.tasks[row].env_id not in trained]
    half = max(count // 2, count - len(inside))
    outside = outside[:half]
    return HeldOut(tasks=tuple(inside[: count - len(outside)]), environments=tuple(outside))


def _draw(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Evaluations:
    """The evaluations of a run: which are due, and those done, in `evaluations.jsonl`.

    An evaluation is named by the number of rounds before it. It is due before the first round, every `config.every` rounds and after the
    last; with `every` 0 only after the last.
    """

    def __init__(self, path: Path, pool: Pool, config: EvaluateConfig, steps: int) -> None:
        """Reads what is done. `steps`: rounds of the run.

        Raises:
            HistoryError: a line is no JSON.
        """
        self._path, self._pool, self._config, self._steps = path, pool, config, steps
        self.held_out = held_out(pool, config.tasks)
        self._done = {line["step"] for line in read_evaluations(path)}

    @property
    def possible(self) -> bool:
        """Whether there is anything to evaluate on."""
        return bool(self.held_out.tasks or self.held_out.environments)

    def due(self, done: int) -> bool:
        """Whether one belongs after `done` rounds, be it there or not: a checkpoint is written before it."""
        every = self._config.every
        return self.possible and (done == self._steps or (every > 0 and done % every == 0))

    def missing(self, done: int) -> bool:
        """Whether one is due after `done` rounds and not there."""
        return self.due(done) and done not in self._done

    def cut(self, done: int) -> None:
        """Forget evaluations after more than `done` rounds: a resumed run plays those rounds again."""
        kept = [line for line in read_evaluations(self._path) if line["step"] <= done]
        self._done = {line["step"] for line in kept}
        write_atomic(self._path, b"".join(json.dumps(line).encode() + b"\n" for line in kept))

    def run(self, done: int, play: Play) -> Line:
        """Evaluate after `done` rounds, write the line and return it. If `play` raises, nothing is written."""
        rows = [*self.held_out.tasks, *self.held_out.environments]
        begin = time.perf_counter()
        rewards = play(rows, self._config.samples)
        seconds = round(time.perf_counter() - begin, 3)
        split = len(self.held_out.tasks)
        line = without_nan(
            {
                "step": done,
                "seconds": seconds,
                "samples": self._config.samples,
                "all": summary(self._pool, rows, rewards),
                "held_out_tasks": summary(self._pool, rows[:split], rewards[:split]),
                "held_out_environments": summary(self._pool, rows[split:], rewards[split:]),
            }
        )
        append(self._path, line)
        self._done.add(done)
        return line


def summary(pool: Pool, rows: Sequence[int], rewards: Sequence[Sequence[float | None]]) -> Line:
    """Figures of some tasks: `reward`, the mean over tasks of their mean reward mapped to [0, 1]; `solved`, the same of full rewards;
    `failed`, rollouts without a reward, which are left out; NaN where no task has any reward."""
    means, solved, failed = [], [], 0
    for row, values in zip(rows, rewards, strict=True):
        low, high = pool.reward_ranges[row]
        valid = np.array([(value - low) / (high - low) for value in values if value is not None and math.isfinite(value)])
        failed += len(values) - len(valid)
        if len(valid):
            means.append(float(valid.mean()))
            solved.append(float((valid >= SOLVED).mean()))
    nan = math.nan
    return {
        "tasks": len(rows),
        "reward": float(np.mean(means)) if means else nan,
        "solved": float(np.mean(solved)) if solved else nan,
        "failed": failed,
    }


def read_evaluations(path: Path) -> list[Line]:
    """The lines of an evaluations.jsonl, by step; a last line that a kill cut short is left out.

    Raises:
        HistoryError: another line is no JSON.
    """
    if not path.is_file():
        return []
    found: dict[int, Line] = {}
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
            found[line["step"]] = line
        except (ValueError, KeyError, TypeError):
            raise HistoryError(f"{path}, line {number}: not an evaluation; expected one JSON object each. Delete this line.") from None
    return [found[step] for step in sorted(found)]
