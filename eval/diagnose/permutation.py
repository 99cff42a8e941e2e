"""Permutation tests of a relation: do similar tasks have similar labels, beyond what chance gives?

Knows: the statistics, what may be exchanged under each null hypothesis, p-values, Holm's correction.
Does not know: pools, views, what a label means.

A label is one number a task. The statistic R of a relation is the correlation of a task's label with what the similarity-weighted mean of
its neighbours' labels has beyond the plain mean: Mantel's product of two matrices (Mantel 1967), taken over the nearest neighbours alone as
in Moran's I, since these are what a scheduler reads. What is chance depends on what is exchangeable if the relation says nothing:

- `within`: labels inside each environment. What environments differ in stays where it is, in the data and in every draw, so it is not
  counted; labels are residuals after the environment's mean, which keeps it out of the correlation as well.
- `cross`: whole environments, by sign. Tasks of one environment resemble each other for reasons that no other environment shares (its
  tools, its data, its bugs), and they share neighbours. Labels exchanged freely over all tasks would take fifty such tasks for fifty
  witnesses and find a relation in everything that clusters. Exchanging the label blocks of environments needs equal sizes and an order of
  tasks that two blocks have in common; there is none. Residuals after the environment's mean, exchanged inside environments, lose what
  similar environments share, and still break up what similar tasks of one environment share. So the labels of an environment, less the mean
  of all, keep their pattern and change sign together, at random. If environments are independent of each other and cross similarity says
  nothing, products of labels of two environments have mean zero, and a sign an environment gives their sum its spread: the wild bootstrap
  of a degenerate U-statistic (Dehling and Mikosch 1994). Its unit is the environment: with few of them nothing can be told.
- `environment`: labels over all tasks; the statistic is the share of variance that lies between environments.

Means of few observations are noisy labels. That weakens every test and biases none, as long as which tasks were observed how often has
nothing to do with similarity: in a ledger of uniform picks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from envsched_gnn.graph.neighbors import Relation

AT_ONCE = 128
"""Draws that are in memory at a time."""
CLOSE = 1e-12
"""A draw that comes this near to the observed statistic counts as reaching it: sums in another order differ by rounding."""
DETECTED = 1.645 + 0.842
"""An effect of so many standard deviations of chance is found in 80 % of cases at p = 0.05, one-sided."""

Draws = Iterator[np.ndarray]
"""Labels as they could have been, [tasks, some draws] at a time."""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A permutation test; one-sided, since only a positive effect helps."""

    effect: float
    """The statistic of the labels as they are, a correlation."""
    chance: float
    """Its mean over the draws."""
    p: float
    """(1 + draws that reach the effect) / (1 + draws)."""
    detectable: float
    """Effect beyond chance that a test of these labels would have found in 80 % of cases, at p = 0.05."""


def against_chance(statistic: Callable[[np.ndarray], np.ndarray], labels: np.ndarray, draws: Draws) -> Tested:
    """Compare the statistic ([tasks, n] -> [n]) of the labels [tasks] with that of the draws."""
    effect = float(statistic(labels[:, None])[0])
    null = np.concatenate([statistic(some) for some in draws])
    p = (1 + int((null >= effect - CLOSE).sum())) / (1 + len(null))
    return Tested(effect=effect, chance=float(null.mean()), p=p, detectable=float(DETECTED * null.std()))


def neighbour_correlation(relation: Relation, weights: sparse.csr_matrix, env: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """`R = corr_i(y_i, sum_j w_ij y_j - mean_j y_j)` over the tasks with a neighbour; labels [tasks, n] -> [n].

    The mean is that of all tasks which could be neighbours: the others of the environment (within), all of other environments (cross). It
    takes away what a task has to do with them by being one of a sample that sums to its mean, so that R is 0 by chance at any size.
    `weights` [tasks, tasks] has rows that sum to 1, or to 0 for a task without neighbours.
    """
    has = weights.getnnz(axis=1) > 0
    size, inside = np.bincount(env)[env][:, None], _sums(env, labels)[env]
    match relation:
        case "within":
            mean = (inside - labels) / np.maximum(size - 1, 1)
        case "cross":
            mean = (labels.sum(0) - inside) / np.maximum(len(env) - size, 1)
    own, beyond = labels[has], (weights @ labels - mean)[has]
    own, beyond = own - own.mean(0), beyond - beyond.mean(0)
    under = np.sqrt((own * own).sum(0) * (beyond * beyond).sum(0))
    return np.divide((own * beyond).sum(0), under, out=np.zeros(labels.shape[1]), where=under > CLOSE)


def _sums(env: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Sum of the labels of each environment, [environments, n]."""
    member = sparse.csr_matrix((np.ones(len(env)), (env, np.arange(len(env)))))
    sums: np.ndarray = member @ labels
    return sums


def intraclass_correlation(env: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """ICC(1) = (B - W) / (B + (n_0 - 1) W): correlation of two tasks of one environment; labels [tasks, n] -> [n].

    B, W = mean squares between and within environments;  n_0 = (N - sum_e n_e^2 / N) / (M - 1)
    """
    size = np.bincount(env).astype(float)
    mean = _sums(env, labels) / size[:, None]
    grand = labels.mean(0)
    between = (size[:, None] * (mean - grand) ** 2).sum(0)
    within = ((labels - grand) ** 2).sum(0) - between
    tasks, groups = len(env), len(size)
    b, w = between / (groups - 1), within / (tasks - groups)
    n_0 = (tasks - (size**2).sum() / tasks) / (groups - 1)
    under = b + (n_0 - 1) * w
    return np.divide(b - w, under, out=np.zeros(labels.shape[1]), where=under > CLOSE * CLOSE)


def exchanged_inside(labels: np.ndarray, env: np.ndarray, count: int, seed: int) -> Draws:
    """Labels exchanged inside each environment."""
    order = np.argsort(env, kind="stable")
    ordered, place = labels[order], env[order].astype(float)
    for rng, some in _parts(count, seed):
        drawn = np.empty((len(labels), some))
        drawn[order] = ordered[np.argsort(place + rng.random((some, len(labels))), axis=1)].T
        yield drawn


def flipped(labels: np.ndarray, env: np.ndarray, count: int, seed: int) -> Draws:
    """Labels less their mean, with one random sign an environment."""
    centred = labels - labels.mean()
    for rng, some in _parts(count, seed):
        signs = rng.choice((-1.0, 1.0), size=(int(env.max()) + 1, some))
        yield signs[env] * centred[:, None]


def exchanged(labels: np.ndarray, count: int, seed: int) -> Draws:
    """Labels exchanged over all tasks."""
    for rng, some in _parts(count, seed):
        yield rng.permuted(np.repeat(labels[:, None], some, axis=1), axis=0)


def _parts(count: int, seed: int) -> Iterator[tuple[np.random.Generator, int]]:
    rng = np.random.default_rng(seed)
    for start in range(0, count, AT_ONCE):
        yield rng, min(AT_ONCE, count - start)


def less_environment(labels: np.ndarray, env: np.ndarray) -> np.ndarray:
    """Labels less the mean of their environment."""
    residual: np.ndarray = labels - (np.bincount(env, weights=labels) / np.maximum(np.bincount(env), 1))[env]
    return residual


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down correction: the chance of any false finding among the tests is kept at the level of one."""
    order = np.argsort(p)
    adjusted = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(adjusted, 1)
    return corrected
