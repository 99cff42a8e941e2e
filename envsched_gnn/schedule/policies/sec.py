"""SEC (arXiv 2505.14970): a bandit over categories; here the category is the environment.

Knows: how an environment's value follows its groups' advantages.
Does not know: tasks: inside an environment they are drawn uniformly.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from envsched_gnn.schedule.policies.arms import by_environment, draw, mean_advantage
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

RATE = 0.1
"""alpha, of an independent implementation; the paper's is not known to us."""
TEMPERATURE = 1.0
"""tau, the same."""


class Sec:
    """P(environment) = softmax(Q / tau)."""

    def __init__(self, env_index: Int[Tensor, " tasks"], environments: int) -> None:
        self._env_index, self._environments = env_index, environments
        self.memory = self.start()

    def start(self) -> Memory:
        """`value` [environments]: Q = 0."""
        return Memory(environments={"value": torch.zeros(self._environments, dtype=torch.float64)})

    def choose(self, ask: Ask) -> Plan:
        """Environments by softmax(Q / tau), tasks uniformly in them."""
        return draw(ask, self.memory.environments["value"] / TEMPERATURE, self._env_index)

    def learn(self, step: int, groups: Groups) -> None:
        """Q <- (1-alpha) Q + alpha r, r = mean |advantage| of the environment's groups of this round; others keep theirs."""
        r, count = by_environment(mean_advantage(groups), self._env_index[groups.rows], self._environments)
        value = self.memory.environments["value"]
        self.memory.environments["value"] = torch.where(count > 0, (1 - RATE) * value + RATE * r, value)

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Nothing is derived."""
        self.memory = memory

    def metrics(self) -> dict[str, float]:
        """Mean and largest value of an environment."""
        value = self.memory.environments["value"]
        return {"value_mean": float(value.mean()), "value_max": float(value.max())}
