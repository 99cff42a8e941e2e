"""The world of a simulation: which skills each task needs, how hard it is at the start, what it shows of this.

Knows: how all of it is drawn from a seed.
Does not know: practice, rewards, pools and graphs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from envsched_gnn.config_simulate import SimulateConfig

NEEDED = 2
"""Skills of its environment that a task needs."""
PER_PATTERN = 3
"""Operations of a pattern."""
LENGTHS = 0.5
"""Standard deviation of the logarithm of a task's typical length."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What does not change. Row i of the pool shows `environment[i]`, `skills[i]` and `pattern[i]`; it behaves as row `behaves_as[i]`."""

    config: SimulateConfig
    environment: np.ndarray
    """[tasks] int64, ascending."""
    skills: np.ndarray
    """[tasks, 2] int64: numbers of skills, `environment * environment_skills` on."""
    pattern: np.ndarray
    """[tasks] int64."""
    operations: np.ndarray
    """[patterns, 3] int64."""
    start: np.ndarray
    """[tasks] float64: z(0), logits."""
    dead: np.ndarray
    """[tasks] int64: -1 impossible, 1 trivial, 0 neither."""
    checks: np.ndarray
    """[tasks] int64."""
    length: np.ndarray
    """[tasks] float64: tokens of a typical rollout."""
    behaves_as: np.ndarray
    """[tasks] int64, a permutation; where `structure` is 1, the identity."""
    held_out: np.ndarray
    """[tasks] bool, by what a row shows."""


def stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """A generator of its own for each use: what one draws changes nothing for the others."""
    return np.random.default_rng([seed, int.from_bytes(name.encode()), *numbers])


def make_world(config: SimulateConfig) -> World:
    """The world of a configuration; equal configurations give equal worlds."""
    rng = stream(config.seed, "world")
    environment = np.arange(config.environments).repeat(config.tasks)
    skills = environment[:, None] * config.environment_skills + _pairs(rng, len(environment), config.environment_skills)
    pattern = rng.integers(config.patterns, size=len(environment))
    operations = rng.random((config.patterns, config.operations)).argsort(1)[:, :PER_PATTERN]
    checks = rng.integers(2, config.checks + 1, size=config.patterns) if config.reward == "fractional" else np.ones(config.patterns, int)
    return World(
        config=config,
        environment=environment,
        skills=skills,
        pattern=pattern,
        operations=operations,
        start=_start(config, rng, skills, operations[pattern]),
        dead=_dead(config, environment, pattern),
        checks=checks[pattern],
        length=config.tokens * np.exp(LENGTHS * stream(config.seed, "length").standard_normal(len(environment))),
        behaves_as=_behaves_as(config, len(environment)),
        held_out=_held_out(config),
    )


def _pairs(rng: np.random.Generator, count: int, skills: int) -> np.ndarray:
    """Two different numbers below `skills`, [count, 2]."""
    first = rng.integers(skills, size=count)
    return np.stack([first, (first + rng.integers(1, skills, size=count)) % skills], axis=1)


def _start(config: SimulateConfig, rng: np.random.Generator, skills: np.ndarray, operations: np.ndarray) -> np.ndarray:
    """z(0) = logit(success_start) + spread (sqrt(a) (x_1 + x_2) / sqrt 2 + sqrt(b) (y_1 + y_2 + y_3) / sqrt 3 + sqrt(1 - a - b) e)."""
    x = rng.standard_normal(config.environments * config.environment_skills)[skills].sum(1) / math.sqrt(NEEDED)
    y = rng.standard_normal(config.operations)[operations].sum(1) / math.sqrt(PER_PATTERN)
    a, b = config.environment_share, config.pattern_share
    own = math.sqrt(max(1 - a - b, 0.0)) * rng.standard_normal(len(skills))
    middle = math.log(config.success_start / (1 - config.success_start))
    return middle + config.spread * (math.sqrt(a) * x + math.sqrt(b) * y + own)


def _dead(config: SimulateConfig, environment: np.ndarray, pattern: np.ndarray) -> np.ndarray:
    """u = Phi(a E + b P + sqrt(1 - a^2 - b^2) e); impossible if u < impossible, trivial if u >= 1 - trivial.

    E and P are normal scores in random order, so that shares hold whatever the loadings a and b are, as in ToolWorld.
    """
    rng = stream(config.seed, "dead")
    a, b = config.cluster_environment, config.cluster_pattern
    scale = max(1.0, math.hypot(a, b))
    a, b = a / scale, b / scale
    e, p = (ndtri((rng.permutation(count) + 0.5) / count) for count in (config.environments, config.patterns))
    own = rng.standard_normal(len(environment))
    u = ndtr(a * e[environment] + b * p[pattern] + math.sqrt(max(0.0, 1 - a * a - b * b)) * own)
    return (u >= 1 - config.trivial).astype(np.int64) - (u < config.impossible)


def _behaves_as(config: SimulateConfig, count: int) -> np.ndarray:
    """A permutation of a random share 1 - structure of the rows; the others stay."""
    rng = stream(config.seed, "structure")
    moved = rng.permutation(count)[: round((1 - config.structure) * count)]
    rows = np.arange(count)
    rows[moved] = moved[rng.permutation(len(moved))]
    return rows


def _held_out(config: SimulateConfig) -> np.ndarray:
    """Whole environments, and of each other one a share rounded to whole tasks; at least one task is left to train on."""
    rng = stream(config.seed, "held out")
    rank = rng.random((config.environments, config.tasks)).argsort(1).argsort(1)
    held_out = rank < min(round(config.held_out_tasks * config.tasks), config.tasks - 1)
    whole = min(round(config.held_out_environments * config.environments), config.environments - 1)
    held_out[rng.permutation(config.environments)[:whole]] = True
    return held_out.flatten()
