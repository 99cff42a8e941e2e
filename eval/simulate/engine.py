"""The simulated rollout engine: rewards that are drawn, and a learner that learns from them.

Knows: K rollouts a task, what a rollout costs, when the learner learns.
Does not know: schedulers, ledgers, how success comes about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from envsched_gnn.eval.simulate.learner import Learner
from envsched_gnn.eval.simulate.rewards import draw
from envsched_gnn.eval.simulate.world import World, stream
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Pick, Rollout, RolloutGroup, Selection

WOBBLE = 0.2
"""Standard deviation of the logarithm of a rollout's length, around that of its task (ours)."""


class SimulatedEngine:
    """`Engine` whose policy is a `Learner`.

    The rewards of a group follow from (seed, group id, the learner) and nothing else, so that policies that are compared draw alike.
    """

    def __init__(self, pool: Pool, world: World, num_rollouts: int = 8, *, seed: int = 0) -> None:
        self._pool, self._num_rollouts, self._seed = pool, num_rollouts, seed
        self._together, self._length = world.config.together, world.length[world.behaves_as]
        self._speed = world.config.tokens_a_second
        self.learner = Learner(world, seed)

    @property
    def timings(self) -> dict[str, float]:
        """None: a round of this engine is its rollouts."""
        return {}

    def rollout(self, selection: Selection, finished: Iterable[RolloutGroup] = ()) -> Iterator[RolloutGroup]:
        """Groups in rank order; when all are taken, the learner has learned from the round, unless they were only to be looked at.

        Args:
            selection: tasks of this pool.
            finished: groups of this selection that an interrupted run has already; not drawn or yielded again, but learned from.

        Raises:
            PoolError: a task is not in the pool.
        """
        known = {group.group_id: group for group in finished}
        for group in self.play(selection, list(known.values())):
            known[group.group_id] = group
            yield group
        if selection.use in ("train", "filter"):
            self.learn([known[group_id] for group_id in selection.group_ids])

    def play(self, selection: Selection, finished: Iterable[RolloutGroup] = ()) -> Iterator[RolloutGroup]:
        """Groups in rank order but those in `finished`, of `selection.num_rollouts` rollouts if it says how many; nothing is learned.

        Raises:
            PoolError: a task is not in the pool.
        """
        there = {group.group_id for group in finished}
        picks = [pick for pick in selection.picks if pick.group_id not in there]
        rows, success = [self._pool.row(pick.key) for pick in picks], self.learner.success()
        for pick, row in zip(picks, rows, strict=True):
            yield self._group(selection, pick, row, success[row])

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """One round's practice, on all its groups together."""
        rows = [self._pool.index_of[group.key] for group in groups]
        self.learner.learn((row, [r for r in group.rewards if r is not None]) for row, group in zip(rows, groups, strict=True))

    def evaluate(self, rows: Sequence[int], samples: int) -> list[list[float | None]]:
        """Rewards [rows][samples] of tasks; nothing is learned, and the next round is as if there had been no evaluation."""
        rng, success = stream(self._seed, "evaluation", self.learner.version), self.learner.success()
        return [draw(rng, success[row], self.learner.checks[row], self._together, samples).tolist() for row in rows]

    def state_dict(self) -> dict[str, Any]:
        """What the learner has practised."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.learner.load_state_dict(state)

    def _group(self, selection: Selection, pick: Pick, row: int, success: float) -> RolloutGroup:
        rng, k = stream(self._seed, pick.group_id), selection.num_rollouts or self._num_rollouts
        rewards = draw(rng, success, self.learner.checks[row], self._together, k)
        tokens = np.maximum(self._length[row] * np.exp(WOBBLE * rng.standard_normal(k)), 1).astype(int)
        rollouts = tuple(
            Rollout(reward=reward, seconds=length / self._speed, tokens=length, policy_version=self.learner.version)
            for reward, length in zip(rewards.tolist(), tokens.tolist(), strict=True)
        )
        return RolloutGroup(group_id=pick.group_id, env_id=pick.env_id, task_id=pick.task_id, step=selection.step, rollouts=rollouts)
