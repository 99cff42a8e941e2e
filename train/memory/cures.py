"""Which settings to change when a run does not fit.

Knows: the changes that save memory, in order of what they cost, and how few of them will do.
Does not know: how memory is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from envsched_gnn.config import Config

Change = tuple[str, str, Any]
"""Table, key, value."""
Excess = Callable[[Config], int]
"""Bytes that a configuration takes too much; 0 if it fits."""

LEAST_TOKENS = 256
"""Episodes are not proposed to be shorter than this (ours)."""


def cures(config: Config, gpus: int, micro: int, share: int, excess: Excess) -> tuple[str, ...]:
    """Settings that make a run fit, as `table.key = value`; none if all together do not.

    A change is taken if less is missing with it, until nothing is, in two passes, as one may help only after another; then those that
    others made needless are dropped, the dearest first.

    Args:
        gpus: devices that training may be split over.
        micro, share: rollouts of a backward pass and of a device.
    """
    taken: list[Change] = []
    missing = excess(config)
    for change in 2 * list(_changes(config, gpus, micro, share)):
        if not missing:
            break
        changed = [*(old for old in taken if old[:2] != change[:2]), change]
        less = excess(_with(config, changed))
        if less < missing:
            taken, missing = changed, less
    if missing:
        return ()
    for change in reversed(list(taken)):
        rest = [other for other in taken if other is not change]
        if not excess(_with(config, rest)):
            taken = rest
    return tuple(f"{table}.{key} = {str(value).lower()}" for table, key, value in taken)


def _changes(config: Config, gpus: int, micro: int, share: int) -> Iterator[Change]:
    """What may be changed: first what costs time, then what needs another launch, last what changes the training."""
    yield "train", "gradient_checkpointing", True
    yield from (("train", "micro_batch", less) for less in range(micro - 1, 0, -1) if share % less == 0)
    if config.vllm.mode == "colocate":
        yield "vllm", "sleep", True
        yield "vllm", "max_model_length", 0
    if gpus > 1:
        yield "train", "shard", True
    if config.vllm.mode == "colocate":
        others = sorted((number / 20 for number in range(1, 19)), key=lambda other: abs(other - config.vllm.memory_share))
        yield from (("vllm", "memory_share", other) for other in others)
    yield "train", "kl", 0.0
    tokens = config.train.max_completion_tokens
    while (tokens := tokens * 3 // 4) >= LEAST_TOKENS:
        yield "train", "max_completion_tokens", tokens


def _with(config: Config, changes: list[Change]) -> Config:
    for table, key, value in changes:
        config = replace(config, **{table: replace(getattr(config, table), **{key: value})})
    return config
