"""PCL-lite (after arXiv 2510.01135): a value head on frozen prompt vectors, trained online, picks where it expects a mean of 1/2.

Knows: how the head is trained, which candidates are taken.
Does not know: environments; whether rewards within a group differ. The source's value model is a language model; a ridge head is ours.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

CANDIDATES = 4
"""k, candidates of a batch, in batches (the source)."""
RIDGE = 1.0
"""Weight of the penalty (ours)."""
HALF_LIFE = 8.0
"""Rounds after which a group counts half: the policy moves (ours; the paper's long horizon)."""


class Pcl:
    """V(x) = 1/2 + x~ theta, x~ = (x, 1), theta the ridge fit of `mean - 1/2` to all groups so far, newer ones weighing more."""

    def __init__(self, embedding: Float[Tensor, "tasks d"]) -> None:
        """Vectors of any length and scale 1."""
        one = torch.ones((len(embedding), 1), dtype=torch.float64)
        self._x = torch.cat([embedding.to(torch.float64), one], 1)
        self.memory = self.start()

    def start(self) -> Memory:
        """`gram` [d+1, d+1] = sum w x~ x~^T; `moment` [d+1] = sum w x~ (mean - 1/2)."""
        d = self._x.shape[1]
        return Memory(shared={"gram": torch.zeros((d, d), dtype=torch.float64), "moment": torch.zeros(d, dtype=torch.float64)})

    def value(self, rows: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """V in [0, 1] of tasks: theta = (gram + I)^-1 moment."""
        gram, moment = self.memory.shared["gram"], self.memory.shared["moment"]
        theta = torch.linalg.solve(gram + RIDGE * torch.eye(len(moment), dtype=torch.float64), moment)
        return (0.5 + (self._x[rows] * theta).sum(1)).clamp(0, 1)

    def choose(self, ask: Ask) -> Plan:
        """The smallest |V - 1/2| of 4 batches of candidates."""
        among = ask.candidates(CANDIDATES * ask.count)
        return ask.best(-(self.value(ask.rows[among]) - 0.5).abs(), among)

    def learn(self, step: int, groups: Groups) -> None:
        """gram <- w gram + sum x~ x~^T,  moment <- w moment + sum x~ (mean - 1/2),  w = 2^(-1/8)."""
        x, shared = self._x[groups.rows], self.memory.shared
        w = 2 ** (-1 / HALF_LIFE)
        shared["gram"] = w * shared["gram"] + x.T @ x
        shared["moment"] = w * shared["moment"] + (x * (groups.mean - 0.5)[:, None]).sum(0)

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """The head of another pool's vectors starts anew: the default ones have other axes."""
        self.memory = memory if same_pool else self.start()

    def metrics(self) -> dict[str, float]:
        """Size of the moment: 0 before anything was learned."""
        return {"moment": float(self.memory.shared["moment"].norm())}
