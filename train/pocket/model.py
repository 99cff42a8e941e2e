"""The pocket policy's network: Qwen3's architecture, a few hundred thousand weights.

Knows: its shape, and log-probabilities of given completions.
Does not know: words, sampling, training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

HEAD = 32
"""Width of an attention head (ours)."""
MAX_POSITION = 1024
"""Tokens of prompt and plan together (ours)."""


def new_model(vocabulary: int, *, hidden_size: int, layers: int, pad: int, end: int) -> Qwen3ForCausalLM:
    """Random weights; the global random state stays as it is. All heads share one key and value head, which keeps the cache small."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=max(hidden_size // HEAD, 1),
        num_key_value_heads=1,
        head_dim=HEAD,
        max_position_embeddings=MAX_POSITION,
        tie_word_embeddings=True,
        pad_token_id=pad,
        eos_token_id=end,
        bos_token_id=None,
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config)


def special(model: Qwen3ForCausalLM) -> tuple[int, int]:
    """Ids of the padding and the end."""
    config: Any = model.config
    return config.pad_token_id, config.eos_token_id


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Int[Tensor, "rows length"], Int[Tensor, " rows"]]:
    """Rows filled up on the right, and the length of each."""
    length = torch.tensor([len(row) for row in rows])
    filled = torch.full((len(rows), int(length.max())), pad)
    for row, ids in zip(filled, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return filled, length


class Writable:
    """What each row may write: the tokens of its prompt and some that are free to all, or everything.

    A policy that is held to the tools it was shown, as guided decoding holds one, never calls those of another environment.
    """

    def __init__(self, model: Qwen3ForCausalLM, prompts: Sequence[Sequence[int]], free: Sequence[int] | None) -> None:
        """`free`: ids that every row may write; None: all rows may write all tokens."""
        weight = torch.as_tensor(model.lm_head.weight)
        if free is None:
            self._ids, self._absent, self._weight = torch.arange(len(weight))[None], None, weight[None]
            return
        self._ids, count = padded([sorted({*prompt, *free}) for prompt in prompts], special(model)[0])
        self._absent = torch.arange(self._ids.shape[1]) >= count[:, None]
        self._weight = weight[self._ids]

    def logits(self, hidden: Float[Tensor, "rows columns hidden"]) -> Float[Tensor, "rows columns choices"]:
        """Score of each choice."""
        logits = hidden @ self._weight.mT
        return logits if self._absent is None else logits.masked_fill(self._absent[:, None], -torch.inf)

    def ids(self, choice: Int[Tensor, "rows columns"]) -> Int[Tensor, "rows columns"]:
        """Tokens of choices."""
        return self._ids.expand(len(choice), -1).gather(1, choice)

    def choices(self, ids: Int[Tensor, "rows columns"]) -> Int[Tensor, "rows columns"]:
        """Choices that write these tokens; anything for a token that the row may not write."""
        if self._absent is None:
            return ids
        return (self._ids[:, None] == ids[..., None]).int().argmax(-1)

    def keep(self, rows: Int[Tensor, " rows"]) -> None:
        """Leave out all other rows."""
        if self._absent is not None:
            self._ids, self._absent, self._weight = self._ids[rows], self._absent[rows], self._weight[rows]


def completion_logprobs(
    model: Qwen3ForCausalLM,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float = 1.0,
    free: Sequence[int] | None = None,
) -> tuple[Float[Tensor, "rows length"], Float[Tensor, "rows length"]]:
    """Log-probability of each completion token, and a mask of those that are there; rows filled up on the right, gradients kept.

    Args:
        free: see `Writable`.
    """
    ids, total = padded([[*p, *c] for p, c in zip(prompts, completions, strict=True)], special(model)[0])
    start = torch.tensor([len(prompt) for prompt in prompts])
    width = int((total - start).max())
    column = start[:, None] - 1 + torch.arange(width)
    mask = column < total[:, None] - 1
    column = column.clamp(max=ids.shape[1] - 2)
    hidden = model.model(
        input_ids=ids, attention_mask=(torch.arange(ids.shape[1]) < total[:, None]).long(), use_cache=False
    ).last_hidden_state
    writable = Writable(model, prompts, free)
    logprobs = (writable.logits(hidden[torch.arange(len(ids))[:, None], column]) / temperature).log_softmax(-1)
    written = logprobs.gather(2, writable.choices(ids.gather(1, column + 1))[..., None])[..., 0]
    return written.masked_fill(~mask, 0.0), mask.float()
