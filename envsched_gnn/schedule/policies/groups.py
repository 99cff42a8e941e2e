"""What the groups of a round say, as tensors.

Knows: statistics of groups with at least two rewards, how two groups of one task make one.
Does not know: identities, rules, what is in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envsched_gnn.history import RANGE_TOLERANCE, ZERO_VARIANCE
from envsched_gnn.ops import segment_sum
from envsched_gnn.records import Use


class Report(NamedTuple):
    """A group that has come back and was not learned from yet."""

    row: int
    step: int
    use: Use
    num_rollouts: int
    """All, failed ones included."""
    num_rewards: int
    mean: float
    variance: float
    deviation: float


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of a round, a task at most once; rewards are mapped to [0, 1] by their task's range, failed rollouts left out."""

    rows: Int[Tensor, " groups"]
    """Ascending."""
    num_rewards: Float[Tensor, " groups"]
    """At least 2."""
    mean: Float[Tensor, " groups"]
    variance: Float[Tensor, " groups"]
    """Population variance."""
    deviation: Float[Tensor, " groups"]
    """Mean of |reward - mean|: the mean absolute advantage before any division."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def mixed(self) -> Bool[Tensor, " groups"]:
        """Whether the rewards differ: what a mixed group is, for binary rewards and for fractional ones."""
        return self.variance > ZERO_VARIANCE


def groups_of(reports: Iterable[Report]) -> Groups:
    """The observed reports, by row. Several groups of a task are pooled to one of all their rewards.

    n = sum n_g;  mean = sum n_g mean_g / n;  variance = sum n_g (variance_g + mean_g^2) / n - mean^2

    The deviation of a pooled group is the mean of its parts' deviations, weighted by n_g: it misses what lies between them.
    """
    observed = sorted((r for r in reports if r.num_rewards >= 2), key=lambda r: (r.row, r.step))
    columns = torch.tensor([(r.num_rewards, r.mean, r.variance, r.deviation) for r in observed], dtype=torch.float64).reshape(-1, 4).T
    n, mean, variance, deviation = columns
    rows, at = torch.unique(torch.tensor([r.row for r in observed], dtype=torch.int64), return_inverse=True)
    if len(rows) < len(observed):
        sums = segment_sum(torch.stack([n, n * mean, n * (variance + mean.square()), n * deviation]), at, len(rows))
        n, (mean, square, deviation) = sums[0], sums[1:] / sums[0]
        variance = (square - mean.square()).clamp(min=0)
    return Groups(rows=rows, num_rewards=n, mean=mean, variance=variance, deviation=deviation)


def mean_deviation(rewards: Sequence[float | None], low: float, high: float) -> float:
    """Mean of |r - mean(r)| over the rewards that count, r = (reward - low) / (high - low); 0 without any."""
    r = [(reward - low) / (high - low) for reward in rewards if reward is not None]
    inside = [min(max(x, 0.0), 1.0) for x in r if -RANGE_TOLERANCE <= x <= 1 + RANGE_TOLERANCE]
    mean = sum(inside) / max(len(inside), 1)
    return sum(abs(x - mean) for x in inside) / max(len(inside), 1)


def num_trained(new: Report, earlier: Sequence[Report], size: int) -> int:
    """Rollouts that the policy learns from now that `new` has come: see `Use`. `size`: groups of a batch."""
    same = [report for report in earlier if report.step == new.step]
    match new.use:
        case "train":
            return new.num_rollouts + sum(r.num_rollouts for r in same if r.use == "pilot" and r.row == new.row)
        case "filter":
            kept = sum(r.use == "filter" and r.variance > ZERO_VARIANCE for r in same)
            return new.num_rollouts if new.variance > ZERO_VARIANCE and kept < size else 0
        case "pilot" | "reference":
            return 0
