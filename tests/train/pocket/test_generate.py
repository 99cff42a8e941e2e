"""Sampling: the log-probabilities are transformers' own, tokens come by their probability, and the generator decides alone."""

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from transformers import Qwen3ForCausalLM

from envsched_gnn.train.pocket.generate import _sample, generate
from envsched_gnn.train.pocket.model import completion_logprobs, new_model

PAD, END = 0, 4


def small(vocabulary: int = 12, layers: int = 2, hidden_size: int = 64, spread: float = 0.3) -> Qwen3ForCausalLM:
    """Random weights, large enough that tokens differ in probability."""
    model = new_model(vocabulary, hidden_size=hidden_size, layers=layers, pad=PAD, end=END)
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=spread, generator=generator)
    return model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 5, 6], [5], [11, 10], [7, 7, 7, 7, 7]]


FREE = [None, [END, 3]]
"""All rows may write all tokens; or those of their prompt, the end and 3."""


def held(logits: torch.Tensor, prompt: list[int], free: list[int] | None) -> torch.Tensor:
    """Logits where a row cannot write all."""
    banned = [] if free is None else [token for token in range(logits.shape[-1]) if token not in {*prompt, *free}]
    return logits.index_fill(-1, torch.tensor(banned, dtype=torch.int64), -torch.inf)


@pytest.mark.parametrize("free", FREE)
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
def test_logprobs_are_those_of_transformers(temperature, free):
    """Prompts of many lengths, samples that end at many steps: rows leave the batch on the way."""
    model = small(vocabulary=7, spread=0.1)
    prompts = [[min(token, 6) for token in prompt] for prompt in PROMPTS * 5]
    groups = generate(model, prompts, samples=2, max_new_tokens=14, generator=seeded(), temperature=temperature, free=free)
    steps = {max(len(completion.ids) for completion in group) for group in groups}
    assert len(steps) > 5
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *completion.ids]])).logits[0, len(prompt) - 1 : -1]
            logprobs = (held(logits, prompt, free) / temperature).log_softmax(-1)
            expected = logprobs[torch.arange(len(completion.ids)), completion.ids]
            assert torch.isfinite(expected).all()
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("free", FREE)
def test_logprobs_with_gradients_are_the_same(free):
    model = small()
    groups = generate(model, PROMPTS, samples=3, max_new_tokens=9, generator=seeded(1), temperature=1.5, free=free)
    flat = [(prompt, completion) for prompt, group in zip(PROMPTS, groups, strict=True) for completion in group]
    logprobs, mask = completion_logprobs(model, [prompt for prompt, _ in flat], [completion.ids for _, completion in flat], 1.5, free)
    for row, here, (_, completion) in zip(logprobs.detach(), mask, flat, strict=True):
        length = len(completion.ids)
        assert here.tolist() == [1.0] * length + [0.0] * (len(here) - length)
        torch.testing.assert_close(row[:length], torch.tensor(completion.logprobs), atol=1e-5, rtol=0)
        assert row[length:].abs().sum() == 0
    assert logprobs.requires_grad


def test_a_completion_ends_with_the_end_or_is_truncated():
    groups = generate(small(), PROMPTS, samples=40, max_new_tokens=5, generator=seeded())
    completions = [completion for group in groups for completion in group]
    assert [len(group) for group in groups] == [40] * 4
    for completion in completions:
        assert END not in completion.ids[:-1]
        assert completion.truncated == (completion.ids[-1] != END)
        assert len(completion.ids) == 5 if completion.truncated else 1 <= len(completion.ids) <= 5
        assert len(completion.logprobs) == len(completion.ids)
    assert {completion.truncated for completion in completions} == {True, False}


@pytest.mark.parametrize("free", FREE)
def test_two_tokens_come_by_their_joint_probability(free):
    model, prompt, draws = small(vocabulary=6), [5, 2, 3], 20_000
    (group,) = generate(model, [prompt], samples=draws, max_new_tokens=2, generator=seeded(3), free=free)
    counts = Counter(tuple(completion.ids) for completion in group)
    with torch.no_grad():
        first = held(model(input_ids=torch.tensor([prompt])).logits[0, -1], prompt, free).softmax(-1)
        after = (model(input_ids=torch.tensor([[*prompt, token]])).logits[0, -1] for token in range(6))
        second = [held(logits, prompt, free).softmax(-1) for logits in after]
    chances = {(END,): float(first[END])}
    chances |= {(a, b): float(first[a] * second[a][b]) for a in range(6) if a != END for b in range(6)}
    assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
    large = [pair for pair, chance in chances.items() if chance * draws >= 5]
    rest = draws - sum(counts[pair] for pair in large)
    share = 1 - sum(chances[pair] for pair in large)
    observed, expected = [*(counts[pair] for pair in large), rest], [*(chances[pair] * draws for pair in large), share * draws]
    if share * draws < 5:
        observed, expected = observed[:-1], expected[:-1]
        expected = [value * sum(observed) / sum(expected) for value in expected]
    assert len(observed) > 8
    assert set(counts) <= {pair for pair, chance in chances.items() if chance > 0}
    assert chisquare(observed, expected).pvalue > 1e-3


def test_a_token_without_probability_is_never_drawn():
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]).expand(1, 200_000, -1)
    token, logprob = _sample(logits, seeded())
    assert set(token.unique().tolist()) == {1, 3}
    share = 1 / (1 + torch.e)
    assert (token == 1).double().mean().item() == pytest.approx(share, abs=0.004)
    torch.testing.assert_close(logprob[token == 1].unique(), torch.tensor([share]).log(), atol=1e-6, rtol=0)


def test_the_smallest_random_number_draws_no_token_without_probability(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda size, generator: torch.zeros(size))
    assert _sample(torch.tensor([[[-torch.inf, 0.0, 0.0]]]), seeded())[0].item() == 2
    monkeypatch.setattr(torch, "rand", lambda size, generator: torch.full(size, 1 - 2**-24))
    assert _sample(torch.tensor([[[-torch.inf, 0.0, 0.0]]]), seeded())[0].item() == 1


def test_cold_sampling_is_greedy():
    model, prompt = small(), PROMPTS[0]
    (group,) = generate(model, [prompt], samples=2, max_new_tokens=6, generator=seeded(), temperature=1e-4)
    ids = list(prompt)
    while len(ids) < len(prompt) + 6 and (len(ids) == len(prompt) or ids[-1] != END):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert [completion.ids for completion in group] == [ids[len(prompt) :]] * 2


def test_the_generator_decides_alone():
    model = small()
    settings = {"samples": 4, "max_new_tokens": 8}
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = generate(model, PROMPTS, generator=seeded(), **settings)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert generate(model, PROMPTS, generator=seeded(), **settings) == first
    assert generate(model, PROMPTS, generator=seeded(1), **settings) != first
    assert all(parameter.grad is None for parameter in model.parameters())


def test_one_token_and_one_sample():
    ((completion,),) = generate(small(), [[5]], samples=1, max_new_tokens=1, generator=seeded())
    assert len(completion.ids) == len(completion.logprobs) == 1


def test_a_new_model_is_a_function_of_its_size():
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    a, b = (new_model(50, hidden_size=32, layers=1, pad=PAD, end=END) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert sum(parameter.numel() for parameter in a.parameters()) == 12_000
