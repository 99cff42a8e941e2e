"""The pocket policy as a rollout engine that learns: plans for a selection, executed in real environments, then one GRPO update.

Knows: the order generate, play, learn; what is seeded by what; evaluation.
Does not know: schedulers, ledgers, how any stage works.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from envsched_gnn.config import RolloutConfig
from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.errors import PoolError, message
from envsched_gnn.files import cache_folder
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import REWARDED, Rollout, RolloutGroup, Selection, Status, group_id_of
from envsched_gnn.stopwatch import Stopwatch
from envsched_gnn.train.pocket.generate import Completion, generate
from envsched_gnn.train.pocket.language import Language, Reading
from envsched_gnn.train.pocket.model import MAX_POSITION
from envsched_gnn.train.pocket.play import Player
from envsched_gnn.train.pocket.update import Learner, Sample
from envsched_gnn.train.pocket.warm_start import warm_model
from envsched_gnn.train.workers import Outcome, WorkerPool

AT_ONCE = 512
"""Rollouts generated at once: more do not fit the processor's cache (ours)."""
LOOK = 256
"""Tasks on which the warm start looks whether it has taught enough (ours)."""


class PocketEngine:
    """`Engine` whose policy is a tiny model. A context manager; worker processes end with the block.

    A round is a function of the weights, the seed and the selections.

    Args:
        pool: python_class environments with some tasks of gold trajectories set aside to teach from (`pool.taught_share`).
        seed: of the sampling. The policy before RL does not depend on it, but on the pool, `model`, and how `train` samples.
        cache: where warm-started policies are kept; by default a folder of the user's cache.

    Raises:
        PoolError: there is nothing to teach the policy from, or nothing to train on, or a task is too long to read.
        ConfigError: a training setting that the pocket policy does not have.
    """

    def __init__(
        self, pool: Pool, model: ModelConfig, train: TrainConfig, rollout: RolloutConfig, seed: int, *, cache: Path | None = None
    ) -> None:
        self.pool, self._train, self._num_rollouts, self._seed = pool, train, rollout.num_rollouts, seed
        self.language = Language(pool)
        self._free = self.language.free if model.own_tools else None
        _check(pool, self.language, train)
        self._readings: dict[int, Reading] = {}
        self._workers = WorkerPool(rollout.workers, rollout.memory_mb)
        self._player = Player(pool, self._workers)
        self._version = 0
        self._written: dict[str, list[Completion]] = {}
        """What the policy wrote for each group since it last learned."""
        self._watch = Stopwatch()
        try:
            sampling = (train.temperature, train.max_completion_tokens)
            self.model = warm_model(pool, self.language, model, self._workers, self._solved, cache or cache_folder() / "pocket", sampling)
            self._learner = Learner(self.model, train, self._free)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PocketEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. Idempotent."""
        self._workers.close()

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of generate, play and learn since the round began."""
        return self._watch.seconds

    def rollout(self, selection: Selection, finished: Iterable[RolloutGroup] = ()) -> Iterator[RolloutGroup]:
        """Groups as they finish; when all are taken, the policy has learned from the round: `play`, then `learn`."""
        known = {group.group_id: group for group in finished}
        for group in self.play(selection, list(known.values())):
            known[group.group_id] = group
            yield group
        self.learn([known[group_id] for group_id in selection.group_ids])

    def play(self, selection: Selection, finished: Iterable[RolloutGroup] = (), occasion: str = "") -> Iterator[RolloutGroup]:
        """Groups as they finish, of `selection.num_rollouts` rollouts if it says how many; nothing is learned.

        Args:
            selection: tasks of this pool.
            finished: groups of this selection that an interrupted run has already; not played or yielded again, but written again.
            occasion: decides with the engine's seed what is sampled; by default step and use of the selection, and where it is not simply
                trained on, its first group.
        """
        if not self._written:
            self._watch = Stopwatch()
        there = {group.group_id for group in finished}
        rows = [self.pool.index_of[pick.key] for pick in selection.picks]
        completions = self.write(rows, selection.num_rollouts or self._num_rollouts, occasion or _occasion(selection))
        self._written |= zip(selection.group_ids, completions, strict=True)
        missing = [place for place, group_id in enumerate(selection.group_ids) if group_id not in there]
        for place, outcomes in self.execute([rows[place] for place in missing], [completions[place] for place in missing]):
            yield self._group(selection, missing[place], completions[missing[place]], outcomes)

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """One round's update, from groups that were played since the last one; pilots come first in the group of their task."""
        completions = []
        for group in groups:
            pilots = self._written.get(group_id_of(group.step, group.env_id, group.task_id, "pilot"), [])
            completions.append(pilots + self._written[group.group_id])
        self._written = {}
        self.update([self.pool.index_of[group.key] for group in groups], completions, [group.rewards for group in groups])

    def _group(self, selection: Selection, place: int, completions: Sequence[Completion], outcomes: Sequence[Outcome]) -> RolloutGroup:
        pick = selection.picks[place]
        rollouts = tuple(self.rollout_of(*pair) for pair in zip(completions, outcomes, strict=True))
        return RolloutGroup(group_id=pick.group_id, env_id=pick.env_id, task_id=pick.task_id, step=selection.step, rollouts=rollouts)

    def update(self, rows: Sequence[int], completions: Sequence[Sequence[Completion]], rewards: Sequence[Sequence[float | None]]) -> None:
        """One update, from the completions and rewards of each task."""
        with self._watch("learn"):
            self._learner.learn(
                [
                    [Sample(prompt=self.reading(row).ids, completion=c, reward=reward) for c, reward in zip(some, group, strict=True)]
                    for row, some, group in zip(rows, completions, rewards, strict=True)
                ]
            )
        self._version += 1

    def evaluate(self, rows: Sequence[int], samples: int) -> list[list[float | None]]:
        """Rewards [rows][samples] of tasks; nothing is learned, and the next round is as if there had been no evaluation."""
        return self._rewards(rows, self.write(rows, samples, f"evaluation {self._version}"))

    def _solved(self, model: Qwen3ForCausalLM) -> float:
        """Mean reward on some tasks of the training set, mapped to [0, 1]."""
        rows = [row for row, task in enumerate(self.pool.tasks) if not task.held_out]
        rows = random.Random("look").sample(rows, min(LOOK, len(rows)))
        rewards = self._rewards(rows, self._generate(model, rows, 1, "look"))
        spans = [self.pool.reward_ranges[row] for row in rows]
        shares = [0.0 if reward is None else (reward - low) / (high - low) for (reward,), (low, high) in zip(rewards, spans, strict=True)]
        return sum(shares) / len(shares)

    def _rewards(self, rows: Sequence[int], completions: Sequence[Sequence[Completion]]) -> list[list[float | None]]:
        rewards: list[list[float | None]] = [[] for _ in rows]
        for place, outcomes in self.execute(rows, completions):
            rewards[place] = [_reward(outcome) for outcome in outcomes]
        return rewards

    def write(self, rows: Sequence[int], samples: int, seed: str) -> list[list[Completion]]:
        """Completions [rows][samples] of tasks; `seed` names the occasion."""
        with self._watch("generate"):
            return self._generate(self.model, rows, samples, f"{self._seed} {seed}")

    def _generate(self, model: Qwen3ForCausalLM, rows: Sequence[int], samples: int, seed: str) -> list[list[Completion]]:
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7]))
        at_once = max(AT_ONCE // samples, 1)
        completions: list[list[Completion]] = []
        for start in range(0, len(rows), at_once):
            completions += generate(
                model,
                [self.reading(row).ids for row in rows[start : start + at_once]],
                samples=samples,
                max_new_tokens=self._train.max_completion_tokens,
                generator=generator,
                temperature=self._train.temperature,
                free=self._free,
            )
        return completions

    def execute(self, rows: Sequence[int], completions: Sequence[Sequence[Completion]]) -> Iterator[tuple[int, list[Outcome]]]:
        """(position, outcomes) of each task as it finishes: its completions, executed."""
        with self._watch("play"):
            plans = [[self.language.plan(self.reading(row), c.ids) for c in some] for row, some in zip(rows, completions, strict=True)]
            yield from self._player.play(rows, plans)

    def reading(self, row: int) -> Reading:
        """The task in this row of the pool, as the policy reads it."""
        if row not in self._readings:
            task = self.pool.tasks[row]
            self._readings[row] = self.language.read(self.pool.environment_of[task.env_id], task)
        return self._readings[row]

    def rollout_of(self, completion: Completion, outcome: Outcome) -> Rollout:
        """What became of a completion."""
        status: Status = outcome.status
        if status == "ok" and completion.truncated:
            status = "truncated"
        return Rollout(
            reward=_reward(outcome),
            status=status,
            seconds=outcome.seconds,
            tokens=len(completion.ids),
            policy_version=self._version,
            detail=outcome.detail,
        )

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser and the number of rounds learned from."""
        return {"learner": self._learner.state_dict(), "version": self._version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._learner.load_state_dict(state["learner"])
        self._version = state["version"]


def _occasion(selection: Selection) -> str:
    plain = f"round {selection.step}"
    return plain if selection.use == "train" else " ".join((plain, selection.use, *selection.group_ids[:1]))


def _reward(outcome: Outcome) -> float | None:
    return float(outcome.reply["reward"]) if outcome.status in REWARDED else None


def _check(pool: Pool, language: Language, train: TrainConfig) -> None:
    if all(task.held_out for task in pool.tasks):
        cure = "Lower pool.taught_share, or mark fewer tasks with info.held_out."
        raise PoolError(message(pool.source, "all tasks are held out or set aside to teach from", "some to train on", cure))
    length, row = language.longest
    room = MAX_POSITION - train.max_completion_tokens
    if length > room:
        cure = "Shorten it, lower train.max_completion_tokens, or train a language model (model.kind)."
        raise PoolError(
            message(f"task {pool.keys[row]!r}", f"{length} tokens with its tools", f"at most {room} for the pocket model", cure)
        )
