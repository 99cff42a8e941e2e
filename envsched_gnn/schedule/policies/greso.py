"""GRESO's skip rule (arXiv 2506.02177): tasks without variance on their last visits are skipped with growing probability.

Knows: streaks, skip probabilities and how they are steered.
Does not know: other tasks. No refill (ours: one slot a pick, so that it costs what the others cost).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

EASY, HARD = 0, 1
P_START, P_STEP, P_LOW, P_HIGH = 0.5, 0.01, 0.05, 0.95
"""p of both kinds at first, by how much it moves, its bounds (the source)."""
TARGET = (0.25 / 3, 0.25 * 2 / 3)
"""Share of easy and of hard groups that is aimed at (the source)."""
LEAST = 0.01
"""Smallest chance of a visit (the source)."""


class Greso:
    """Goes through the tasks in epochs, and passes some over: `P(skip) = 1 - max(p^z, 0.01)`, z visits in a row without variance."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self.memory = self.start()

    def start(self) -> Memory:
        """`visits`, `streak` z, `kind` of the streak [tasks]; `p` [easy, hard]."""
        names = ("visits", "streak", "kind")
        tasks = {name: torch.zeros(self._num_tasks, dtype=torch.int64) for name in names}
        return Memory(tasks=tasks, shared={"p": torch.full((2,), P_START, dtype=torch.float64)})

    def keep_probability(self, rows: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """max(p^z, 0.01), p that of the kind of the streak."""
        p = self.memory.shared["p"][self.memory.tasks["kind"][rows]]
        return (p ** self.memory.tasks["streak"][rows]).clamp(min=LEAST)

    def choose(self, ask: Ask) -> Plan:
        """The first tasks of the epoch that are not skipped; those passed over count as visited. Skipped ones fill a short batch."""
        tables = self.memory.tasks
        order = chance.in_epochs(tables["visits"][ask.rows], ask.identity, ask.seed, len(ask.rows))
        rows = ask.rows[order]
        keep = self.keep_probability(rows)
        taken = ask.draws(chance.SKIP)[order] < keep
        chosen = torch.cat([taken.nonzero().flatten(), (~taken).nonzero().flatten()])[: ask.count]
        passed = self._passed(taken, chosen, ask.count)
        tables["visits"][rows[passed]] += 1
        return Plan(rows=rows[chosen], score=keep[chosen], phase="uniform")

    @staticmethod
    def _passed(taken: Bool[Tensor, " n"], chosen: Int[Tensor, " m"], count: int) -> Bool[Tensor, " n"]:
        """Everything up to the last one chosen, or all if the batch had to be filled up."""
        if int(taken.sum()) < count:
            return torch.ones_like(taken)
        return torch.arange(len(taken)) <= (int(chosen.max()) if len(chosen) else -1)

    def learn(self, step: int, groups: Groups) -> None:
        """Streaks of the observed tasks; then p <- p - 0.01 if the share of easy (hard) groups reaches its target, else p + 0.01.

        A group without variance is easy from a mean of 1/2 on, else hard (ours, for fractional rewards; the source has 0.98 and 0.11).
        p is steered from the second epoch on (the source).
        """
        tables, rows, p = self.memory.tasks, groups.rows, self.memory.shared["p"]
        kind = torch.where(groups.mean >= 0.5, EASY, HARD)
        same = (tables["kind"][rows] == kind) & (tables["streak"][rows] > 0)
        tables["streak"][rows] = torch.where(groups.mixed, 0, torch.where(same, tables["streak"][rows] + 1, 1))
        tables["kind"][rows] = kind
        if len(rows) and int(tables["visits"].max()) > 1:
            for which, target in zip((EASY, HARD), TARGET, strict=True):
                share = float((~groups.mixed & (kind == which)).double().mean())
                p[which] = (p[which] + (-P_STEP if share >= target else P_STEP)).clamp(P_LOW, P_HIGH)

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Nothing is derived."""
        self.memory = memory

    def metrics(self) -> dict[str, float]:
        """p of both kinds, and the share of tasks with a streak."""
        p = self.memory.shared["p"].tolist()
        return {"p_easy": p[EASY], "p_hard": p[HARD], "streak_share": float((self.memory.tasks["streak"] > 0).double().mean())}
