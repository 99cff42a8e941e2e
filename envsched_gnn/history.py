"""What the observed groups say: statistics of a group, and the decayed, centred evidence of every task.

Knows: group statistics, half-lives, references, effective weights. Rows are task indices.
Does not know: identities, neighbours, predictions, which groups are still in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envsched_gnn.errors import HistoryError
from envsched_gnn.ops import segment_sum
from envsched_gnn.records import Evidence

STATS = ("variance", "mean", "dispersion")
"""Order of the dimension `stats`."""
ZERO_VARIANCE = 1e-12
"""Normalised variance up to which all rewards count as equal (ours): float noise of graded rewards."""
RANGE_TOLERANCE = 1e-9
"""A reward may leave its range by this share of the range's width; it is clamped (ours)."""
DISPERSION_FLOOR = 0.01
"""Smallest m(1-m) that a variance is divided by (paper)."""
NO_REFERENCE = (0.05, 0.5, 0.25)
"""References (v, m, d) before any observation (ours)."""
NO_LEVEL = 0.5
"""Level l before any observation (ours)."""
UPPER = (0.25, 1.0, 1.0)
"""Largest possible v, m, d of rewards in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class GroupStatistics:
    """Statistics of a batch of groups, in the order given."""

    variance: Float[Tensor, " groups"]
    """v, population variance of the normalised valid rewards; 0 where not observed."""
    mean: Float[Tensor, " groups"]
    """m."""
    dispersion: Float[Tensor, " groups"]
    """d."""
    observed: Bool[Tensor, " groups"]
    """At least two valid rewards: the group is an observation."""
    num_valid: Int[Tensor, " groups"]
    """Valid rewards of each group."""
    rejected: tuple[tuple[int, int, float], ...]
    """(group, rollout, raw reward) of every reward that was infinite or out of its range; masked."""

    def at(self, which: Int[Tensor, " n"] | Bool[Tensor, " groups"] | slice) -> GroupStatistics:
        """The statistics of some of the groups, in that order; `rejected` is left out, since its numbers would be those of all groups."""
        return GroupStatistics(
            variance=self.variance[which],
            mean=self.mean[which],
            dispersion=self.dispersion[which],
            observed=self.observed[which],
            num_valid=self.num_valid[which],
            rejected=(),
        )


def group_statistics(
    rewards: Sequence[Sequence[float | None]], low: Sequence[float] | Tensor, high: Sequence[float] | Tensor
) -> GroupStatistics:
    """Statistics of ragged groups of raw rewards in [low, high] (float64, CPU).

        r = (reward - low) / (high - low);  m = mean(r);  v = mean((r - m)^2);  d = clip_[0,1](v / max(m(1-m), 0.01))   (paper; range ours)

    None and NaN are masked rollouts. Infinite or out-of-range rewards are masked and listed in `rejected`.

    Raises:
        HistoryError: a range is empty or not finite.
    """
    low, high = (torch.as_tensor(bound, dtype=torch.float64).cpu()[:, None] for bound in (low, high))
    width = high - low
    if not bool(((width > 0) & width.isfinite()).all()):
        at = int((~((width > 0) & width.isfinite())).nonzero()[0, 0])
        raise HistoryError(
            f"reward range [{float(low[at])}, {float(high[at])}] of group {at} is empty. Give lowest < highest, both finite."
        )
    raw = _padded(rewards)
    r = (raw - low) / width
    inside = (r >= -RANGE_TOLERANCE) & (r <= 1 + RANGE_TOLERANCE)
    rejected = (~inside & ~raw.isnan()).nonzero().tolist()
    count = inside.sum(1)
    observed = count >= 2
    r = torch.where(inside, r.clamp(0, 1), 0)
    m = r.sum(1) / count.clamp(min=1)
    v = (torch.where(inside, r - m[:, None], 0) ** 2).sum(1) / count.clamp(min=1)
    v = torch.where(v <= ZERO_VARIANCE, 0, v)
    d = (v / (m * (1 - m)).clamp(min=DISPERSION_FLOOR)).clamp(0, 1)
    v, m, d = (torch.where(observed, y, 0) for y in (v, m, d))
    faults = tuple((group, rollout, float(raw[group, rollout])) for group, rollout in rejected)
    return GroupStatistics(variance=v, mean=m, dispersion=d, observed=observed, num_valid=count, rejected=faults)


def informative(variance: Float[Tensor, " n"], v_floor: float) -> Bool[Tensor, " n"]:
    """`z = 1[v > v_floor]`, by more than rounding noise: a variance that equals the floor is not above it (ours)."""
    return variance > v_floor + ZERO_VARIANCE


def _padded(rewards: Sequence[Sequence[float | None]]) -> Float[Tensor, "groups rollouts"]:
    """Ragged rewards as one matrix; missing ones are NaN."""
    width = max((len(group) for group in rewards), default=0)
    nan = float("nan")
    rows = [[nan if r is None else float(r) for r in group] + [nan] * (width - len(group)) for group in rewards]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), width)


class History:
    """A flat log of observations. Evidence re-sums it: the clip depends on the current reference, so running sums would not be exact."""

    def __init__(
        self,
        num_tasks: int,
        *,
        half_life_long: float = 8.0,
        half_life_short: float = 2.0,
        half_life_informative: float = 200.0,
        v_floor: float = 1e-6,
        power: float | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Half-lives count steps; `half_life_informative` is max(200, 5 N/B) in preset `default`.

        `power` is that of v in `Evidence.size`; None: nobody asks for it.
        """
        self.num_tasks = num_tasks
        self.half_lives = (half_life_long, half_life_short, half_life_informative)
        self.v_floor, self.power = v_floor, power
        self._device = torch.device(device)
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._tasks, self._steps, self._row, self._round = torch.empty((4, 0), dtype=torch.int64, device=self._device).unbind()
        self._values = torch.empty((3, 0), dtype=torch.float64, device=self._device)
        # Tasks and steps are numbered as they appear, so that reading the evidence sorts nothing.
        self._observed = torch.empty(0, dtype=torch.int64, device=self._device)
        self._row_of_task = torch.full((self.num_tasks,), -1, dtype=torch.int64, device=self._device)
        self._round_of_step: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def device(self) -> torch.device:
        """Where the log lies."""
        return self._device

    @property
    def tasks(self) -> Int[Tensor, " observations"]:
        """Task row of each observation, in order of arrival."""
        return self._tasks[: self._count]

    @property
    def steps(self) -> Int[Tensor, " observations"]:
        """Step of the selection of each observation."""
        return self._steps[: self._count]

    @property
    def values(self) -> Float[Tensor, "stats observations"]:
        """(v, m, d) of each observation."""
        return self._values[:, : self._count]

    def to(self, device: torch.device | str) -> History:
        """Move the log; returns self."""
        state = self.state_dict()
        self._device = torch.device(device)
        self.load_state_dict(state)
        return self

    def add(self, tasks: Tensor, steps: Tensor, variance: Tensor, mean: Tensor, dispersion: Tensor) -> None:
        """Append observations, all `[n]`; `steps` are those of the selections. The caller never reports a group twice."""
        end = self._count + tasks.numel()
        if end > self._tasks.numel():
            self._grow(max(end, 2 * self._tasks.numel(), 1024))
        new, tasks = slice(self._count, end), tasks.to(self._device)
        self._tasks[new], self._steps[new] = tasks, steps.to(self._device)
        self._row[new], self._round[new] = self._rows(tasks), self._rounds(steps)
        for stat, y in enumerate((variance, mean, dispersion)):
            self._values[stat, new] = y.to(self._device, torch.float64)
        self._count = end

    def _rows(self, tasks: Tensor) -> Tensor:
        first = torch.unique(tasks[self._row_of_task[tasks] < 0])
        self._row_of_task[first] = torch.arange(len(self._observed), len(self._observed) + len(first), device=self._device)
        self._observed = torch.cat([self._observed, first])
        return self._row_of_task[tasks]

    def _rounds(self, steps: Tensor) -> Tensor:
        distinct, at = torch.unique(steps, return_inverse=True)
        numbers = [self._round_of_step.setdefault(step, len(self._round_of_step)) for step in distinct.tolist()]
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)[at.to(self._device)]

    def _grow(self, capacity: int) -> None:
        extra = capacity - self._tasks.numel()
        self._tasks, self._steps, self._row, self._round, self._values = (
            torch.nn.functional.pad(log, (0, extra)) for log in (self._tasks, self._steps, self._row, self._round, self._values)
        )

    def evidence(self, step: int) -> Evidence:
        """What the groups selected before `step` say (paper; details and levels ours).

            w = 2^(-(t-s)/h);  mu_y(s) = mean of y over the groups of step s;  ref_y = sum_s w n_s mu_y(s) / sum_s w n_s
            W_i = sum_s w;  own_y(i) = sum_s w clip(y_is - mu_y(s) + ref_y) / W_i

        Weights are summed relative to the latest step, so that neither references nor estimates underflow.
        """
        latest = max((s for s in self._round_of_step if s < step), default=None)
        if latest is None:
            return self._nothing()
        rounds = torch.tensor(list(self._round_of_step), dtype=torch.float64, device=self._device)
        half_lives = torch.tensor(self.half_lives, dtype=torch.float64, device=self._device)[:, None]
        w_round = torch.exp2((rounds - latest) / half_lives).masked_fill_(rounds >= step, 0)
        values, at, row = self.values, self._round[: self._count], self._row[: self._count]
        z = informative(values[0], self.v_floor).to(torch.float64)
        first = self._is_first().to(torch.float64)
        totals = segment_sum(torch.cat([torch.stack([torch.ones_like(z), z, first, first * z]), values]), at, rounds.numel())
        n, mu = totals[0], totals[4:] / totals[0]
        # A resumed run must repeat every bit: sums in the order of steps, whatever the order of arrival, and no matrix products, whose last
        # bit depends on where in memory they lie.
        by_step = rounds.argsort()
        w_groups = (w_round[:2] * n)[:, by_step]
        reference = (w_groups[:, None] * mu[:, by_step]).sum(2) / w_groups.sum(1)[:, None]
        upper = torch.tensor(UPPER, dtype=torch.float64, device=self._device)[:, None]
        centred = ((values - mu.index_select(1, at)) + reference[:, :, None]).clamp_(min=0).minimum(upper)
        w = w_round.index_select(1, at)
        terms = torch.cat([w, (w[:2, None] * centred).flatten(0, 1), (w[2] * z)[None]])
        sums = segment_sum(terms, row, len(self._observed))
        levels = self._levels(totals[:4, by_step], rounds[by_step], step)
        found = self._evidence(self._dense(sums, torch.exp2((latest - step) / half_lives)), reference, *levels)
        if self.power is None:
            return found
        return self._with_sizes(found, torch.stack([z, z * values[0] ** self.power]), w_round, by_step)

    def _is_first(self) -> Bool[Tensor, " observations"]:
        """Whether a group is the first of its task: of the earliest step, whatever came in first."""
        earliest = torch.full_like(self._observed, torch.iinfo(torch.int64).max)
        earliest.scatter_reduce_(0, self._row[: self._count], self.steps, "amin")
        return self.steps == earliest[self._row[: self._count]]

    def _levels(self, totals: Float[Tensor, "4 rounds"], rounds: Float[Tensor, " rounds"], step: int) -> tuple[float, float]:
        """l = sum_s w z'_s / sum_s w n'_s over the first groups of tasks, and the same over all groups.

        `totals` are n, sum z, n', sum z' of each round, in order; the weights are relative to the latest round that has any.
        """
        shares = []
        for count, total in ((totals[2], totals[3]), (totals[0], totals[1])):
            has = (count > 0) & (rounds < step)
            w = torch.exp2((rounds - rounds[has].max()) / self.half_lives[0]).masked_fill_(~has, 0)
            shares.append(float((w * total).sum() / (w * count).sum()))
        return shares[0], shares[1]

    def _with_sizes(self, evidence: Evidence, pair: Tensor, w_round: Tensor, by_step: Tensor) -> Evidence:
        """`size_i = sum_s w z v^power / sum_s w z` of each task with half-life H, and of all groups with half-life 8 (ours).

        `pair` are z and z v^power of each observation, `w_round` the weights of the rounds, `by_step` their order.
        """
        at, row = self._round[: self._count], self._row[: self._count]
        weight, total = (w_round[0] * segment_sum(pair, at, len(by_step)))[:, by_step].sum(1).tolist()
        own = segment_sum(w_round[2].index_select(0, at) * pair, row, len(self._observed))
        size = torch.zeros(self.num_tasks, dtype=torch.float64, device=self._device)
        size[self._observed] = torch.where(own[0] > 0, own[1] / own[0], 0)
        return replace(evidence, size=size, size_level=total / weight if weight else 0.0)

    def _dense(self, sums: Tensor, decay: Tensor) -> Float[Tensor, "10 tasks"]:
        """Sums over the observed tasks -> weights and estimates of all tasks. A task whose weight has underflowed counts as unobserved."""
        weight, total = sums[:3], sums[3:]
        divisor = weight[[0, 0, 0, 1, 1, 1, 2]]
        own = torch.where(divisor > 0, total / divisor, 0)
        dense = torch.zeros((10, self.num_tasks), dtype=torch.float64, device=self._device)
        dense[:, self._observed] = torch.cat([weight * decay, own])
        return dense

    def _nothing(self) -> Evidence:
        dense = torch.zeros((10, self.num_tasks), dtype=torch.float64, device=self._device)
        reference = torch.tensor([NO_REFERENCE, NO_REFERENCE], dtype=torch.float64, device=self._device)
        found = self._evidence(dense, reference, NO_LEVEL, NO_LEVEL)
        return found if self.power is None else replace(found, size=dense[9])

    @staticmethod
    def _evidence(dense: Tensor, reference: Tensor, level: float, share: float) -> Evidence:
        return Evidence(
            weight=dense[:2],
            estimate=dense[3:9].unflatten(0, (2, 3)),
            reference=reference,
            informative_weight=dense[2],
            informative_estimate=dense[9],
            informative_level=level,
            informative_share=share,
        )

    def state_dict(self) -> dict[str, Any]:
        """The log by task rows; the scheduler translates rows to identities."""
        return {"tasks": self.tasks.cpu().clone(), "steps": self.steps.cpu().clone(), "values": self.values.cpu().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the log; the order of arrival is kept, so evidence is bit-equal."""
        self._clear()
        self.add(state["tasks"], state["steps"], *state["values"])
