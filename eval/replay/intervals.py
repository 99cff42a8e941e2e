"""Whether a predictor knows how sure it is: intervals for the number of informative groups of each step, and how often they hold.

Knows: the distribution of that number when groups are independent, its central interval.
Does not know: where probabilities come from.
"""

from __future__ import annotations

import numpy as np

from envsched_gnn.eval.replay.score import Predicted

NOMINAL = 0.9
"""Least probability of an interval."""


def count_distribution(p: np.ndarray) -> np.ndarray:
    """P(k of independent groups with chances p [n] are informative), k = 0..n: the Poisson binomial, group by group."""
    chance = np.ones(1)
    for one in p:
        chance = np.append(chance * (1 - one), 0.0) + np.append(0.0, chance * one)
    return chance


def interval_of(p: np.ndarray) -> tuple[int, int, float]:
    """The smallest and largest count with at least (1 - NOMINAL)/2 on either side of what they leave out, and the probability between."""
    total = np.cumsum(count_distribution(p))
    low, high = (int(np.searchsorted(total, share)) for share in ((1 - NOMINAL) / 2, (1 + NOMINAL) / 2))
    high = min(high, len(p))
    return low, high, float(total[high] - (total[low - 1] if low else 0.0))


def interval_coverage(said: Predicted) -> dict[str, float]:
    """`interval_coverage`: share of steps whose number of informative groups lies in the interval that the predictions gave it.

    `interval_probability`: what the predictions gave the intervals, mean over steps; more than NOMINAL, since counts are whole. Coverage
    below it: the predictor is too sure, or groups of a step are right and wrong together.
    """
    inside, promised = [], []
    for step in np.unique(said.step):
        at = said.step == step
        low, high, probability = interval_of(np.clip(said.predicted[at], 0, 1))
        inside.append(low <= said.informative[at].sum() <= high)
        promised.append(probability)
    return {"interval_coverage": float(np.mean(inside)), "interval_probability": float(np.mean(promised))}
