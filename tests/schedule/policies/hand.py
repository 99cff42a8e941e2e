"""Small questions and answers for the rules, without a host."""

import torch

from envsched_gnn.history import ZERO_VARIANCE
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask

NOTHING = torch.zeros(0, dtype=torch.float64)


def groups(rewards_of):
    """{row: rewards in [0, 1]} as Groups."""
    rows = sorted(rewards_of)
    rewards = [torch.tensor(rewards_of[row], dtype=torch.float64) for row in rows]
    variance = torch.tensor([float(r.var(correction=0)) for r in rewards], dtype=torch.float64)
    return Groups(
        rows=torch.tensor(rows, dtype=torch.int64),
        num_rewards=torch.tensor([len(r) for r in rewards], dtype=torch.float64),
        mean=torch.tensor([float(r.mean()) for r in rewards], dtype=torch.float64),
        variance=torch.where(variance <= ZERO_VARIANCE, 0, variance),
        deviation=torch.tensor([float((r - r.mean()).abs().mean()) for r in rewards], dtype=torch.float64),
    )


def binary(successes, n=8):
    """Rewards of n rollouts."""
    return [1.0] * successes + [0.0] * (n - successes)


def ask(rows, count, *, step=0, trip=0, looked=None, seed=0):
    """A question about tasks whose identity is a number far from their row."""
    rows = torch.tensor(rows, dtype=torch.int64)
    return Ask(
        step=step,
        count=count,
        rows=rows,
        identity=identity_of(rows),
        seed=seed,
        trip=trip,
        looked=looked or groups({}),
    )


def identity_of(rows):
    return rows * 7919 + 13


def close(tensor, expected, tolerance=1e-12):
    torch.testing.assert_close(tensor.to(torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)
