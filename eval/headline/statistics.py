"""Paired statistics over seeds: each seed is a pool and an RL seed, and every arm is compared with uniform on the same seed.

Knows: the bootstrap over seeds, what never reached means for a median, the band of uniform against uniform.
Does not know: files, how a figure of a run is computed.

With 5 to 10 seeds a percentile interval is somewhat too narrow; the seeds in which an arm was better stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from envsched_gnn.eval.headline.figures_of_run import Figures, area, time_to_best

RESAMPLES = 10_000
SEED = 0
"""Of the resampling: the same runs give the same interval."""
LEVEL = 0.95
MOST = 1e-9
"""An oracle that wastes less than uniform by no more than this leaves no way to measure a share of."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A statistic with its bootstrap interval; NaN without a seed, an infinite end where the statistic is never reached."""

    value: float
    low: float
    high: float
    seeds: int


def quantile(values: np.ndarray, share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; defined for infinite values too; NaN without values."""
    ordered = np.sort(values)
    return float(ordered[max(math.ceil(share * len(ordered) - 1e-9) - 1, 0)]) if len(ordered) else math.nan


def median(values: np.ndarray) -> float:
    """Middle value, or mean of the two middle ones, which is infinite if one of them is; NaN values are left out, NaN without others."""
    ordered = np.sort(values[~np.isnan(values)])
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2) if len(ordered) else math.nan


def bootstrap(columns: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Percentile interval of a statistic over seeds, drawn with replacement RESAMPLES times.

    `columns` [seeds, figures] keeps what belongs to one seed together; `statistic` maps [resamples, seeds, figures] to [resamples].
    With fewer than two seeds the ends are NaN.
    """
    n = len(columns)
    value = float(statistic(columns[None])[0]) if n else math.nan
    if n < 2:
        return Interval(value=value, low=math.nan, high=math.nan, seeds=n)
    drawn = np.random.default_rng(SEED).integers(n, size=(RESAMPLES, n))
    found = statistic(columns[drawn])
    found = found[~np.isnan(found)]
    low, high = (quantile(found, share) for share in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value=value, low=low, high=high, seeds=n)


def paired_difference(arm: np.ndarray, uniform: np.ndarray) -> Interval:
    """Mean over seeds of arm - uniform, [seeds] each, and its interval; seeds in which either lacks the figure are left out."""
    difference = arm - uniform
    return bootstrap(difference[np.isfinite(difference)][:, None], lambda drawn: drawn[:, :, 0].mean(1))


def median_over_seeds(values: np.ndarray) -> Interval:
    """Median over seeds [seeds] and its interval; a time that is never reached is infinite and counts as late."""

    def middle(drawn: np.ndarray) -> np.ndarray:
        ordered, n = np.sort(drawn[:, :, 0], axis=1), drawn.shape[1]
        return (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2

    return bootstrap(values[~np.isnan(values)][:, None], middle)


def share_of_way(uniform: np.ndarray, arm: np.ndarray, oracle: np.ndarray) -> Interval:
    """How far from uniform to oracle an arm came in wasted groups: (mean uniform - mean arm) / (mean uniform - mean oracle), [seeds] each.

    Means first: a seed in which oracle and uniform are near each other would rule a mean of quotients. NaN if the oracle gains nothing.
    """

    def share(drawn: np.ndarray) -> np.ndarray:
        first, reached, best = np.moveaxis(drawn.mean(1), 1, 0)
        gap = first - best
        return np.divide(first - reached, gap, out=np.full(len(gap), np.nan), where=gap > MOST)

    columns = np.stack([uniform, arm, oracle], axis=1)
    return bootstrap(columns[np.isfinite(columns).all(1)], share)


def shares_by_seed(uniform: np.ndarray, arm: np.ndarray, oracle: np.ndarray) -> np.ndarray:
    """The same share seed by seed, [seeds]; NaN where the oracle gains nothing."""
    gap = uniform - oracle
    return np.divide(uniform - arm, gap, out=np.full(len(gap), np.nan), where=gap > MOST)


def correlation_within_seeds(x: np.ndarray, y: np.ndarray, seed: np.ndarray) -> Interval:
    """Pearson correlation of two figures over runs of any arms, [runs] each, both less their mean over the runs of the same seed.

    `r = sum_s xy_s / sqrt(sum_s xx_s sum_s yy_s)` with the sums of products of each seed s. NaN where a figure is the same in all.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y, seed = x[known], y[known], seed[known]
    rows = []
    for each in np.unique(seed):
        a, b = (values[seed == each] - values[seed == each].mean() for values in (x, y))
        rows.append((a @ b, a @ a, b @ b))

    def correlation(drawn: np.ndarray) -> np.ndarray:
        xy, xx, yy = np.moveaxis(drawn.sum(1), 1, 0)
        return np.divide(xy, np.sqrt(xx * yy), out=np.full(len(xy), np.nan), where=xx * yy > 0)

    return bootstrap(np.array(rows).reshape(-1, 3), correlation)


@dataclass(frozen=True, kw_only=True)
class NullBand:
    """What uniform comes to against itself: quantiles over all ordered pairs of different uniform seeds."""

    pairs: int
    auc: tuple[float, float, float]
    """2.5 %, 50 % and 97.5 % of auc(a) - auc(b)."""
    time: tuple[float, float, float]
    """The same of the first step at which seed a reaches the best of seed b; infinite = never."""
    reached: int
    """Pairs in which a reaches b's best at all."""


def null_band(uniform: Sequence[Figures]) -> NullBand | None:
    """How early, and by how much, one uniform run beats another by luck; None with fewer than two seeds.

    Every ordered pair of different seeds, since each seed has one uniform run. The two runs of a pair differ in pool as well as in RL seed,
    so the band is wider than two runs on one pool would give; an arm that beats it did so by more than luck and pool together.
    Pairs share runs, so this is a band to look at, not a test.
    """
    pairs = [(a, b) for a in uniform for b in uniform if a.seed != b.seed]
    if not pairs:
        return None
    end = uniform[0].clock[-1]
    gains = np.array([area(a.clock, a.curve, end) - area(b.clock, b.curve, end) for a, b in pairs])
    times = np.array([time_to_best(a.clock, a.curve, b.curve)[0] for a, b in pairs])
    low, middle, high = (1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2
    return NullBand(
        pairs=len(pairs),
        auc=(quantile(gains, low), quantile(gains, middle), quantile(gains, high)),
        time=(quantile(times, low), quantile(times, middle), quantile(times, high)),
        reached=int(np.isfinite(times).sum()),
    )
