"""DAPO's dynamic sampling (arXiv 2503.14476): draw, discard groups without variance, draw again until the batch is full. All are charged.

Knows: when to draw again.
Does not know: anything about tasks: it draws in epochs, as `Uniform` does. What is discarded is the driver's business (`Use` filter).
"""

from __future__ import annotations

import torch

from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

MAX_TRIPS = 10
"""Draws of a step (the default of its implementation in verl)."""


class Dapo:
    """Draws a batch, and another as long as fewer groups than a batch had variance."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self.memory = self.start()

    def start(self) -> Memory:
        """`visits` [tasks]."""
        return Memory(tasks={"visits": torch.zeros(self._num_tasks, dtype=torch.int64)})

    def choose(self, ask: Ask) -> Plan:
        """The next tasks of the epoch; none once a batch of this step's groups has variance, or after MAX_TRIPS draws."""
        full = int(ask.looked.mixed.sum()) >= ask.count or ask.trip >= MAX_TRIPS
        at = chance.in_epochs(self.memory.tasks["visits"][ask.rows], ask.identity, ask.seed, 0 if full else ask.count)
        rows = ask.rows[at]
        self.memory.tasks["visits"][rows] += 1
        return Plan(rows=rows, score=torch.zeros(len(rows)), phase="uniform", use="filter", more=len(rows) > 0)

    def learn(self, step: int, groups: Groups) -> None:
        """Nothing."""

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Nothing is derived."""
        self.memory = memory

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}
