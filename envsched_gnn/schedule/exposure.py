"""Exposure: the log of what was selected when.

Knows: the selected tasks of every round; counts of tasks and environments over all time, over a window and with half-life 8.
Does not know: rewards, what became of a group, why a task was selected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

HALF_LIFE = 8.0
"""Steps; half-life of the environment exposure n_e (ours, the long horizon of the paper)."""
FORGOTTEN = 64 * HALF_LIFE
"""Steps after which a selection weighs less than 2^-64 and is left out of n_e."""


class Exposure:
    """Selections by round. A round is a step at which tasks were selected, whatever became of their groups."""

    def __init__(self, env_index: np.ndarray, environments: int, device: torch.device | str = "cpu") -> None:
        self.env_index = env_index
        """[tasks] int64."""
        self.environments = environments
        self.sizes = np.bincount(env_index, minlength=environments)
        """Tasks of each environment, held out or not, [environments]."""
        self.rounds: list[int] = []
        """Steps of all rounds, ascending."""
        self.total = torch.zeros(len(env_index), dtype=torch.int64, device=device)
        """Selections of each task at any step, [tasks]."""
        self._log: dict[int, np.ndarray] = {}

    def to(self, device: torch.device | str) -> None:
        """Move the counts that scores are computed from."""
        self.total = self.total.to(device)

    def add(self, step: int, tasks: Sequence[int]) -> None:
        """`tasks` (rows) were selected at `step`, once each; an empty selection is a round too."""
        rows = np.asarray(tasks, dtype=np.int64)
        if step not in self._log:
            insort(self.rounds, step)
            self._log[step] = rows
        else:
            self._log[step] = np.concatenate([self._log[step], rows])
        on_device = torch.from_numpy(rows).to(self.total.device)
        self.total.scatter_add_(0, on_device, torch.ones_like(on_device))

    def at(self, step: int) -> np.ndarray:
        """Rows selected at `step`, in order."""
        return self._log.get(step, np.empty(0, dtype=np.int64))

    def num_selections(self, step: int) -> Int[Tensor, " tasks"]:
        """c_i: selections at `step` or before it; to be read, not kept: it may be the running count itself."""
        later = self.rounds[bisect_right(self.rounds, step) :]
        if not later:
            return self.total
        rows = torch.from_numpy(np.concatenate([self._log[s] for s in later])).to(self.total.device)
        return self.total.scatter_add(0, rows, -torch.ones_like(rows))

    def environment_density(self, step: int) -> Float[np.ndarray, " environments"]:
        """n_e = sum over selections of the environment at steps s < t of 2^(-(t-s)/8), per task of it; 0 where it has none."""
        recent = self.rounds[bisect_left(self.rounds, step - FORGOTTEN) : bisect_left(self.rounds, step)]
        if not recent:
            return np.zeros(self.environments)
        rows = [self._log[s] for s in recent]
        w = np.repeat(2.0 ** ((np.array(recent) - step) / HALF_LIFE), [len(r) for r in rows])
        mass = np.bincount(self.env_index[np.concatenate(rows)], weights=w, minlength=self.environments)
        return mass / np.maximum(self.sizes, 1)

    def rounds_before(self, step: int, count: int) -> list[int]:
        """The last `count` rounds before `step`."""
        end = bisect_left(self.rounds, step)
        return self.rounds[max(end - count, 0) : end]

    def environment_picks(self, steps: Sequence[int]) -> Int[np.ndarray, " environments"]:
        """Selections of each environment in the rounds `steps`."""
        rows = np.concatenate([self.at(s) for s in steps]) if len(steps) else np.empty(0, dtype=np.int64)
        return np.bincount(self.env_index[rows], minlength=self.environments)

    def repeated(self, step: int, consecutive: int) -> np.ndarray:
        """Rows selected in each of the last `consecutive` rounds before `step`; none while there were fewer rounds."""
        before = self.rounds_before(step, consecutive)
        if len(before) < consecutive:
            return np.empty(0, dtype=np.int64)
        rows = self._log[before[0]]
        for s in before[1:]:
            rows = np.intersect1d(rows, self._log[s])
        return np.unique(rows)

    def log(self) -> list[tuple[int, list[int]]]:
        """(step, rows in order) of every round, ascending."""
        return [(step, self._log[step].tolist()) for step in self.rounds]
