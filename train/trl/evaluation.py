"""Held-out tasks through a trainer's own rollouts.

Knows: how TRL's trainer generates and scores outside of training, how ranks share the rows.
Does not know: which tasks are held out, when they are played, what is made of the rewards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object

from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Status
from envsched_gnn.train.trl.feedback import combined


def evaluate(trainer: Any, pool: Pool, rows: Sequence[int], samples: int) -> list[list[float | None]]:
    """Rewards [rows][samples] of tasks of the pool, by rollouts as in training; nothing is learned. All ranks call it.

    Seeded alike at every evaluation, and the generators of training stay as they are. A rollout that the policy did not end within its
    limits gets the lowest reward of its task (ours): left out as in training, it would flatter a policy that never ends.
    """
    ranks, place = trainer.accelerator.num_processes, trainer.accelerator.process_index
    unit = ranks // math.gcd(ranks, samples)
    size = max(trainer.args.generation_batch_size // samples // unit, 1) * unit
    rewards: list[float | None] = []
    with _set_apart(trainer, samples) as scored:
        for begin in range(0, len(rows), size):
            some = rows[begin : begin + size]
            padded = [row for row in (*some, *[some[-1]] * (-len(some) % unit)) for _ in range(samples)]  # as many on every rank
            share = len(padded) // ranks
            mine = padded[place * share : (place + 1) * share]
            trainer._generate_and_score_completions([dict(trainer.train_dataset[row]) for row in mine])
            statuses = gather_object([environment.status for environment in trainer.environments])
            found = zip(padded, combined(scored.pop(), trainer.reward_weights), statuses, strict=True)
            rewards += [_judged(reward, status, pool.reward_ranges[row][0]) for row, reward, status in found][: len(some) * samples]
    return [rewards[at : at + samples] for at in range(0, len(rewards), samples)]


def _judged(reward: float, status: Status, lowest: float) -> float | None:
    if math.isnan(reward):
        return lowest if status == "truncated" else None
    return reward


@contextmanager
def _set_apart(trainer: Any, samples: int) -> Iterator[list[torch.Tensor]]:
    """The model in evaluation mode, `samples` rollouts a task, other random numbers, then all as before; gives the list to which the raw
    rewards [rows of all ranks, functions] of each batch are added."""
    group, score, scored = trainer.num_generations_eval, trainer._calculate_rewards, []

    def keep(*batch: Any) -> torch.Tensor:
        scored.append(score(*batch))
        return scored[-1]

    cuda = trainer.accelerator.device.type == "cuda"
    with torch.random.fork_rng(devices=[trainer.accelerator.device] if cuda else []), torch.no_grad():
        torch.manual_seed(trainer.args.seed + trainer.accelerator.process_index)
        trainer.num_generations_eval, trainer._calculate_rewards = samples, keep
        trainer.model.eval()
        try:
            yield scored
        finally:
            del trainer._calculate_rewards
            trainer.num_generations_eval = group
            trainer.model.train()
            trainer._metrics["eval"].clear()
