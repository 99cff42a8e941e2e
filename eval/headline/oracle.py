"""The oracle: it knows how likely each task's next group has variance, from rollouts of the current policy that nobody charges.

Knows: the estimate, when it is made anew, how it ranks tasks.
Does not know: quotas and penalty, which are the scheduler's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import SelectConfig
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Evidence, Prediction
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.greedy import Choice, GreedyPass, PhaseScore
from envsched_gnn.schedule.keys import task_keys

REFRESH = 4
"""Steps between two estimates (the experiment's protocol)."""
SAMPLES = 16
"""Rollouts of each training task in an estimate (the same)."""
GRID = 0.05
"""Estimates closer than this are equal (the same)."""

Play = Callable[[Sequence[int], int], list[list[float | None]]]
"""(rows of tasks, rollouts of each) -> their rewards."""


@runtime_checkable
class Looking(Protocol):
    """What a scheduler has that is told the truth."""

    def look(self, step: int, play: Play) -> None:
        """Estimate anew where that is due."""
        ...


def informative_probability(rewards: Sequence[float | None], group: int) -> float:
    """Chance that `group` of these rewards, drawn without replacement, are not all equal: `1 - sum_r C(n_r, group) / C(n, group)`.

    n_r rewards are r, n in all. 0 where there are fewer than `group`.
    """
    valid = [reward for reward in rewards if reward is not None]
    if len(valid) < group:
        return 0.0
    equal = sum(math.comb(count, group) for count in Counter(valid).values())
    return 1 - equal / math.comb(len(valid), group)


def solvable(pool: Pool, row: int) -> bool:
    """Whether any reward but 0 can come. A task of ToolWorld without gold calls cannot be solved, and binary rewards are all or none."""
    task = pool.tasks[row]
    return pool.source != "toolworld" or bool(task.ground_truth) or task.info.get("reward") != "binary"


class Oracle(EnvSched):
    """`EnvSched` whose score is the estimated chance of variance alone: no coverage share, no prediction; the same quotas and penalty."""

    def __init__(self, pool: Pool, graph: HeteroData, *, seed: int, select: SelectConfig, num_rollouts: int) -> None:
        super().__init__(pool, graph, seed=seed, select=select)
        self._rows = [row for row, task in enumerate(pool.tasks) if not task.held_out]
        self._num_rollouts = num_rollouts
        self.chances = torch.zeros(len(pool.tasks), dtype=torch.float64)
        """Of variance, as last estimated [tasks]; 0 where nobody looked."""

    def look(self, step: int, play: Play) -> None:
        """Estimate anew at every REFRESH-th step."""
        if step % REFRESH == 0:
            chances = [informative_probability(rewards, self._num_rollouts) for rewards in play(self._rows, SAMPLES)]
            self.chances[self._rows] = torch.tensor(chances, dtype=torch.float64)

    def _choose(self, step: int, n: int, evidence: Evidence, prediction: Prediction) -> list[Choice]:
        store = self.graph["task"]

        def key(rows: Tensor) -> Tensor:
            return task_keys(store.identity[rows], self.seed, step)

        return GreedyPass(
            [PhaseScore(phase="exploitation", base=(self.chances / GRID).round() * GRID, count=n)],
            eligible=self._eligible(step),
            ties=(key, key),
            env_index=store.env_index,
            quotas=self.quotas(step),
            redundancy=self.redundancy,
            earlier=self.book.exposure.at(step).tolist(),
        ).choose()

    def state_dict(self) -> dict[str, Any]:
        """Also the estimates."""
        return {**super().state_dict(), "score": self.chances.tolist()}

    def load_state_dict(self, saved: Any) -> Any:
        """Restore what `state_dict` gave."""
        self.chances = torch.tensor(saved["score"], dtype=torch.float64)
        return super().load_state_dict({name: value for name, value in saved.items() if name != "score"})
