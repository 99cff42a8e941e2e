"""Chance without a state: a pure function of seed, step and identity, so that there is nothing to save, and task order does not matter.

Knows: uniform, Gumbel and Beta draws, orders.
Does not know: what is drawn.
"""

from __future__ import annotations

import scipy.special
import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.schedule.greedy import SCALE
from envsched_gnn.schedule.keys import mix64, task_keys

CANDIDATES, THOMPSON, GUMBEL, SKIP = 1, 2, 3, 4
"""Streams: numbers of different purpose are independent."""


def everyone(n: int) -> Int[Tensor, " n"]:
    """All positions."""
    return torch.arange(n)


def draws(identity: Int[Tensor, " n"], seed: int, step: int, stream: int) -> Float[Tensor, " n"]:
    """u = (top 53 bits of mix64(key xor mix64(stream)) + 1/2) / 2^53, key as in `task_keys`; float64 in (0, 1)."""
    salt = mix64(torch.tensor([stream], device=identity.device))
    bits = (mix64(task_keys(identity, seed, step) ^ salt) >> 11) & (2**53 - 1)
    return (bits.to(torch.float64) + 0.5) / 2**53


def gumbel(u: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """-log(-log u). The n largest of `log w + gumbel` are n draws without replacement, each with a chance proportional to w."""
    return -(-u.log()).log()


def beta(a: Float[Tensor, " n"], b: Float[Tensor, " n"], u: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Draws of Beta(a, b), by its quantile function at u."""
    return torch.from_numpy(scipy.special.betaincinv(a.numpy(), b.numpy(), u.numpy()))


def ranked(score: Float[Tensor, " n"], key: Int[Tensor, " n"], count: int) -> Int[Tensor, " m"]:
    """Positions of the first `count` by descending round(score 2^32), as in the scheduler's own pass, ties by descending key."""
    whole = torch.round(score.to(torch.float64) * SCALE).to(torch.int64)
    at = everyone(len(whole))
    if 0 < count < len(whole):
        at = (whole >= whole.topk(count).values[-1]).nonzero().flatten()
    at = at[torch.argsort(key[at], descending=True)]
    return at[torch.argsort(whole[at], descending=True, stable=True)][:count]


def in_epochs(visits: Int[Tensor, " n"], identity: Int[Tensor, " n"], seed: int, count: int) -> Int[Tensor, " m"]:
    """Positions of the first `count`: tasks visited least often first, in the order of a key that is drawn anew for each epoch."""
    chosen = everyone(0)
    for epoch in torch.unique(visits).tolist():
        if len(chosen) >= count:
            break
        at = (visits == epoch).nonzero().flatten()
        order = task_keys(identity[at], seed, epoch).topk(min(count - len(chosen), len(at))).indices
        chosen = torch.cat([chosen, at[order]])
    return chosen
