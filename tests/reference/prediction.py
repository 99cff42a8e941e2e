"""Slow oracle, page 2: from history and similarities to the informativeness of every task.

Knows: design section 2, neighbours of "Graph", "Prediction, preset `paper`" and "Target, and preset `default`".
Does not know: the batched code. `s_within` and `s_cross` are plain [N][N] lists; only pairs of one environment (of two) are read from them.
"""

import math
from dataclasses import dataclass

from tests.reference import history
from tests.reference.history import STATISTICS

HALF_LIVES = {"long": 8.0, "short": 2.0}
K = {"within": 6, "cross": 12}
PRIORS = ("level", "within", "cross", "mean", "faint_within", "faint_cross", "faint_mean")
STRENGTHS = (0.5, 1.0, 3.0)
EXPERTS = [(prior, c) for prior in PRIORS for c in STRENGTHS]


@dataclass(frozen=True, kw_only=True)
class World:
    """A pool: environment, similarity rows, identity, reward range and held-out flag of every task."""

    env: list[int]
    s_within: list[list[float]]
    s_cross: list[list[float]]
    identity: list[int]
    reward_range: list[tuple[float, float]]
    held_out: list[bool]

    @property
    def tasks(self):
        return range(len(self.env))

    def s(self, i, j):
        """Within or cross similarity, as the pair demands."""
        return self.s_within[i][j] if self.env[i] == self.env[j] else self.s_cross[i][j]


def neighbours(world, observed, i, relation):
    """The k most similar observed tasks j != i of the relation, similarity > 0, ties to the lower index, as [(j, s_ij)]."""
    found = []
    for j in world.tasks:
        same = world.env[i] == world.env[j]
        if j == i or j not in observed or same != (relation == "within"):
            continue
        if world.s(i, j) > 0:
            found.append((j, world.s(i, j)))
    found.sort(key=lambda pair: (-pair[1], pair[0]))
    return found[: K[relation]]


def average_ranks_doubled(x):
    """Twice the average rank (from 1) of round(x 2^32): integers, ties averaged."""
    rounded = [round(value * 2**32) for value in x]
    ranks = []
    for mine in rounded:
        below = sum(other < mine for other in rounded)
        equal = sum(other == mine for other in rounded)
        ranks.append(2 * below + equal + 1)
    return ranks


def pr(x):
    """pr = (average rank - 0.5) / N."""
    return [(doubled - 1) / (2 * len(x)) for doubled in average_ranks_doubled(x)]


def quantile(values, p):
    """Empirical quantile function: the k-th smallest of N values stands at p = (k - 0.5) / N; linear between, constant outside."""
    ordered = sorted(values)
    n = len(ordered)
    position = p * n - 0.5
    if position <= 0:
        return ordered[0]
    if position >= n - 1:
        return ordered[n - 1]
    k = math.floor(position)
    return ordered[k] + (position - k) * (ordered[k + 1] - ordered[k])


def relation_estimate(edges, weight, own, ref, strength):
    """rel = (sum_j a_ij own(j) + strength ref) / (sum_j a_ij + strength) with a_ij = s_ij W_j."""
    numerator, denominator = [strength * ref], [strength]
    for j, s in edges:
        if own[j] is None:
            continue  # observed, but not before this step: W_j = 0
        a = s * weight[j]
        numerator.append(a * own[j])
        denominator.append(a)
    return math.fsum(numerator) / math.fsum(denominator)


def paper(world, log, t):
    """Steps 1 to 6 of preset `paper`: {"u", "est": {horizon: {y: [N]}}, "rel", "prior", "W", "own", "f", "u_long", "u_short"}."""
    observed = {task for task, _, _ in log}
    parts = {"est": {}, "rel": {}, "prior": {}, "W": {}, "own": {}, "ref": {}, "f": {}}
    for horizon, h in HALF_LIVES.items():
        weight = [history.effective_weight(log, i, t, h) for i in world.tasks]
        own = [history.own_estimate(log, i, t, h) for i in world.tasks]
        ref = history.references(log, t, h)
        est, rel, prior = {}, {"within": {}, "cross": {}}, {}
        for y in STATISTICS:
            own_y = [None if own[i] is None else own[i][y] for i in world.tasks]
            for relation in ("within", "cross"):
                rel[relation][y] = [
                    relation_estimate(neighbours(world, observed, i, relation), weight, own_y, ref[y], 2.0) for i in world.tasks
                ]
            prior[y] = [(rel["within"][y][i] + rel["cross"][y][i]) / 2 for i in world.tasks]
            est[y] = []
            for i in world.tasks:
                if own_y[i] is None:
                    est[y].append(prior[y][i])
                else:
                    est[y].append((weight[i] * own_y[i] + 2 * prior[y][i]) / (weight[i] + 2))
        f = [est["d"][i] * est["m"][i] * (1 - est["m"][i]) for i in world.tasks]
        pr_v, pr_f = pr(est["v"]), pr(f)
        u_h = [quantile(est["v"], 0.65 * pr_v[i] + 0.35 * pr_f[i]) for i in world.tasks]
        parts["u_" + horizon] = u_h
        for name, value in (("est", est), ("rel", rel), ("prior", prior), ("W", weight), ("own", own), ("ref", ref), ("f", f)):
            parts[name][horizon] = value
    parts["u"] = [long - 0.5 * max(long - short, 0.0) for long, short in zip(parts["u_long"], parts["u_short"], strict=True)]
    return parts


def experts(world, log, t, batch_size, v_floor):
    """p_e of the experts, [E][N]: p_e = (W zbar + c prior) / (W + c)."""
    observed = {task for task, _, _ in log}
    h = history.informative_half_life(len(world.env), batch_size)
    weight = [history.effective_weight(log, i, t, h) for i in world.tasks]
    zbar = [history.informative_estimate(log, i, t, h, v_floor) for i in world.tasks]
    level = history.informative_level(log, t, v_floor)
    says = [2 * w / (w + 1) for w in weight]
    prior = {"level": [level for _ in world.tasks]}
    for relation in ("within", "cross"):
        prior[relation] = [relation_estimate(neighbours(world, observed, i, relation), says, zbar, level, 1.0) for i in world.tasks]
    prior["mean"] = [(prior["within"][i] + prior["cross"][i]) / 2 for i in world.tasks]
    for name in ("within", "cross", "mean"):
        prior["faint_" + name] = [(3 * level + prior[name][i]) / 4 for i in world.tasks]
    p = []
    for name, c in EXPERTS:
        row = []
        for i in world.tasks:
            seen = 0.0 if zbar[i] is None else weight[i] * zbar[i]
            row.append((seen + c * prior[name][i]) / (weight[i] + c))
        p.append(row)
    return p


def expected_variance(p, world, log, t, batch_size, v_floor):
    """q = p s / .25, s = (W zbar size + level) / (W zbar + 1): the expected variance as a share of the largest; p before any variance."""
    level = history.informative_size_level(log, t, v_floor)
    if level is None:
        return p
    h = history.informative_half_life(len(world.env), batch_size)
    q = []
    for i in world.tasks:
        size = history.informative_size(log, i, t, h, v_floor)
        weight = 0.0
        if size is not None:
            weight = history.effective_weight(log, i, t, h) * history.informative_estimate(log, i, t, h, v_floor)
        s = (weight * (size or 0.0) + level) / (weight + 1)
        q.append(p[i] * s / 0.25)
    return q


def log_likelihood(p_before, informative):
    """log P_e(z) of one group for each expert; p_before [E] clipped to [.02, .98]."""
    total = []
    for p in p_before:
        p = min(max(p, 0.02), 0.98)
        total.append(math.log(p if informative else 1 - p))
    return total


def expert_weights(rounds):
    """softmax(L), L_e = sum over observed rounds s of 0.9^(observed rounds newer than s) * loglik_s[e]; rounds = {s: [E]}."""
    L = [0.0] * len(EXPERTS)
    for s, loglik in rounds.items():
        newer = sum(other > s for other in rounds)
        for e in range(len(EXPERTS)):
            L[e] += 0.9**newer * loglik[e]
    largest = max(L)
    exp = [math.exp(value - largest) for value in L]
    return [value / math.fsum(exp) for value in exp]


def mixture(weights, p):
    """p_informative = sum_e weight_e p_e, [N]."""
    return [math.fsum(weights[e] * p[e][i] for e in range(len(weights))) for i in range(len(p[0]))]
