"""Pilot-Commit (arXiv 2605.26606): a few rollouts of many tasks first, the rest only where these differ.

Knows: how many pilots, which tasks are kept, when to commit.
Does not know: other tasks, earlier steps.

A small version for groups of K = 8 (ours): 2 pilots, so the source's thresholds on the pilots' success mean nothing, and a task is kept if
its pilots differ; nothing is evicted; no buffer of older pilots, so all rollouts are on-policy.
"""

from __future__ import annotations

import torch

from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

PILOTS = 2
"""Rollouts of each pilot (ours; the source has 16 or 32 of 64 or 128)."""
WIDTH = 3
"""Tasks of a pilot trip, in batches (the source)."""
MAX_TRIPS = 10
"""Pilot trips of a step (the source)."""


class PilotCommit:
    """Pilots tasks in epochs until a batch of them shows variance, then commits to these."""

    def __init__(self, num_tasks: int, num_rollouts: int) -> None:
        """`num_rollouts`: K, pilots included."""
        self._num_tasks, self._num_rollouts = num_tasks, num_rollouts
        self.memory = self.start()

    def start(self) -> Memory:
        """`visits` [tasks]."""
        return Memory(tasks={"visits": torch.zeros(self._num_tasks, dtype=torch.int64)})

    def choose(self, ask: Ask) -> Plan:
        """More pilots while fewer than a batch differ and both tasks and trips are left; then the commit."""
        fresh = ~torch.isin(ask.rows, ask.looked.rows)
        short = int(ask.looked.mixed.sum()) < ask.count
        if short and ask.trip < MAX_TRIPS and bool(fresh.any()):
            return self._pilot(ask, fresh.nonzero().flatten())
        kept = (torch.isin(ask.rows, ask.looked.rows[ask.looked.mixed])).nonzero().flatten()
        variance = ask.looked.variance[torch.searchsorted(ask.looked.rows, ask.rows[kept])] if len(kept) else torch.zeros(0)
        plan = ask.best(variance, kept)
        return Plan(rows=plan.rows, score=plan.score, num_rollouts=self._num_rollouts - PILOTS)

    def _pilot(self, ask: Ask, fresh: torch.Tensor) -> Plan:
        rows = ask.rows[fresh]
        at = chance.in_epochs(self.memory.tasks["visits"][rows], ask.identity[fresh], ask.seed, WIDTH * ask.count)
        self.memory.tasks["visits"][rows[at]] += 1
        return Plan(rows=rows[at], score=torch.zeros(len(at)), phase="uniform", use="pilot", num_rollouts=PILOTS, more=True)

    def learn(self, step: int, groups: Groups) -> None:
        """Nothing: every step begins anew."""

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Nothing is derived."""
        self.memory = memory

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}
