"""Slow oracle, page 3: from informativeness to an ordered batch.

Knows: design section 2, "Selection": exposure, coverage and exploitation scores, penalty, quotas, relaxations, the cold batch, seeded keys.
Does not know: the batched code, in-flight tasks, quarantine (the caller says which tasks are eligible).

`past` is every selection ever made, a list of `(step, task)`; `rounds` the steps at which there was a selection, an empty one too.
"""

import math
from dataclasses import dataclass, field

from tests.reference.history import w
from tests.reference.prediction import neighbours

MASK = 2**64 - 1
QUOTAS = ("consecutive", "rolling", "per_round")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The batch construction's constants."""

    batch_size: int = 64
    seed: int = 0
    coverage_share: float = 0.5
    penalty: float = 0.5
    threshold: float = 0.5
    per_round: int | None = None
    rolling: int | None = None
    consecutive: int = 2
    exposure_scale: float = 16.0


@dataclass
class Batch:
    """Picks in order: (task, phase, score), and relaxations (quota, task)."""

    picks: list = field(default_factory=list)
    relaxations: list = field(default_factory=list)


def mix64(x):
    """The splitmix64 finaliser of x plus its increment, on unsigned 64-bit integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def key(identity, seed, step):
    """key(i) = mix64(identity_i xor mix64(mix64(seed) xor step)), unsigned."""
    return mix64((identity & MASK) ^ mix64(mix64(seed & MASK) ^ (step & MASK)))


def exposure(past, i, t):
    """c_i: number of times task i was selected, earlier requests of step t included."""
    return sum(task == i for s, task in past if s <= t)


def exposure_factor(c, scale):
    """omega = (1 + c / scale)^(-1/2)."""
    return (1 + c / scale) ** -0.5


def environment_exposure(world, past, e, t):
    """n_e: half-life-8 weighted selections of environment e at steps before t, per task of it."""
    size = sum(env == e for env in world.env)
    return math.fsum(w(t, s, 8.0) for s, task in past if world.env[task] == e and s < t) / size


def schedulable_environments(world):
    """Environments with at least one task that is not held out."""
    return sorted({world.env[i] for i in world.tasks if not world.held_out[i]})


def mean_exposure(world, past, t, batch_size):
    """nbar = mean_e n_e + B / N."""
    n = [environment_exposure(world, past, e, t) for e in schedulable_environments(world)]
    return math.fsum(n) / len(n) + batch_size / len(world.env)


def coverage_terms(world, past, observed, weight_long, i, t, batch_size):
    """(env_term + task_term + pattern_term) / 3, before the division by the picks of this batch."""
    n_e = environment_exposure(world, past, world.env[i], t)
    env_term = 1 / (1 + n_e / mean_exposure(world, past, t, batch_size))
    task_term = 1 / (1 + exposure(past, i, t))
    pattern_term = 2 / (2 + math.fsum(s * weight_long[j] for j, s in neighbours(world, observed, i, "cross")))
    return (env_term + task_term + pattern_term) / 3


def penalty(world, batch, i, settings):
    """0.5 max over j in batch of relu(s(i, j) - 0.5)."""
    return settings.penalty * max((max(world.s(i, j) - settings.threshold, 0.0) for j in batch), default=0.0)


def caps(world, settings):
    """Tasks an environment: per round max(1, ceil(4 (B/64) (51/M))), over three rounds floor(2.75 per round)."""
    M = len(schedulable_environments(world))
    per_round = settings.per_round or max(1, -((-204 * settings.batch_size) // (64 * M)))
    rolling = settings.rolling or (11 * per_round) // 4
    return per_round, rolling


def violations(world, past, rounds, batch, i, t, settings):
    """The quotas that picking task i now would break; `batch` = tasks already picked at step t."""
    rounds = sorted({s for s in rounds if s < t})
    per_round, rolling = caps(world, settings)
    broken = []
    latest = rounds[-settings.consecutive :]
    if len(latest) == settings.consecutive and all((s, i) in past for s in latest):
        broken.append("consecutive")
    here = sum(world.env[j] == world.env[i] for j in batch)
    window = sum(world.env[j] == world.env[i] for s, j in past if s in rounds[-2:])
    if here + window + 1 > rolling:
        broken.append("rolling")
    if here + 1 > per_round:
        broken.append("per_round")
    return broken


def feasible(world, past, rounds, batch, left, t, settings):
    """The tasks of `left` within all quotas; if there are none, without consecutive, then rolling, then per-round."""
    for relaxed in range(4):
        kept = QUOTAS[relaxed:]
        found = [i for i in left if not set(violations(world, past, rounds, batch, i, t, settings)) & set(kept)]
        if found:
            return found
    return []


def select(world, past, rounds, observed, cold, weight_long, q, weighed, eligible, t, n, settings):
    """Pick min(n, eligible) tasks for step t. `past` holds earlier picks of t too; `weighed`: coverage is multiplied by q / (1 + c)."""
    keys = [key(world.identity[i], settings.seed, t) for i in world.tasks]
    before = list(past)  # exposure and quotas of this request
    batch = [task for s, task in past if s == t]
    cover = [coverage_terms(world, before, observed, weight_long, i, t, settings.batch_size) for i in world.tasks]
    if weighed:
        cover = [cover[i] * q[i] / (1 + exposure(before, i, t)) for i in world.tasks]
    omega = [exposure_factor(exposure(before, i, t), settings.exposure_scale) for i in world.tasks]
    left = [i for i in world.tasks if eligible[i]]
    result = Batch()
    for rank in range(min(n, len(left))):
        phase = "cold" if cold else "coverage" if rank < round(settings.coverage_share * n) else "exploitation"
        scores = {}
        for i in feasible(world, past, rounds, batch, left, t, settings):
            here = sum(world.env[j] == world.env[i] for j in batch)
            raw = {"cold": 0.0, "coverage": cover[i] / (1 + here), "exploitation": q[i] * omega[i]}[phase]
            scores[i] = raw - (0.0 if cold else penalty(world, batch, i, settings))
        best = max(scores, key=lambda i: (0 if cold else round(scores[i] * 2**32), 0 if cold else round(q[i] * 2**32), keys[i]))
        result.relaxations += [(quota, best) for quota in violations(world, past, rounds, batch, best, t, settings)]
        result.picks.append((best, phase, scores[best]))
        batch.append(best)
        left.remove(best)
    return result
