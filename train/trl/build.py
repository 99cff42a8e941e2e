"""A trainer from a configuration: TRL's GRPO on the tasks of a scheduler, with a pool's environments, beside vLLM if wanted.

Knows: which of TRL's settings each of ours is, and the order in which the parts are put together.
Does not know: how a run goes, what the parts do.

A round is one generation batch of B x K rollouts, split over the devices; `train.micro_batch` of them go through a backward pass at a time,
and gradients add up over the rest, so that a round makes one optimiser step, or `train.num_iterations`.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from envsched_gnn.config import Config
from envsched_gnn.config_training import TrainConfig
from envsched_gnn.errors import ConfigError, require
from envsched_gnn.pool.pool import Pool
from envsched_gnn.schedule import Scheduler
from envsched_gnn.train.memory.machine import Machine, machine_of
from envsched_gnn.train.memory.plan import memory_plan, share_of
from envsched_gnn.train.run import device_of
from envsched_gnn.train.trl.colocate import colocate, engine_arguments
from envsched_gnn.train.trl.environments import attach_environments, dataset_of, environment_factories, environment_reward
from envsched_gnn.train.trl.mixin import EnvSchedMixin, OnRound
from envsched_gnn.train.trl.models import load_model, load_tokenizer
from envsched_gnn.train.workers import WorkerPool

CHECKPOINTS = "trainer"
"""Folder of the trainer's checkpoints within a run's."""
KEPT_CHECKPOINTS = 2
"""A checkpoint that a kill or a full disk cuts short leaves the one before (ours)."""


class ScheduledGRPO(EnvSchedMixin, GRPOTrainer):
    """TRL's GRPOTrainer on the tasks that a scheduler proposes."""


def build_trainer(
    config: Config,
    pool: Pool,
    scheduler: Scheduler,
    folder: Path,
    *,
    workers: WorkerPool,
    on_round: OnRound | None = None,
    machine: Machine | None = None,
) -> ScheduledGRPO:
    """A trainer ready to `train()`; its checkpoints lie in `folder/trainer/checkpoint-STEP`.

    Everything that a configuration can get wrong is found before a weight is loaded.

    Args:
        workers: where episodes are played.
        on_round: called on rank 0 with the selection and the groups of each round.
        machine: what has to hold the run; by default this machine.

    Raises:
        ConfigError: a setting is impossible here, the model is not there or has no tools, or memory does not suffice.
        PoolError: an environment cannot be executed here.
    """
    device = check(config)
    plan = memory_plan(config, pool, machine or machine_of(config.run.device))
    plan.require()
    load_tokenizer(config.model)
    arguments = arguments_of(config, folder, device=device, devices=_processes(), sequence_tokens=plan.sequence_tokens)
    factories = environment_factories(pool, workers, config.train)
    model, tokenizer = load_model(config.model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using 'environment_factory'", UserWarning)  # that TRL calls it experimental
        trainer = ScheduledGRPO(
            model=model,
            args=GRPOConfig(**arguments),
            processing_class=tokenizer,
            train_dataset=dataset_of(pool),
            reward_funcs=[environment_reward],
            environment_factory=factories,
            scheduler=scheduler,
            on_round=on_round,
        )
    attach_environments(trainer)
    if config.vllm.mode == "colocate":
        colocate(trainer)
    return trainer


def check(config: Config) -> torch.device:
    """The device to train on, of this process.

    Raises:
        ConfigError: the settings cannot be combined, or do not suit the processes and GPUs that there are.
    """
    require(
        config.model.kind == "language_model",
        "model.kind",
        config.model.kind,
        "'language_model': the pocket model has an engine of its own",
    )
    if config.train.algorithm == "rloo":
        raise ConfigError(
            "train.algorithm = 'rloo': TRL's RLOOTrainer calls no tools. Set 'grpo', or attach() a scheduler to your own RLOOTrainer."
        )
    device, processes = device_of(config.run.device), _processes()
    if device.type == "cuda" and device.index:
        raise ConfigError(
            f"run.device = {config.run.device!r}: a trainer takes the first GPU. Set CUDA_VISIBLE_DEVICES and run.device = 'cuda'."
        )
    if device.type == "cuda" and processes == 1 and torch.cuda.device_count() > 1:
        raise ConfigError(
            f"{torch.cuda.device_count()} GPUs are visible to one process; expected one process a GPU. "
            "Start it with `torchrun --nproc-per-node GPUS`, or show it one GPU with CUDA_VISIBLE_DEVICES."
        )
    share_of(config, processes)
    return device


def arguments_of(config: Config, folder: Path, *, device: torch.device, devices: int, sequence_tokens: int) -> dict[str, Any]:
    """What TRL's GRPOConfig is made of.

    Args:
        devices: training processes.
        sequence_tokens: of the longest prompt and completion together, for vLLM.
    """
    t, cuda = config.train, device.type == "cuda"
    share, micro = share_of(config, devices)
    samples = config.evaluate.samples
    sharded = t.shard and devices > 1 and cuda  # accelerate shards on GPUs alone
    return {
        "output_dir": str(folder / CHECKPOINTS),
        # the round
        "generation_batch_size": share * devices,
        "num_generations": config.rollout.num_rollouts,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": share // micro,
        "num_iterations": t.num_iterations,
        "max_steps": config.run.steps * t.num_iterations,
        # episodes
        "temperature": t.temperature,
        "top_p": t.top_p,
        "max_completion_length": t.max_completion_tokens,
        "max_tool_calling_iterations": t.max_turns,
        # the update
        "loss_type": t.loss_type,
        "scale_rewards": t.scale_rewards,
        "beta": t.kl,
        "learning_rate": t.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if t.schedule == "constant" else t.schedule,
        "warmup_steps": t.warmup_steps,
        # where and how
        "use_cpu": not cuda,
        "bf16": cuda,
        _checkpointing(): t.gradient_checkpointing and not sharded,
        "seed": config.run.seed,
        "shuffle_dataset": False,
        # evaluation, when the run asks for it
        "eval_strategy": "no",
        "num_generations_eval": samples,
        "per_device_eval_batch_size": max(share // samples, 1) * samples,
        # what is kept and told
        "save_strategy": "steps",
        "save_steps": t.checkpoint_every * t.num_iterations,
        "save_total_limit": KEPT_CHECKPOINTS,
        "ignore_data_skip": True,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        **(_sharding(t) if sharded else {}),
        **_engine(config, device, sequence_tokens),
    }


def _checkpointing() -> str:
    """What the installed transformers calls it: vLLM 0.32 holds transformers below 5.20, which knows the old name alone."""
    new = "activation_checkpointing"
    return new if new in {field.name for field in fields(GRPOConfig)} else "gradient_checkpointing"


def _sharding(train: TrainConfig) -> dict[str, Any]:
    """FSDP, which checkpoints activations itself."""
    return {"fsdp": True, "fsdp_config": {"version": 2, "activation_checkpointing": train.gradient_checkpointing}}


def _engine(config: Config, device: torch.device, sequence_tokens: int) -> dict[str, Any]:
    arguments = engine_arguments(config.vllm, max_model_length=sequence_tokens, device=device.type)
    return arguments | {"vllm_tensor_parallel_size": config.vllm.tensor_parallel} if arguments["use_vllm"] else arguments


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
