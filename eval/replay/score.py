"""How good predictions were: rank correlation, error, calibration, precision, with intervals.

Knows: the figures, and which sums over a step they are made of.
Does not know: ledgers, predictors, words.

Tasks are compared with those of the same step only, as a scheduler compares them: that a whole step showed more variance than an
earlier one helps nobody to choose. Every figure is a quotient of sums over steps, so an interval resamples steps: 10,000 times, with
replacement, 95 % percentile interval. The draws depend on the number of steps alone: those of two predictors are the same, and an interval
of their difference is paired. Steps are taken as independent; they share tasks and history, so intervals are somewhat narrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from envsched_gnn.eval.headline.statistics import LEVEL, RESAMPLES, SEED, Interval, quantile
from envsched_gnn.ops import RANK_SCALE
from envsched_gnn.schedule.metrics import rank_correlation

SUMS = ("groups", "ordered", "correlation", "absolute", "squared", "upper", "upper_informative", "informative")
"""Columns of `sums_by_step`."""
FIGURES = ("spearman", "mae", "mse", "precision_at_batch", "base_rate")
"""What `figure` knows."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The predictions of one predictor for one target, beside what came; all [groups], by step."""

    step: np.ndarray
    predicted: np.ndarray
    realised: np.ndarray
    informative: np.ndarray


def sums_by_step(said: Predicted) -> np.ndarray:
    """The sums that every figure is made of, [steps, SUMS].

    ordered = groups of the step if not all came out equal, else 0;  correlation = ordered * Spearman's correlation in the step
    absolute, squared = sums of |predicted - realised| and of its square
    upper = n / 2;  upper_informative = informative groups among the upper half by prediction, ties taken in equal shares
    """
    cuts = np.flatnonzero(np.diff(said.step)) + 1
    columns = (said.predicted, said.realised, said.informative)
    parts = zip(*(np.split(column, cuts) for column in columns), strict=True)
    return np.array([_sums(*part) for part in parts]).reshape(-1, len(SUMS))


def _sums(predicted: np.ndarray, realised: np.ndarray, informative: np.ndarray) -> tuple[float, ...]:
    groups, error, upper = len(realised), np.abs(predicted - realised), upper_half(predicted)
    ordered = groups if np.ptp(realised) > 0 else 0
    correlation = ordered * (rank_correlation(predicted, realised) or 0.0)
    return (groups, ordered, correlation, error.sum(), (error**2).sum(), upper.sum(), (upper * informative).sum(), informative.sum())


def upper_half(predicted: np.ndarray) -> np.ndarray:
    """Share of each group in the half of the step that was predicted highest, [groups]; sums to n/2.

    Groups that tie over the border share what is left of the half: 1 above it, 0 below. Values that differ by less than 2^-32 tie.
    """
    key = np.round(predicted * RANK_SCALE)
    ordered = np.sort(key)
    above = len(key) - np.searchsorted(ordered, key, side="right")
    tied = len(key) - above - np.searchsorted(ordered, key, side="left")
    return np.clip((len(key) / 2 - above) / tied, 0, 1)


def figure(name: str, sums: np.ndarray) -> np.ndarray:
    """A figure from sums over steps: [..., SUMS] -> [...]; NaN where it does not exist.

        spearman = correlation / ordered: mean over steps, a step counting as its groups; one in which all predictions tie counts as 0
        precision_at_batch = upper_informative / upper: share with variance of the half of each step's groups predicted highest
        base_rate = informative / groups: share with variance of all of them, which a random half would have, too
    Only picked tasks have labels, so that half stands for the batch of B that a scheduler takes from the whole pool.
    """
    at = {key: sums[..., column] for column, key in enumerate(SUMS)}
    match name:
        case "spearman":
            over, under = at["correlation"], at["ordered"]
        case "mae":
            over, under = at["absolute"], at["groups"]
        case "mse":
            over, under = at["squared"], at["groups"]
        case "precision_at_batch":
            over, under = at["upper_informative"], at["upper"]
        case "base_rate":
            over, under = at["informative"], at["groups"]
        case _:
            raise ValueError(f"{name!r}: expected one of {FIGURES}")
    return np.divide(over, under, out=np.full(np.shape(over), np.nan), where=under > 0)


def interval(name: str, sums: np.ndarray) -> Interval:
    """A figure over steps [steps, SUMS] with its bootstrap interval; with fewer than two steps the ends are NaN."""
    return _interval(figure(name, sums.sum(0)), figure(name, resampled(sums)), len(sums))


def difference(name: str, sums: np.ndarray, other: np.ndarray) -> Interval:
    """The figure of one predictor minus that of another on the same steps, resampled together."""
    value = figure(name, sums.sum(0)) - figure(name, other.sum(0))
    return _interval(value, figure(name, resampled(sums)) - figure(name, resampled(other)), len(sums))


def resampled(sums: np.ndarray) -> np.ndarray:
    """Sums over steps that are drawn with replacement, [resamples, SUMS]; the draws depend on the number of steps alone."""
    return _draws(len(sums)) @ sums


@lru_cache(maxsize=4)
def _draws(steps: int) -> np.ndarray:
    """How often each resample holds each step, [resamples, steps]."""
    if steps == 0:
        return np.zeros((RESAMPLES, 0))
    return np.random.default_rng(SEED).multinomial(steps, np.full(steps, 1 / steps), size=RESAMPLES).astype(float)


def _interval(value: np.ndarray, found: np.ndarray, steps: int) -> Interval:
    known = found[~np.isnan(found)] if steps > 1 else np.array([])
    low, high = (quantile(known, share) for share in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value=float(value), low=low, high=high, seeds=steps)


def thirds(steps: int) -> dict[str, slice]:
    """The judged steps in three parts as equal as can be."""
    first, second = round(steps / 3), round(2 * steps / 3)
    return {"early": slice(0, first), "middle": slice(first, second), "late": slice(second, steps)}
