"""The settings of the simulator: a pool that is drawn, and a learner that is a formula.

Knows: names, defaults, legal values; all are ours. What they mean together stands in `eval/simulate/__init__.py`.
Does not know: the model. Every other verb reads none of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from envsched_gnn.errors import require


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    """`envsched simulate`. Policy, steps and seed of the scheduler are those of `run`, batch and quotas of `select`."""

    environments: int = 51
    tasks: int = 50
    """Tasks an environment."""
    seed: int = 0
    """Of the pool: who needs which skill, and how hard it is at the start."""
    structure: float = 1.0
    """Share of tasks that show the environment, skills and pattern which they have. The others show those of a random task, so that at 0
    environment, pattern and similarity say nothing, and difficulties are what they were."""
    environment_skills: int = 4
    """Skills of each environment; a task needs two."""
    operations: int = 24
    """Skills that all environments share; a pattern needs three."""
    patterns: int = 40
    """Abstract patterns; a task has one."""
    environment_share: float = 0.3
    """Share of the variance of initial difficulty (in logits) that comes from the environment's skills."""
    pattern_share: float = 0.3
    """Share that comes from the operations of the pattern; the rest is the task's own."""
    success_start: float = 0.35
    """Chance of success of a task of middling difficulty before any practice."""
    spread: float = 2.0
    """Standard deviation of initial difficulty, logits."""
    gain_environment: float = 0.02
    """Logits that a group of standard deviation 1/2 adds to a task that needs the same skills of its environment; half of it where one of
    two is shared."""
    gain_pattern: float = 0.002
    """The same for the operations of patterns: a third of it for each that is shared."""
    gain_own: float = 0.1
    """The same for the very task."""
    drift: float = 0.01
    """Standard deviation, in logits a round, of how tasks become easier or harder without practice, each with all that need its skills."""
    impossible: float = 0.2
    """Share of tasks that never succeed."""
    trivial: float = 0.1
    """Share of tasks that always do."""
    cluster_environment: float = 0.5
    """How strongly these cluster by environment, 0 not at all, 1 whole environments: a loading, as `pool.toolworld.cluster_environment`."""
    cluster_pattern: float = 0.5
    """The same, by pattern."""
    reward: Literal["fractional", "binary"] = "fractional"
    """Share of checks passed, or one check."""
    checks: int = 8
    """Most checks of a task; a pattern has 2 to so many."""
    together: float = 0.5
    """Share of rollouts in which all checks pass or none does; in the others each passes on its own."""
    similarity_noise: float = 0.1
    """Standard deviation of what is added to a similarity within environments; between patterns it is noise of the vectors' entries, and
    of prompts the share of words that are random ones."""
    held_out_tasks: float = 0.1
    """Share of each training environment's tasks that is held out."""
    held_out_environments: float = 0.0
    """Share of environments that is held out whole."""
    tokens: float = 400.0
    """Tokens of a typical rollout."""
    tokens_a_second: float = 50.0

    def __post_init__(self) -> None:
        for name, least in (("environments", 1), ("tasks", 1), ("seed", 0), ("environment_skills", 2), ("operations", 3), ("patterns", 1)):
            require(getattr(self, name) >= least, f"simulate.{name}", getattr(self, name), f"at least {least}")
        require(self.checks >= 2, "simulate.checks", self.checks, "at least 2")
        for name in ("structure", "environment_share", "pattern_share", "impossible", "trivial", "cluster_environment", "cluster_pattern"):
            require(0 <= getattr(self, name) <= 1, f"simulate.{name}", getattr(self, name), "a share from 0 to 1")
        require(0 <= self.together <= 1, "simulate.together", self.together, "a share from 0 to 1")
        for name in ("held_out_tasks", "held_out_environments"):
            require(0 <= getattr(self, name) < 1, f"simulate.{name}", getattr(self, name), "a share from 0 to below 1")
        for first, second in (("environment_share", "pattern_share"), ("impossible", "trivial")):
            total = getattr(self, first) + getattr(self, second)
            require(total <= 1, f"simulate.{first} + {second}", total, "at most 1")
        require(0 < self.success_start < 1, "simulate.success_start", self.success_start, "a probability between 0 and 1")
        for name in ("spread", "gain_environment", "gain_pattern", "gain_own", "drift", "similarity_noise"):
            require(0 <= getattr(self, name) < math.inf, f"simulate.{name}", getattr(self, name), "a number from 0")
        for name in ("tokens", "tokens_a_second"):
            require(0 < getattr(self, name) < math.inf, f"simulate.{name}", getattr(self, name), "a positive number")
