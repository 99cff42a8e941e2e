"""The pocket policy in TRL's trainer, beside language models of any size: its rollouts by `rollout_func`, its rewards as played.

Knows: what TRL hands to a `rollout_func` and wants from it, the engine's stages, the tokenizer that TRL asks for.
Does not know: how any stage works, schedulers.

    with PocketEngine(pool, config.model, config.train, config.rollout, config.run.seed) as engine:
        pocket_trainer(config, engine, scheduler, folder).train()

From the same rollouts the trainer and the engine make the same update, which a test holds. `envsched train` takes the engine: TRL puts
every rollout of a round through the model, the engine only those whose group has variance.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig

from envsched_gnn.config import Config
from envsched_gnn.errors import require
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Rollout
from envsched_gnn.schedule import Scheduler
from envsched_gnn.train.pocket.engine import PocketEngine
from envsched_gnn.train.pocket.generate import Completion
from envsched_gnn.train.pocket.language import END, PAD, UNKNOWN, Language, Reading
from envsched_gnn.train.pocket.model import MAX_POSITION
from envsched_gnn.train.trl.build import ScheduledGRPO, arguments_of
from envsched_gnn.train.trl.mixin import OnRound


def pocket_trainer(
    config: Config, engine: PocketEngine, scheduler: Scheduler, folder: Path, *, on_round: OnRound | None = None
) -> ScheduledGRPO:
    """TRL's GRPO on the tasks of a scheduler, whose rollouts the engine writes and plays; it trains `engine.model` on the CPU.

    Raises:
        ConfigError: the settings, the pool and the scheduler do not fit together.
    """
    require(not config.model.own_tools, "model.own_tools", config.model.own_tools, "false: TRL's trainer puts every token in the softmax")
    arguments = arguments_of(config, folder, device=torch.device("cpu"), devices=1, sequence_tokens=MAX_POSITION)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)  # that TRL calls it experimental
        return ScheduledGRPO(
            model=engine.model,
            args=GRPOConfig(**arguments),
            processing_class=tokenizer_of(engine.language),
            train_dataset=rows_of(engine.pool, engine.language),
            reward_funcs=[played_reward],
            rollout_func=PocketRollouts(engine),
            scheduler=scheduler,
            on_round=on_round,
        )


def tokenizer_of(language: Language) -> PreTrainedTokenizerFast:
    """The language as a tokenizer of transformers: texts whose tokens are parted by spaces."""
    return PreTrainedTokenizerFast(tokenizer_object=language.tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)


def rows_of(pool: Pool, language: Language) -> Dataset:
    """All tasks in pool order: `task_id` (env_id/task_id), `prompt` (the tokens that the policy reads, parted by spaces)."""
    readings = (language.read(pool.environment_of[task.env_id], task) for task in pool.tasks)
    return Dataset.from_dict({"task_id": list(pool.keys), "prompt": [" ".join(language.decode(reading.ids)) for reading in readings]})


class PocketRollouts:
    """TRL `rollout_func`: what the policy writes for the rows of a generation batch, with rewards and statuses as played."""

    def __init__(self, engine: PocketEngine) -> None:
        self._engine = engine

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """One rollout a prompt, in the order of `trainer.envsched_inputs`.

        Returns:
            prompt_ids, completion_ids, logprobs; and the columns `played` (reward, None where it failed) and `envsched_status`.
        """
        engine, keys = self._engine, [row["task_id"] for row in trainer.envsched_inputs]
        occasion = f"round {trainer.envsched_rounds}" if trainer.model.training else f"evaluation {trainer.state.global_step}"
        places: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        rows, groups = [engine.pool.index_of[key] for key in places], list(places.values())
        written = engine.write(rows, max(map(len, groups)), occasion)
        completions = [some[: len(group)] for some, group in zip(written, groups, strict=True)]
        rollouts: list[dict[str, Any]] = [{} for _ in keys]
        for number, outcomes in engine.execute(rows, completions):
            for place, completion, outcome in zip(groups[number], completions[number], outcomes, strict=True):
                rollouts[place] = _columns(engine.reading(rows[number]), completion, engine.rollout_of(completion, outcome))
        return {name: [rollout[name] for rollout in rollouts] for name in rollouts[0]}


def _columns(reading: Reading, completion: Completion, rollout: Rollout) -> dict[str, Any]:
    return {
        "prompt_ids": reading.ids,
        "completion_ids": completion.ids,
        "logprobs": completion.logprobs,
        "played": rollout.reward,
        "envsched_status": rollout.status,
    }


def played_reward(played: list[float | None], **batch: Any) -> list[float | None]:  # TRL hands over every column
    """TRL reward function: what the environment said."""
    return played
