"""Seeded keys that break ties and order cold batches: a pure function of seed, step and identity.

Knows: splitmix64 in int64 arithmetic, which wraps alike on every device.
Does not know: what is being ordered. Nothing to save: the same seed, step and task always give the same key.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def _signed(bits: int) -> int:
    """The int64 with the 64 low bits of `bits`."""
    bits &= 2**64 - 1
    return bits - 2**64 if bits >= 2**63 else bits


INCREMENT, MULTIPLIER_1, MULTIPLIER_2 = (_signed(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Constants of splitmix64."""
SIGN = _signed(1 << 63)


def mix64(x: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """splitmix64: add the increment, then two rounds of xor-shift-multiply and a last xor-shift; shifts are logical."""
    x = x + INCREMENT
    x = (x ^ _shift(x, 30)) * MULTIPLIER_1
    x = (x ^ _shift(x, 27)) * MULTIPLIER_2
    return x ^ _shift(x, 31)


def task_keys(identity: Int[Tensor, " tasks"], seed: int, step: int) -> Int[Tensor, " tasks"]:
    """key(i) = mix64(identity_i xor mix64(mix64(seed) xor step)); the higher key wins (ours).

    Keys are unsigned; they come with the sign bit flipped, so that the order of the int64 values is the order of the unsigned keys.
    """
    start = torch.tensor([_signed(seed)], dtype=torch.int64, device=identity.device)
    return mix64(identity ^ mix64(mix64(start) ^ _signed(step))) ^ SIGN


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)
