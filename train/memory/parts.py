"""What each part of a training step takes of a device, in bytes.

Knows: formulas of weights, optimiser, activations, log-probabilities, generation and engine, for a decoder of given sizes.
Does not know: configurations, machines, what fits.

Two moments count: while rollouts are generated, and while the policy is updated. What a part takes is its largest in that moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from envsched_gnn.train.memory.machine import GIB
from envsched_gnn.train.memory.sizes import ModelSize

HEAD_TILE = (4096, 32_768)
"""Tokens x vocabulary of the tile in which TRL multiplies the output head: logits of a whole sequence never exist (TRL 1.16, utils.py)."""
ENGINE_OVERHEAD = GIB
"""Of vLLM beside weights and KV cache: CUDA graphs, workspaces, activations of 4,096 tokens. It stays while the engine sleeps (ours)."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One line of a plan."""

    name: str
    rollout: int = 0
    """Bytes while rollouts are generated."""
    update: int = 0
    """Bytes while the policy is updated."""
    note: str = ""
    """For people."""

    @classmethod
    def always(cls, name: str, size: int, note: str = "") -> Part:
        """A part that takes the same in both moments."""
        return cls(name=name, rollout=size, update=size, note=note)


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Bytes of a number."""

    weight: int
    """Of a weight as kept, and of the residual stream."""
    compute: int
    """Of a product; 2 where autocast computes in bfloat16 what is kept in float32."""

    @property
    def autocast(self) -> bool:
        return self.compute < self.weight


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a device handles."""

    rollouts: int
    """Of a round."""
    micro: int
    """Rollouts of one backward pass."""
    prompt: int
    """Tokens."""
    completion: int
    """Tokens."""

    @property
    def length(self) -> int:
        return self.prompt + self.completion


def layer_activations(size: ModelSize, widths: Widths) -> int:
    """Bytes that one token of one layer keeps for the backward pass; measured on Llama and Qwen3 within 3 % (tests).

    Two norms keep their input in float32, the normalised value, the output, and under autocast the output once more in the width of a
    product; the feed-forward layer keeps four of its width, attention three of queries and keys; norms of heads keep theirs.
    """
    c, r, h, q, k = widths.compute, widths.weight, size.hidden, size.query_width, size.kv_width
    norms = 2 * h * (4 + 2 * r + c * widths.autocast)
    head_norms = ((8 if c == 4 else 6) * q + 4 * k) * size.head_norms
    return norms + 4 * size.intermediate * c + 3 * (q + k) * c + head_norms


def activations(size: ModelSize, widths: Widths, batch: Batch, *, checkpointing: bool) -> int:
    """Of one backward pass. Checkpointing keeps the input of every layer, and all of one layer at a time.

    The padding mask is `length x length` a rollout, once as truth values, and in the width of a product in each layer that is kept.
    """
    kept = 1 if checkpointing else size.layers
    inputs = size.layers * size.hidden * widths.weight if checkpointing else 0
    gradients = 2 * size.intermediate * widths.compute + 2 * size.hidden * widths.weight
    mask = batch.length * (1 + kept * widths.compute)
    return batch.micro * batch.length * (inputs + kept * layer_activations(size, widths) + gradients + mask)


def log_probabilities(size: ModelSize, widths: Widths, batch: Batch, *, kernel: bool, trained_head: bool) -> int:
    """Of the output head: one tile of logits, float32 gradients of the hidden states and, where it is trained, of the head.

    Args:
        kernel: whether a GPU kernel works in place and on completion tokens alone; elsewhere the gradient of a tile takes 29 bytes an
            element beside it (seven float32 and a truth value).
    """
    tokens = batch.micro * (batch.completion if kernel else batch.length)
    rows, columns = min(tokens, HEAD_TILE[0]), HEAD_TILE[1]
    tile = rows * columns * widths.compute + (0 if kernel else rows * min(columns, size.vocabulary) * 29)
    head = size.head_parameters * 4 if trained_head else 0
    return tile + head + tokens * size.hidden * (4 + widths.weight)


def generation(size: ModelSize, widths: Widths, batch: Batch, *, top_p: bool) -> int:
    """Of transformers generating all rollouts of a device at once: KV cache, reading the prompt, sampling.

    Nucleus sampling sorts: 24 bytes a word of the vocabulary instead of 12. A tool loop reads prompt and completion so far again each turn.
    """
    cache = batch.length * size.kv_bytes(widths.weight)
    wide = 4 * size.hidden + 3 * size.intermediate + 2 * (size.query_width + size.kv_width)
    reading = batch.length * (wide * widths.weight + batch.length)
    return batch.rollouts * (cache + reading + size.vocabulary * (24 if top_p else 12))


def pocket_generation(size: ModelSize, batch: Batch, samples: int) -> int:
    """Of the pocket model generating all rollouts at once: prompts are read and kept once for all samples; sampling takes four logits."""
    prompts, width = batch.rollouts // samples, 4
    cache = (prompts * batch.prompt + batch.rollouts * batch.completion) * size.kv_bytes(width)
    wide = 4 * size.hidden + 3 * size.intermediate + 2 * (size.query_width + size.kv_width)
    reading = prompts * batch.prompt * (wide * width + batch.prompt * size.heads * width)
    return cache + reading + batch.rollouts * size.vocabulary * 16


def engine_cache(size: ModelSize, share: int, *, sequences: int, tensor_parallel: int) -> int:
    """Bytes that vLLM has left for its KV cache, on each device; negative if the rest alone takes more than its share.

    Args:
        share: bytes of a device that vLLM may take.
        sequences: that may run at once, whose logits are sampled.
    """
    return share - 2 * size.parameters // tensor_parallel - ENGINE_OVERHEAD - sequences * size.vocabulary * 12


def scheduler(tasks_by_environment: list[int]) -> int:
    """Of graph, history and prediction (ours): similarities within each environment, at most 300 numbers and 4 kB a task."""
    tasks = sum(tasks_by_environment)
    return 4 * sum(count**2 for count in tasks_by_environment) + tasks * (300 * 4 + 4096)
