"""The scripted rollout engine: from a selection to groups of rewards, in real environments.

Knows: K rollouts a task, worker processes, when the policy learns.
Does not know: schedulers, ledgers, how skill works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Pick, Rollout, RolloutGroup, Selection, Status
from envsched_gnn.train.environments import play
from envsched_gnn.train.policies.scripted import ScriptedPolicy
from envsched_gnn.train.workers import Job, Outcome, WorkerPool


class ScriptedEngine:
    """`Engine` whose policy is a `ScriptedPolicy`. A context manager; worker processes end with the block, or with the program.

    Args:
        pool: python_class and bfcl environments can be executed.
        num_rollouts: K, rollouts a task, where a selection does not say how many.
        workers: processes.
        memory_mb: address-space limit of each, MiB.
        seed, skill_start, skill_gain: of the policy.
    """

    def __init__(
        self,
        pool: Pool,
        num_rollouts: int = 8,
        *,
        workers: int = 2,
        memory_mb: int = 2048,
        seed: int = 0,
        skill_start: float = 0.35,
        skill_gain: float = 0.02,
    ) -> None:
        self._pool = pool
        self._num_rollouts = num_rollouts
        self._workers = WorkerPool(workers, memory_mb)
        self.policy = ScriptedPolicy(pool, seed=seed, skill_start=skill_start, skill_gain=skill_gain)

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. Idempotent."""
        self._workers.close()

    @property
    def timings(self) -> dict[str, float]:
        """None: a round of this engine is its rollouts."""
        return {}

    def rollout(self, selection: Selection, finished: Iterable[RolloutGroup] = ()) -> Iterator[RolloutGroup]:
        """Groups as they finish; when all are taken, the policy has learned from the round: `play`, then `learn`."""
        known = {group.group_id: group for group in finished}
        for group in self.play(selection, list(known.values())):
            known[group.group_id] = group
            yield group
        self.learn([known[group_id] for group_id in selection.group_ids])

    def play(self, selection: Selection, finished: Iterable[RolloutGroup] = ()) -> Iterator[RolloutGroup]:
        """Groups as they finish, of `selection.num_rollouts` rollouts if it says how many; nothing is learned.

        Args:
            selection: tasks of this pool.
            finished: groups of this selection that an interrupted run has already; they are not played or yielded again.

        Raises:
            PoolError: a task is not in the pool.
            EnvSchedError: worker processes do not start.
        """
        there = {group.group_id for group in finished}
        picks = [pick for pick in selection.picks if pick.group_id not in there]
        asked = [(self._pool.row(pick.key), pick.group_id) for pick in picks]
        for place, rollouts in self._played(asked, selection.num_rollouts or self._num_rollouts):
            yield _group(picks[place], selection.step, rollouts)

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """One round's practice."""
        self.policy.learn(groups)

    def evaluate(self, rows: Sequence[int], samples: int) -> list[list[float | None]]:
        """Rewards [rows][samples] of tasks; nothing is learned, and the next round is as if there had been no evaluation."""
        asked = [(row, f"evaluation {self.policy.version}:{self._pool.keys[row]}") for row in rows]
        played = dict(self._played(asked, samples))
        return [[rollout.reward for rollout in played[place]] for place in range(len(rows))]

    def state_dict(self) -> dict[str, Any]:
        """What the policy has practised, in plain JSON values."""
        return self.policy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.policy.load_state_dict(state)

    def _played(self, asked: Sequence[tuple[int, str]], size: int) -> Iterator[tuple[int, tuple[Rollout, ...]]]:
        """(position, `size` rollouts) of each (row of the pool, name of the occasion) as it finishes."""
        jobs, statuses = self._plan(asked, size)
        version = self.policy.version
        rollouts: list[dict[int, Rollout]] = [{} for _ in asked]
        for place, k, outcome in self._workers.run(jobs):
            rollouts[place][k] = _rollout(outcome, statuses[place][k], version)
            if len(rollouts[place]) == size:
                yield place, tuple(rollouts[place][k] for k in range(size))

    def _plan(self, asked: Sequence[tuple[int, str]], size: int) -> tuple[list[Job], list[list[Status]]]:
        """All requests, and the status of each if it goes well: the policy acts before it sees any reward of the round."""
        jobs, statuses = [], []
        for row, occasion in asked:
            task = self._pool.tasks[row]
            environment = self._pool.environment_of[task.env_id]
            acts = (self.policy.act(task, occasion, k) for k in range(size))
            requests, planned = zip(*(play(turns, environment.max_turns) for turns in acts), strict=True)
            jobs.append(Job(environment=environment, task=task, requests=requests))
            statuses.append(list(planned))
        return jobs, statuses


def _rollout(outcome: Outcome, status: Status, version: int) -> Rollout:
    reward = outcome.reply["reward"] if outcome.status == "ok" else None
    return Rollout(
        reward=reward,
        status=status if outcome.status == "ok" else outcome.status,
        seconds=outcome.seconds,
        policy_version=version,
        detail=outcome.detail,
    )


def _group(pick: Pick, step: int, rollouts: tuple[Rollout, ...]) -> RolloutGroup:
    return RolloutGroup(group_id=pick.group_id, env_id=pick.env_id, task_id=pick.task_id, step=step, rollouts=rollouts)
