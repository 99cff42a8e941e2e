"""Dynamics-Predictive Sampling (arXiv 2603.10887): a hidden Markov model of each task, top P(mixed).

Knows: the filter of the paper's released code; which state a fractional group shows (ours).
Does not know: other tasks. Nothing is shared between tasks or environments.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

NONE, MIXED, ALL = 0, 1, 2
"""States: all rewards low, different rewards, all rewards high."""
DECAY = 0.5
"""lambda, of two of the three released scripts; the third has 0.7 (the source)."""
PRIOR = 1.0
"""alpha0 (the source)."""


def normalised(alpha: Float[Tensor, "tasks to from"]) -> Float[Tensor, "tasks to from"]:
    """Transition probabilities: columns that add up to 1."""
    return alpha / alpha.sum(1, keepdim=True)


class Dps:
    """Picks the tasks of largest predicted chance to be mixed. The candidates are the whole pool (ours: it costs nothing)."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self.memory = self.start()

    def start(self) -> Memory:
        """`alpha` [tasks, to, from] pseudo-counts of transitions; `belief` [tasks, 3] of the next group; `before` of the one before it."""
        third = torch.full((self._num_tasks, 3), 1 / 3, dtype=torch.float64)
        alpha = torch.full((self._num_tasks, 3, 3), PRIOR, dtype=torch.float64)
        return Memory(tasks={"alpha": alpha, "belief": third, "before": third.clone()})

    def choose(self, ask: Ask) -> Plan:
        """The largest belief in `mixed`."""
        return ask.best(self.memory.tasks["belief"][ask.rows, MIXED])

    def learn(self, step: int, groups: Groups) -> None:
        """One step of the filter for all tasks.

            observed:    post = one-hot(z);  xi = (post before^T) * P / sum, P = normalised(alpha)
            unobserved:  post = belief;      xi = 0
            alpha <- lambda alpha + (1-lambda) alpha0 + xi;  belief <- normalised(alpha) post;  before <- post

        z is mixed if the variance is above 0, else `none` below a mean of 1/2 and `all` from there on (ours, for fractional rewards).
        """
        tables, rows = self.memory.tasks, groups.rows
        state = torch.where(groups.mixed, MIXED, torch.where(groups.mean < 0.5, NONE, ALL))
        post = tables["belief"].clone()
        post[rows] = torch.nn.functional.one_hot(state, 3).to(post.dtype)
        xi = post[rows][:, :, None] * tables["before"][rows][:, None, :] * normalised(tables["alpha"][rows])
        alpha = tables["alpha"] * DECAY + (1 - DECAY) * PRIOR
        alpha[rows] += xi / xi.sum((1, 2), keepdim=True)
        belief = (normalised(alpha) * post[:, None, :]).sum(2)
        tables |= {"alpha": alpha, "belief": belief, "before": post}

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Nothing is derived."""
        self.memory = memory

    def metrics(self) -> dict[str, float]:
        """Mean predicted chance to be mixed."""
        return {"p_mixed": float(self.memory.tasks["belief"][:, MIXED].mean())}
