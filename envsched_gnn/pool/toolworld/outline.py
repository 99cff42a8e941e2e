"""What each task is to be, before any record exists: its label, number of operations and patterns.

Knows: the shares and their clustering, the depth profile. A label is never stored in the pool; `labels` recomputes it from the seed.
Does not know: names, state, text.

Clustering (ours). Each task has a latent number `z = a E + b P + sqrt(1 - a^2 - b^2) e`, standard normal:
`E` belongs to its environment, `P` to its pattern, `e` to the task; `a = cluster_environment`, `b = cluster_pattern`, both divided by
`sqrt(a^2 + b^2)` if that exceeds 1. With u = Phi(z), the task is impossible if `u < impossible`, trivial if `u >= 1 - trivial`.
So a = b = 0 is independent draws, two tasks of an environment have a latent correlation of a^2, and a = 1 packs labels into whole
environments. E comes from an evenly spread sequence over environments and the pattern is drawn by P, so shares hold whatever a and b are.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from envsched_gnn.config import ToolWorldConfig
from envsched_gnn.pool.toolworld.patterns import MAX_BATCH, PATTERNS, Pattern
from envsched_gnn.pool.toolworld.world import World, draw_world, stream

Label = Literal["possible", "impossible", "trivial"]

DEPTH_LOADING = 0.6
"""Share of the spread of operation counts that the environment sets, as a loading of a latent normal (ours)."""
SECOND_PATTERN = 0.4
"""Chance that a unit after the first has another pattern than the task's own (ours)."""
NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One pattern, on records of its own."""

    pattern: Pattern
    size: int
    """Operations: the pattern's, or the records of a batch."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """One task in the abstract."""

    env_id: str
    task_id: str
    label: Label
    units: tuple[Unit, ...]
    """The first one's pattern is the task's own."""

    @property
    def key(self) -> str:
        """The task's identity."""
        return f"{self.env_id}/{self.task_id}"

    @property
    def operations(self) -> int:
        """State changes that the instruction asks for, 1 to 8."""
        return sum(unit.size for unit in self.units)


def spread(seed: int, name: str, index: int) -> float:
    """The index-th point in (0, 1) of a golden-ratio sequence: every prefix of indices covers the interval evenly."""
    offset = stream(seed, name).random()
    return min(max((offset + index * (math.sqrt(5) - 1) / 2) % 1.0, 1e-9), 1 - 1e-9)


def outline(config: ToolWorldConfig, world: World, index: int) -> Outline:
    """Task `index` of an environment."""
    rng = stream(config.seed, "outline", world.index, index)
    depth = _depth(config, world, rng)
    place = min(max(rng.random(), 1e-9), 1 - 1e-9)
    pattern = _draw(config.seed, world, place, available(world, depth))
    return Outline(
        env_id=world.env_id,
        task_id=f"task_{index:04d}",
        label=_label(config, spread(config.seed, "label", world.index), place, rng.random()),
        units=_units(config.seed, world, pattern, depth, rng),
    )


def worlds(config: ToolWorldConfig) -> list[World]:
    """All environments' variants."""
    return [draw_world(config.seed, index, len(PATTERNS)) for index in range(config.environments)]


def outlines(config: ToolWorldConfig) -> list[Outline]:
    """All tasks in the abstract, in pool order."""
    return [outline(config, world, index) for world in worlds(config) for index in range(config.tasks)]


def labels(config: ToolWorldConfig) -> dict[str, Label]:
    """The truth about every task, by identity `env_id/task_id`: for tests and measurements only."""
    return {each.key: each.label for each in outlines(config)}


def _label(config: ToolWorldConfig, environment: float, pattern: float, own: float) -> Label:
    """z = a E + b P + sqrt(1 - a^2 - b^2) e; impossible below, trivial above."""
    a, b = config.cluster_environment, config.cluster_pattern
    scale = max(1.0, math.hypot(a, b))
    a, b = a / scale, b / scale
    own = min(max(own, 1e-9), 1 - 1e-9)
    z = a * NORMAL.inv_cdf(environment) + b * NORMAL.inv_cdf(pattern) + math.sqrt(max(0.0, 1 - a * a - b * b)) * NORMAL.inv_cdf(own)
    u = NORMAL.cdf(z)
    if u < config.impossible:
        return "impossible"
    return "trivial" if u >= 1 - config.trivial else "possible"


def _depth(config: ToolWorldConfig, world: World, rng: random.Random) -> int:
    """Number of operations: uniform over the pool for the profile `uniform`, tilted by environment."""
    own = NORMAL.inv_cdf(min(max(rng.random(), 1e-9), 1 - 1e-9))
    z = DEPTH_LOADING * NORMAL.inv_cdf(spread(config.seed, "depth", world.index)) + math.sqrt(1 - DEPTH_LOADING**2) * own
    u = NORMAL.cdf(z)
    match config.depth:
        case "shallow":
            u = u * u
        case "deep":
            u = 1 - (1 - u) ** 2
    choices = config.max_operations - config.min_operations + 1
    return config.min_operations + min(int(u * choices), choices - 1)


def available(world: World, size: int, batches: bool = True) -> list[int]:
    """Patterns of at most `size` operations in this environment; a batch has at least two."""
    return [
        i
        for i, pattern in enumerate(PATTERNS)
        if world.features.issuperset(pattern.features)
        and len(pattern.operations) + pattern.batch <= size
        and (batches or not pattern.batch)
    ]


def _draw(seed: int, world: World, place: float, options: list[int]) -> Pattern:
    """The pattern at `place` in (0, 1) of the environment's distribution, in an order that all environments of a seed share."""
    rank = stream(seed, "patterns").sample(range(len(PATTERNS)), len(PATTERNS))
    options = sorted(options, key=rank.__getitem__)
    steps = list(itertools.accumulate(world.preference[i] * len(PATTERNS[i].operations) for i in options))
    return PATTERNS[options[bisect.bisect_right(steps, place * steps[-1], hi=len(steps) - 1)]]


def _units(seed: int, world: World, own: Pattern, depth: int, rng: random.Random) -> tuple[Unit, ...]:
    """The task's own pattern, then it or others until the operations add up to `depth`; at most one batch."""
    size = rng.randint(2, min(MAX_BATCH, depth)) if own.batch else len(own.operations)
    units = [Unit(pattern=own, size=size)]
    while left := depth - sum(unit.size for unit in units):
        pattern = own
        if own.batch or len(own.operations) > left or rng.random() < SECOND_PATTERN:
            pattern = _draw(seed, world, rng.random(), available(world, left, batches=False))
        units.append(Unit(pattern=pattern, size=len(pattern.operations)))
    return tuple(units)
