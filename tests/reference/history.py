"""Slow oracle, page 1: what the observed groups say about each task.

Knows: design section 2, "Group statistics" and "History", and the informative statistic of the preset `default`.
Does not know: the batched code. Plain loops over Python floats; fractions where a threshold or a mean must be exact.

Everywhere a log is a list of observed groups `(task, step, y)` with `y = {"v": ..., "m": ..., "d": ...}`, each task and step at most once.
"""

import math
from fractions import Fraction

STATISTICS = ("v", "m", "d")
LOW = {"v": 0.0, "m": 0.0, "d": 0.0}
HIGH = {"v": 0.25, "m": 1.0, "d": 1.0}
NOISE = Fraction(1, 10**9)
"""A reward may leave its range by this share of the range; it then counts as the edge."""
FIRST_REFERENCE = {"v": 0.05, "m": 0.5, "d": 0.25}
FIRST_LEVEL = 0.5
LEVEL_HALF_LIFE = 8.0


def valid_rewards(rewards, low, high):
    """(r - lo) / (hi - lo) of every reward that is a number inside [lo, hi], up to rounding noise; all others are masked."""
    low, high = Fraction(low), Fraction(high)
    valid = []
    for r in rewards:
        if r is None or math.isnan(r) or math.isinf(r):
            continue
        share = (Fraction(r) - low) / (high - low)
        if -NOISE <= share <= 1 + NOISE:
            valid.append(min(max(share, Fraction(0)), Fraction(1)))
    return valid


def group_statistics(rewards, low=0.0, high=1.0):
    """m = mean(r), v = mean((r - m)^2), d = clip(v / max(m (1 - m), 0.01)); None with fewer than 2 valid rewards."""
    r = valid_rewards(rewards, low, high)
    if len(r) < 2:
        return None
    m = sum(r) / len(r)
    v = sum((x - m) ** 2 for x in r) / len(r)
    if v <= Fraction(1, 10**12):
        v = Fraction(0)
    d = v / max(m * (1 - m), Fraction(1, 100))
    return {"v": float(v), "m": float(m), "d": float(min(max(d, 0), 1))}


def w(t, s, h):
    """w(t, s) = 2^(-(t - s) / h)."""
    return 2.0 ** (-(t - s) / h)


def weighted_mean(pairs, t, h):
    """Sum of w(t, s) y over sum of w(t, s), for pairs (s, y): weights are taken relative to the latest s, which cannot underflow."""
    latest = max(s for s, _ in pairs)
    total = math.fsum(w(latest, s, h) for s, _ in pairs)
    return math.fsum(w(latest, s, h) * y for s, y in pairs) / total


def step_means(log):
    """mu_y(s): mean of y over the groups observed of step s, as {s: {y: mean}}."""
    steps = {s for _, s, _ in log}
    mu = {}
    for s in steps:
        groups = [y for _, step, y in log if step == s]
        mu[s] = {name: math.fsum(y[name] for y in groups) / len(groups) for name in STATISTICS}
    return mu


def references(log, t, h):
    """ref_y(t) = sum_s w n_s mu_y(s) / sum_s w n_s over steps s < t, where n_s mu_y(s) is the sum of y over the groups of step s."""
    past = [(s, y) for _, s, y in log if s < t]
    if not past:
        return dict(FIRST_REFERENCE)
    return {name: weighted_mean([(s, y[name]) for s, y in past], t, h) for name in STATISTICS}


def effective_weight(log, i, t, h):
    """W_i = sum_s w(t, s) over the observations of task i at steps s < t."""
    return math.fsum(w(t, s, h) for task, s, _ in log if task == i and s < t)


def own_estimate(log, i, t, h):
    """own_y(i) = sum_s w clip(y_is - mu_y(s) + ref_y(t)) / W_i, or None without an observation before t."""
    mu, ref = step_means(log), references(log, t, h)
    past = [(s, y) for task, s, y in log if task == i and s < t]
    if not past:
        return None
    own = {}
    for name in STATISTICS:
        centred = [(s, min(max(y[name] - mu[s][name] + ref[name], LOW[name]), HIGH[name])) for s, y in past]
        own[name] = weighted_mean(centred, t, h)
    return own


def z(y, v_floor):
    """z = 1[v > v_floor], by more than rounding noise."""
    return 1.0 if y["v"] > v_floor + 1e-12 else 0.0


def informative_half_life(tasks, batch_size):
    """H = max(200, 5 N / B)."""
    return max(200.0, 5.0 * tasks / batch_size)


def informative_estimate(log, i, t, h, v_floor):
    """zbar_i: weighted share of the groups of task i with v > v_floor, not centred; None without an observation before t."""
    past = [(s, z(y, v_floor)) for task, s, y in log if task == i and s < t]
    return weighted_mean(past, t, h) if past else None


def informative_size(log, i, t, h, v_floor):
    """Weighted mean of v over the groups of task i with v > v_floor; None without one before t."""
    past = [(s, y["v"]) for task, s, y in log if task == i and s < t and z(y, v_floor)]
    return weighted_mean(past, t, h) if past else None


def informative_size_level(log, t, v_floor):
    """Half-life-8 mean of v over all groups with v > v_floor before t; None without one."""
    past = [(s, y["v"]) for _, s, y in log if s < t and z(y, v_floor)]
    return weighted_mean(past, t, LEVEL_HALF_LIFE) if past else None


def informative_level(log, t, v_floor):
    """l: half-life-8 mean of z over the groups before t that are the first of their task."""
    earliest = {}
    for i, s, _ in log:
        earliest[i] = min(s, earliest.get(i, s))
    past = [(s, z(y, v_floor)) for i, s, y in log if s < t and s == earliest[i]]
    return weighted_mean(past, t, LEVEL_HALF_LIFE) if past else FIRST_LEVEL


def informative_share(log, t, v_floor):
    """Half-life-8 mean of z over all groups before t."""
    past = [(s, z(y, v_floor)) for _, s, y in log if s < t]
    return weighted_mean(past, t, LEVEL_HALF_LIFE) if past else FIRST_LEVEL
