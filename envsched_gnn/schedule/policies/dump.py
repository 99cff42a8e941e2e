"""DUMP (arXiv 2504.09710): upper confidence bounds over distributions; here a distribution is an environment.

Knows: the window of advantages, the bound, the softmax over bounds.
Does not know: tasks: inside an environment they are drawn uniformly. Constants are from memory of the paper, not checked.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.schedule.policies.arms import draw, mean_advantage
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

WINDOW = 300
"""Latest groups of an environment that its mean advantage is taken of (from memory)."""
TEMPERATURE = 0.1
"""Of the softmax over bounds (from memory)."""


class Dump:
    """P(environment) = softmax(UCB / 0.1)."""

    def __init__(self, env_index: Int[Tensor, " tasks"], environments: int) -> None:
        self._env_index, self._environments = env_index, environments
        self.memory = self.start()

    def start(self) -> Memory:
        """`window` [environments, 300] of mean |advantage|, oldest overwritten; `count` [environments] of groups."""
        window = torch.zeros((self._environments, WINDOW), dtype=torch.float64)
        return Memory(environments={"window": window, "count": torch.zeros(self._environments, dtype=torch.int64)})

    def bounds(self) -> Float[Tensor, " environments"]:
        """UCB_e = mean |A|_e over the window + sqrt(2 ln(n + 1) / (n_e + 1)), n = sum of n_e, the groups so far."""
        window, count = self.memory.environments["window"], self.memory.environments["count"]
        mean = window.sum(1) / count.clamp(1, WINDOW)
        return mean + (2 * math.log(int(count.sum()) + 1) / (count + 1).to(mean.dtype)).sqrt()

    def choose(self, ask: Ask) -> Plan:
        """Environments by softmax(UCB / 0.1), tasks uniformly in them."""
        return draw(ask, self.bounds() / TEMPERATURE, self._env_index)

    def learn(self, step: int, groups: Groups) -> None:
        """Write each group's mean |advantage| into the window of its environment, in the order of tasks."""
        window, count = self.memory.environments["window"], self.memory.environments["count"]
        env, order = self._env_index[groups.rows].sort(stable=True)
        number = torch.bincount(env, minlength=self._environments)
        place = torch.arange(len(env)) - (number.cumsum(0) - number)[env]
        latest = place >= number[env] - WINDOW
        window[env[latest], ((count[env] + place) % WINDOW)[latest]] = mean_advantage(groups)[order][latest]
        count += number

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Nothing is derived."""
        self.memory = memory

    def metrics(self) -> dict[str, float]:
        """Mean and largest bound."""
        bounds = self.bounds()
        return {"bound_mean": float(bounds.mean()), "bound_max": float(bounds.max())}
