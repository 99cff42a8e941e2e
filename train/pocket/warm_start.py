"""The pocket policy before RL: taught gold trajectories until it solves some tasks and not most.

Knows: which tasks teach, how words give untaught tools a meaning, when lessons end, the cache of the result.
Does not know: RL.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from envsched_gnn.config_training import ModelConfig
from envsched_gnn.errors import PoolError
from envsched_gnn.pool.pool import Pool
from envsched_gnn.train import checkpoint
from envsched_gnn.train.pocket.gold import gold_plans
from envsched_gnn.train.pocket.language import JOIN, TOOL, Language
from envsched_gnn.train.pocket.model import completion_logprobs, new_model
from envsched_gnn.train.workers import WorkerPool

LEARNING_RATE = 3e-3
BATCH = 64
CHECK_EVERY = 25
"""Lessons between two looks at what the policy solves (ours, as the two above)."""
NAME_SHARE = 0.8
"""Of a tool's first embedding, what comes from the words of its name (ours)."""
VERSION = 2
"""Of what this package does: part of the cache's name."""

Lesson = tuple[list[int], list[int]]


def warm_model(
    pool: Pool,
    language: Language,
    config: ModelConfig,
    workers: WorkerPool,
    solved: Callable[[Qwen3ForCausalLM], float],
    cache: Path,
    sampling: tuple[float, int],
) -> Qwen3ForCausalLM:
    """The policy that RL begins with, a function of the pool and the settings; read from the cache if it was made before.

    Args:
        solved: mean reward of a policy on tasks that it was not taught, in [0, 1].
        cache: folder; the file is named after the pool and the settings. Where it cannot be written, the policy is not kept.
        sampling: temperature and longest completion, on which `solved` depends.

    Raises:
        PoolError: no task is set aside to teach from, or none has a gold trajectory that the language can write.
    """
    model = untaught_model(language, config)
    folder = cache / _name(pool, config, sampling)
    kept, _ = checkpoint.load_newest(folder)
    if kept is None:
        _teach(model, lessons_of(pool, language, workers), config, solved, language.free if config.own_tools else None)
        with suppress(OSError):
            checkpoint.save(folder, 0, {"model": model.state_dict()})
    else:
        model.load_state_dict(kept["model"])
    return model


def untaught_model(language: Language, config: ModelConfig) -> Qwen3ForCausalLM:
    """Random weights, where tools whose names share words have embeddings that share as much."""
    model = new_model(language.size, hidden_size=config.hidden_size, layers=config.layers, pad=language.pad, end=language.end)
    table = torch.as_tensor(model.get_input_embeddings().weight).detach()
    generator = torch.Generator().manual_seed(1)
    words: dict[str, torch.Tensor] = {}
    for tool in language.tools:
        parts = tool.removesuffix(TOOL).split(JOIN)
        for word in parts:
            row = language.row(word)
            fresh = torch.randn(table.shape[1], generator=generator) * model.config.initializer_range
            words.setdefault(word, fresh if row is None else table[row].clone())
        name = torch.stack([words[word] for word in parts]).sum(0) / math.sqrt(len(parts))
        (place,) = language.encode([tool])
        table[place] = NAME_SHARE * name + (1 - NAME_SHARE) * table[place]
    return model


def lessons_of(pool: Pool, language: Language, workers: WorkerPool) -> list[Lesson]:
    """(prompt, plan) in tokens of the tasks that teach, in row order."""
    lessons = []
    taught = (row for row, task in enumerate(pool.tasks) if task.taught)
    for row, plan in sorted(gold_plans(pool, taught, workers), key=lambda pair: pair[0]):
        reading = language.read(pool.environment_of[pool.tasks[row].env_id], pool.tasks[row])
        ids = language.write(reading, plan)
        if ids is not None and {*ids} <= {*reading.ids, *language.free}:
            lessons.append((reading.ids, ids))
    if not lessons:
        raise PoolError(
            f"{pool.source}: no task that is set aside to teach the pocket model has a gold trajectory that it could write. "
            "Raise pool.taught_share, or train a language model (model.kind)."
        )
    return lessons


def _name(pool: Pool, config: ModelConfig, sampling: tuple[float, int]) -> str:
    return hashlib.sha256(repr((VERSION, pool.content_hash, sorted(asdict(config).items()), sampling)).encode()).hexdigest()[:24]


def _teach(
    model: Qwen3ForCausalLM,
    lessons: Sequence[Lesson],
    config: ModelConfig,
    solved: Callable[[Qwen3ForCausalLM], float],
    free: Sequence[int] | None,
) -> None:
    chance = random.Random("lessons")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for batch in range(config.warm_start_batches):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (batch + 1) / CHECK_EVERY)
        prompts, plans = zip(*(chance.choice(lessons) for _ in range(BATCH)), strict=True)
        logprobs, mask = completion_logprobs(model, prompts, plans, free=free)
        optimizer.zero_grad()
        (-logprobs.sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (batch + 1) % CHECK_EVERY == 0 and solved(model) >= config.warm_start_reward:
            break
