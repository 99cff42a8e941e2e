"""GRPO's update of the pocket policy, from the rollouts of one round.

Knows: advantages, the clipped loss, the optimiser; the same update as TRL's trainer makes from the same rollouts, which a test holds.
Does not know: tasks, tokens' meaning, how rollouts came about.

TRL puts all rollouts of a round through the model; here groups without variance, whose advantages are zero, only count in the loss's
denominator. In a pool where most groups are such, that is most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from envsched_gnn.config_training import TrainConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.train.pocket.generate import Completion
from envsched_gnn.train.pocket.model import completion_logprobs

CLIP = 0.2
"""Largest step of a token's probability ratio from 1 (TRL's default epsilon)."""
DEVIATION_FLOOR = 1e-4
"""Added to a group's standard deviation (TRL)."""
MICRO_BATCH = 64
"""Rollouts in one backward pass: more would not fit the processor's cache (ours)."""
MAX_NORM = 1.0
"""Of the gradient (TRL's default)."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One rollout to learn from."""

    prompt: list[int]
    completion: Completion
    reward: float | None
    """None: masked; it is in no baseline and not in the loss."""


def advantages(rewards: Sequence[float | None], scale: bool) -> list[float]:
    """(r - mean) of a group, divided by (sample standard deviation + 1e-4) if `scale`; 0 for masked rollouts and groups of one."""
    valid = torch.tensor([reward for reward in rewards if reward is not None], dtype=torch.float64)
    if len(valid) < 2 or valid.min() == valid.max():
        return [0.0] * len(rewards)
    divisor = float(valid.std()) + DEVIATION_FLOOR if scale else 1.0
    mean = float(valid.mean())
    return [0.0 if reward is None else (reward - mean) / divisor for reward in rewards]


class Learner:
    """The policy's optimiser: one call of `learn` a round.

    Raises:
        ConfigError: a setting of TRL's trainer that the pocket policy does not have.
    """

    def __init__(self, model: Qwen3ForCausalLM, config: TrainConfig, free: Sequence[int] | None = None) -> None:
        """`free`: see `Writable`."""
        settings = {"algorithm": "grpo", "schedule": "constant", "kl": 0.0, "top_p": 1.0}
        for name, only in settings.items():
            if getattr(config, name) != only:
                raise ConfigError(
                    f"train.{name} = {getattr(config, name)!r}: the pocket model has only {only!r}. Set it, or train a language model."
                )
        if config.loss_type not in ("grpo", "dapo", "dr_grpo") or config.scale_rewards == "batch":
            raise ConfigError(
                f"train.loss_type = {config.loss_type!r}, scale_rewards = {config.scale_rewards!r}: the pocket model has "
                "'grpo', 'dapo' or 'dr_grpo' with 'group' or 'none'. Set them, or train a language model."
            )
        self._model, self._config, self._free = model, config, free
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
        self._updates = 0
        self.grad_norm = 0.0
        """Of the latest update, before it was clipped."""

    def learn(self, groups: Sequence[Sequence[Sample]]) -> None:
        """Update the policy `num_iterations` times from all groups of a round; none has to have variance."""
        scale, size = self._config.scale_rewards == "group", self._size(groups)
        kept: list[tuple[Sample, float]] = []
        for group in groups:
            for sample, advantage in zip(group, advantages([sample.reward for sample in group], scale), strict=True):
                if advantage:
                    kept.append((sample, advantage / size / (len(sample.completion.ids) if self._config.loss_type == "grpo" else 1)))
        kept.sort(key=lambda pair: len(pair[0].prompt) + len(pair[0].completion.ids))  # so that little is filled up
        samples, weights = [sample for sample, _ in kept], torch.tensor([weight for _, weight in kept])
        for _ in range(self._config.num_iterations):
            self._update(samples, weights)

    def _size(self, groups: Sequence[Sequence[Sample]]) -> int:
        """What the sum over rollouts is divided by. Of masked rollouts the tokens do not count, but the rollouts do, as in TRL."""
        samples = [sample for group in groups for sample in group]
        match self._config.loss_type:
            case "grpo":  # mean over rollouts of the mean over tokens
                return len(samples)
            case "dr_grpo":  # mean over rollouts of the sum over tokens / longest completion
                return len(samples) * self._config.max_completion_tokens
            case _:  # mean over tokens
                return sum(len(sample.completion.ids) for sample in samples if sample.reward is not None)

    def _update(self, samples: Sequence[Sample], weights: torch.Tensor) -> None:
        """One step of the optimiser; without any sample its momentum goes on, as in TRL."""
        warm = min(1.0, self._updates / self._config.warmup_steps) if self._config.warmup_steps else 1.0
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * warm
        self._updates += 1
        for parameter in self._model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for start in range(0, len(samples), MICRO_BATCH):
            self._loss(samples[start : start + MICRO_BATCH], weights[start : start + MICRO_BATCH]).backward()
        self.grad_norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), MAX_NORM))
        self._optimizer.step()

    def _loss(self, samples: Sequence[Sample], weights: torch.Tensor) -> torch.Tensor:
        """- sum_tokens weight min(ratio, clip(ratio)), where the weight has the advantage's sign."""
        completions = [sample.completion for sample in samples]
        logprobs, mask = completion_logprobs(
            self._model,
            [sample.prompt for sample in samples],
            [completion.ids for completion in completions],
            self._config.temperature,
            self._free,
        )
        before = torch.zeros_like(mask)
        for row, completion in zip(before, completions, strict=True):
            row[: len(completion.logprobs)] = torch.tensor(completion.logprobs)
        ratio = torch.exp((logprobs - before) * mask)
        weight = weights[:, None] * mask
        return -torch.minimum(ratio * weight, ratio.clamp(1 - CLIP, 1 + CLIP) * weight).sum()

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimiser."""
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._updates = state["updates"]
