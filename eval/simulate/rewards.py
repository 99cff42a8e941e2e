"""Rewards of a simulated task: their distribution, what is likely in a group, and draws.

Knows: p, the chance that a check passes; n checks; the share of rollouts whose checks are decided together.
Does not know: where p comes from.
"""

from __future__ import annotations

import math

import numpy as np


def distribution(p: np.ndarray, n: np.ndarray, together: float) -> np.ndarray:
    """Chance of each number of checks passed, [tasks, 1 + most checks]; 0 above a task's own number.

    f(r) = together (p [r = n] + (1 - p) [r = 0]) + (1 - together) C(n, r) p^r (1 - p)^(n - r)
    """
    most = int(n.max())
    r = np.arange(most + 1)
    choose = np.array([[math.comb(checks, passed) for passed in r] for checks in range(most + 1)], dtype=float)
    p, n = p[:, None], n[:, None]
    own = choose[n, r] * p**r * (1 - p) ** np.maximum(n - r, 0)
    return together * (p * (r == n) + (1 - p) * (r == 0)) + (1 - together) * own


def informative_chance(p: np.ndarray, n: np.ndarray, together: float, num_rollouts: int) -> np.ndarray:
    """P(v > 0) = 1 - sum_r f(r)^K of a group of K rollouts, [tasks]; exactly 0 where p is 0 or 1."""
    return 1 - (distribution(p, n, together) ** num_rollouts).sum(1)


def draw(rng: np.random.Generator, p: float, n: int, together: float, num_rollouts: int) -> np.ndarray:
    """Rewards of K rollouts, [K]: the share of n checks passed. Where all are decided together, the first one decides."""
    at_once = rng.random(num_rollouts) < together
    passed = rng.random((num_rollouts, n)) < p
    return np.where(at_once, passed[:, 0] * n, passed.sum(1)) / n
