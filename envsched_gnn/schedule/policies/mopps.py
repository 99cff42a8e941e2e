"""MoPPS (arXiv 2507.04632): a Beta belief about each task's success, Thompson sampling toward 1/2.

Knows: the update and the choice of the released code.
Does not know: other tasks; whether rewards within a group differ: only their mean counts, for fractional rewards as in the source.
"""

from __future__ import annotations

import torch

from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

DECAY = 0.5
"""lambda, of two of the three released settings; the third has 1 (the source)."""
CANDIDATES = 16
"""Candidates of a batch, in batches (the source)."""


class Mopps:
    """Draws p ~ Beta(a, b) for some candidates, and picks those of smallest (p - 1/2)^2."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self.memory = self.start()

    def start(self) -> Memory:
        """`a`, `b` [tasks]: Beta(1, 1)."""
        return Memory(tasks={name: torch.ones(self._num_tasks, dtype=torch.float64) for name in ("a", "b")})

    def choose(self, ask: Ask) -> Plan:
        """Thompson sampling among 16 batches of candidates."""
        among = ask.candidates(CANDIDATES * ask.count)
        rows = ask.rows[among]
        p = chance.beta(self.memory.tasks["a"][rows], self.memory.tasks["b"][rows], ask.draws(chance.THOMPSON)[among])
        return ask.best(-(p - 0.5).square(), among)

    def learn(self, step: int, groups: Groups) -> None:
        """a <- lambda a + (1-lambda) + K m,  b <- lambda b + (1-lambda) + K (1-m), of the observed tasks."""
        successes = groups.num_rewards * groups.mean
        for name, count in (("a", successes), ("b", groups.num_rewards - successes)):
            table = self.memory.tasks[name]
            table[groups.rows] = DECAY * table[groups.rows] + (1 - DECAY) + count

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Nothing is derived."""
        self.memory = memory

    def metrics(self) -> dict[str, float]:
        """Mean expected success."""
        a, b = self.memory.tasks["a"], self.memory.tasks["b"]
        return {"success": float((a / (a + b)).mean())}
