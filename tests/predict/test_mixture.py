"""Experts of preset `default`: literal numbers, late rounds, state."""

import math

import pytest
import torch

from envsched_gnn.predict import mixture


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


SAID = (0.5, 0.2, 0.8, 0.5, 0.425, 0.575, 0.5)
"""Priors where the level is .5, within .2 and cross .8."""
EXPERTS = 21


def test_experts_by_hand() -> None:
    priors = mixture.expert_priors(f64(0.5), f64(0.2), f64(0.8))
    assert priors.flatten().tolist() == pytest.approx(SAID)
    p = mixture.expert_probabilities(priors, f64(2.0), f64(1.0)).flatten()
    assert p.shape == (EXPERTS,)
    assert p[:7].tolist() == pytest.approx([(2 + 0.5 * prior) / 2.5 for prior in SAID])
    assert p[14:].tolist() == pytest.approx([(2 + 3 * prior) / 5 for prior in SAID])


def test_without_own_evidence_the_mixture_is_the_mixed_prior() -> None:
    weights = torch.softmax(torch.arange(EXPERTS, dtype=torch.float64) / 3, 0)
    p = weights @ mixture.expert_probabilities(f64(*SAID)[:, None], f64(0.0), f64(0.0))
    assert mixture.mixed_prior(0.5, f64(0.2), f64(0.8), weights).tolist() == pytest.approx(p.tolist())


def test_uniform_weights_before_any_round() -> None:
    assert mixture.ExpertWeights().weights().tolist() == pytest.approx([1 / EXPERTS] * EXPERTS)


def test_weights_by_hand() -> None:
    experts = mixture.ExpertWeights()
    p = torch.full((EXPERTS, 2), 0.5, dtype=torch.float64)
    p[0] = f64(0.9, 1.0)
    experts.add(3, p, torch.tensor([True, False]))
    experts.add(5, torch.full((EXPERTS, 1), 0.25, dtype=torch.float64), torch.tensor([True]))
    first, others = 0.9 * (math.log(0.9) + math.log(1 - 0.98)), 0.9 * 2 * math.log(0.5)
    expected = math.exp(first) / (math.exp(first) + (EXPERTS - 1) * math.exp(others))
    assert float(experts.weights()[0]) == pytest.approx(expected)


def test_late_groups_count_in_their_own_round() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(3, EXPERTS, 4, generator=generator, dtype=torch.float64)
    z = torch.rand(3, 4, generator=generator) < 0.5
    on_time, late = mixture.ExpertWeights(), mixture.ExpertWeights()
    for step in range(3):
        on_time.add(step, p[step], z[step])
    for step, part in ((0, slice(0, 2)), (2, slice(0, 4)), (1, slice(0, 4)), (0, slice(2, 4))):
        late.add(step, p[step][:, part], z[step][part])
    torch.testing.assert_close(on_time.weights(), late.weights(), rtol=0, atol=1e-14)


def test_a_round_without_observations_forgets_nothing() -> None:
    experts = mixture.ExpertWeights()
    experts.add(0, torch.linspace(0.1, 0.9, EXPERTS, dtype=torch.float64)[:, None], torch.tensor([True]))
    before = experts.weights()
    experts.add(1, torch.zeros(EXPERTS, 0, dtype=torch.float64), torch.zeros(0, dtype=torch.bool))
    assert torch.equal(experts.weights(), before)


def test_a_state_restores_the_weights_bit_equal() -> None:
    experts, other = mixture.ExpertWeights(), mixture.ExpertWeights()
    for step in range(30):
        p = torch.rand(EXPERTS, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        experts.add(step, p, p[0] > 0.5)
    other.load_state_dict(experts.state_dict())
    assert torch.equal(other.weights(), experts.weights())


def test_a_neighbour_says_little_more_with_every_further_group() -> None:
    """2 W / (W + 1): 1 group counts once, 3 groups 1.5 times, however many never twice."""
    weight = torch.tensor([0.0, 0.5, 1.0, 3.0, 1e9], dtype=torch.float64)
    assert mixture.neighbour_weight(weight).tolist() == pytest.approx([0.0, 2 / 3, 1.0, 1.5, 2.0])
