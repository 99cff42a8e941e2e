"""The simulated learner: how likely each task succeeds, and what practice does to it.

Knows: the formulas of this folder's page, practice by skill, operation and task.
Does not know: who chooses tasks, how rewards are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from envsched_gnn.errors import CheckpointError
from envsched_gnn.eval.simulate.rewards import informative_chance
from envsched_gnn.eval.simulate.world import NEEDED, PER_PATTERN, World, stream

PARTS = ("skills", "operations", "own", "skill_drift", "operation_drift")
"""What `state_dict` holds besides the version."""


class Learner:
    """A policy as numbers. Rows are those of the pool: `world.behaves_as` is applied here and nowhere else.

    Args:
        seed: of the drift.
    """

    def __init__(self, world: World, seed: int = 0) -> None:
        config, rows = world.config, world.behaves_as
        self._config, self._seed = config, seed
        self._start, self._dead = world.start[rows], world.dead[rows]
        self._skills, self._operations = world.skills[rows], world.operations[world.pattern[rows]]
        self.checks = world.checks[rows]
        """[tasks] int64."""
        self.version = 0
        """Rounds learned from."""
        self._state = {
            "skills": np.zeros(config.environments * config.environment_skills),
            "operations": np.zeros(config.operations),
            "own": np.zeros(len(rows)),
            "skill_drift": np.zeros(config.environments * config.environment_skills),
            "operation_drift": np.zeros(config.operations),
        }

    @property
    def live(self) -> np.ndarray:
        """Tasks that can succeed and fail, [tasks] bool."""
        return self._dead == 0

    def logits(self) -> np.ndarray:
        """z_i = start + gains * practice + drift, [tasks]; of dead tasks too, where it plays no part."""
        state, config = self._state, self._config
        practised = config.gain_environment * state["skills"][self._skills].sum(1)
        practised += config.gain_pattern * state["operations"][self._operations].sum(1) + config.gain_own * state["own"]
        drifted = state["skill_drift"][self._skills].sum(1) / np.sqrt(2 * NEEDED)
        drifted += state["operation_drift"][self._operations].sum(1) / np.sqrt(2 * PER_PATTERN)
        return self._start + practised + drifted

    def success(self) -> np.ndarray:
        """p_i = sigmoid(z_i), the chance that a check passes and the mean reward, [tasks]; 0 of impossible and 1 of trivial tasks."""
        return np.where(self._dead == 0, expit(self.logits()), self._dead > 0)

    def informative_chance(self, num_rollouts: int) -> np.ndarray:
        """P(v > 0) of the next group of every task, exact, [tasks]."""
        return informative_chance(self.success(), self.checks, self._config.together, num_rollouts)

    def learn(self, groups: Iterable[tuple[int, Sequence[float]]]) -> None:
        """Practise on the groups (row, rewards in [0, 1]) of one round, then drift.

        A group of standard deviation s adds 2s to its task, 2s/2 to each of two skills and 2s/3 to each of three operations.
        """
        for row, rewards in groups:
            amount = 2 * deviation(rewards)
            self._state["own"][row] += amount
            self._state["skills"][self._skills[row]] += amount / NEEDED
            self._state["operations"][self._operations[row]] += amount / PER_PATTERN
        for name in ("skill_drift", "operation_drift"):
            step = stream(self._seed, name, self.version).standard_normal(len(self._state[name]))
            self._state[name] += self._config.drift * step
        self.version += 1

    def state_dict(self) -> dict[str, Any]:
        """Practice and drift, exact."""
        return {"version": self.version, **{name: torch.from_numpy(values.copy()) for name, values in self._state.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave.

        Raises:
            CheckpointError: something is missing, or belongs to another world.
        """
        sizes = {name: len(values) for name, values in self._state.items()}
        found = {name: len(state[name]) if name in state else None for name in PARTS}
        if "version" not in state or found != sizes:
            raise CheckpointError(f"state of the simulated learner: {found}; expected a version and {sizes}. Use the same [simulate].")
        self.version = int(state["version"])
        self._state = {name: state[name].numpy().copy() for name in PARTS}


def deviation(rewards: Sequence[float]) -> float:
    """Population standard deviation; exactly 0 where all are equal, or fewer than two."""
    return float(np.std(rewards)) if len(set(rewards)) > 1 else 0.0
