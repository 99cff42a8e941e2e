"""Quotas: how many tasks of an environment a round and a window of rounds may hold, how often in a row a task may come.

Knows: the limits, what was selected in the last rounds, which pick would break which quota.
Does not know: scores, eligibility, who picks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envsched_gnn.config import SelectConfig
from envsched_gnn.records import Quota
from envsched_gnn.schedule.exposure import Exposure

WINDOW = 3
"""Rounds of the rolling quota, the current one included (paper)."""
RELAXED: tuple[Quota, ...] = ("consecutive", "rolling", "per_round")
"""The order in which quotas are given up when no task is left (ours)."""


def limits(config: SelectConfig, environments: int) -> tuple[int, int]:
    """(per_round, rolling) = max(1, ceil(4 (B/64) (51/M))), floor(2.75 per_round), unless configured (ours; 4 and 11 in the paper).

    B is the configured batch size, also for a request of another size: several requests of a step share one round's quotas.
    M = `environments` that have a task which is not held out.
    """
    per_round = config.per_round or max(1, -(-204 * config.batch_size // (64 * max(environments, 1))))
    return per_round, config.rolling or 11 * per_round // 4


@dataclass(kw_only=True)
class Quotas:
    """The quotas of one round while it is filled. Quotas only tighten within a round, which the greedy pass relies on."""

    per_round: int
    rolling: int
    round_picks: np.ndarray
    """Picks of each environment in this round, [environments]."""
    window_picks: np.ndarray
    """The same in this round and the WINDOW - 1 before it."""
    repeated: np.ndarray
    """Rows of tasks that stood in each of the last `consecutive` rounds; rarely more than a batch."""

    def open_environments(self, relaxed: int) -> np.ndarray:
        """[environments] bool: may take one more task when the first `relaxed` quotas of RELAXED are given up."""
        open_ = np.ones(len(self.round_picks), dtype=bool)
        if relaxed < 2:
            open_ &= self.window_picks < self.rolling
        if relaxed < 3:
            open_ &= self.round_picks < self.per_round
        return open_

    def is_open(self, env: int, relaxed: int) -> bool:
        """`open_environments` of one environment."""
        return bool((relaxed >= 3 or self.round_picks[env] < self.per_round) and (relaxed >= 2 or self.window_picks[env] < self.rolling))

    def broken_by(self, task: int, env: int) -> list[Quota]:
        """The quotas that picking `task` of `env` now breaks, in the order of RELAXED."""
        broken = (task in self.repeated, self.window_picks[env] >= self.rolling, self.round_picks[env] >= self.per_round)
        return [quota for quota, is_broken in zip(RELAXED, broken, strict=True) if is_broken]

    def count(self, env: int) -> None:
        """A task of `env` was picked."""
        self.round_picks[env] += 1
        self.window_picks[env] += 1


def quotas_at(exposure: Exposure, step: int, config: SelectConfig, environments: int) -> Quotas:
    """The quotas at the state of round `step`, with what was already picked in it."""
    per_round, rolling = limits(config, environments)
    round_picks = exposure.environment_picks([step])
    before = exposure.rounds_before(step, WINDOW - 1)
    return Quotas(
        per_round=per_round,
        rolling=rolling,
        round_picks=round_picks,
        window_picks=round_picks + exposure.environment_picks(before),
        repeated=exposure.repeated(step, config.consecutive),
    )
