"""Acquisition: literal numbers of each form, and draws that are a function of seed, step and identity."""

import pytest
import torch
from scipy.stats import beta

from envsched_gnn.config import SelectConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.records import Prediction
from envsched_gnn.schedule import EnvSched
from envsched_gnn.schedule.acquisition import acquired, beta_draw, uniform
from tests.schedule.small import graph_of, groups


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


IDENTITY = torch.arange(3)
PREDICTION = Prediction(
    informativeness=f64(0.2, 0.5, 0.8),
    predicted_variance=f64(0.1, 0.1, 0.1),
    p_informative=f64(0.2, 0.5, 0.8),
    uncertainty=f64(0.1, 0.2, 0),
)


def test_the_score_is_q() -> None:
    assert acquired(PREDICTION, SelectConfig(), IDENTITY, 0, 0) is PREDICTION.informativeness


def test_the_bonus_by_hand() -> None:
    bonus = acquired(PREDICTION, SelectConfig(acquisition="bonus", acquisition_bonus=1.5), IDENTITY, 0, 0)
    assert bonus.tolist() == pytest.approx([0.35, 0.8, 0.8])


def test_the_bonus_is_of_the_chance_alone() -> None:
    """q = p s: with s = 1/2 a bonus of .3 on p = .5 is one of .15; and where p is 0 there is nothing to hope for."""
    half = Prediction(
        informativeness=f64(0.25, 0.0), predicted_variance=f64(0.1, 0.1), p_informative=f64(0.5, 0.0), uncertainty=f64(0.2, 0.0)
    )
    bonus = acquired(half, SelectConfig(acquisition="bonus", acquisition_bonus=1.5), IDENTITY[:2], 0, 0)
    assert bonus.tolist() == pytest.approx([0.4, 0.0])


def test_a_draw_by_hand() -> None:
    """p = 1/2, sigma^2 = 1/12 is the uniform distribution; p = 0.2, sigma = 0.1 is Beta(3, 12)."""
    third = 1 / 12**0.5
    draws = beta_draw(f64(0.5, 0.5, 0.2, 0.3, 1.0), f64(third, third, 0.1, 0.0, 0.1), f64(0.25, 0.9, 0.5, 0.9, 0.5))
    assert draws.tolist() == pytest.approx([0.25, 0.9, beta(3, 12).median(), 0.3, 1.0])


def test_draws_have_the_mean_and_the_deviation_that_they_are_of() -> None:
    many = torch.arange(20_000)
    draws = beta_draw(torch.full((20_000,), 0.3).double(), torch.full((20_000,), 0.15).double(), uniform(many, 1, 2))
    assert float(draws.mean()) == pytest.approx(0.3, abs=0.005)
    assert float(draws.std()) == pytest.approx(0.15, abs=0.005)


def test_draws_depend_on_seed_step_and_identity_alone() -> None:
    config = SelectConfig(acquisition="thompson")
    draw = acquired(PREDICTION, config, IDENTITY, 3, 4)
    assert torch.equal(draw, acquired(PREDICTION, config, IDENTITY, 3, 4))
    assert torch.equal(draw.flip(0)[:1], f64(0.8))  # nothing uncertain
    order = torch.tensor([1, 0, 2])
    assert torch.equal(acquired(PREDICTION.at(order), config, IDENTITY[order], 3, 4), draw[order])
    for seed, step in ((2, 4), (3, 5)):
        assert not torch.equal(draw, acquired(PREDICTION, config, IDENTITY, seed, step))


def test_a_predictor_without_uncertainty_is_refused() -> None:
    blind = Prediction(informativeness=f64(0.5), predicted_variance=f64(0.5), p_informative=f64(0.5))
    with pytest.raises(ConfigError, match=r"select.acquisition = 'bonus': the predictor says no uncertainty. Set select.acquisition"):
        acquired(blind, SelectConfig(acquisition="bonus"), IDENTITY[:1], 0, 0)


@pytest.mark.parametrize("acquisition", ["bonus", "thompson"])
def test_a_scheduler_picks_by_it(acquisition: str) -> None:
    graph = graph_of([k // 5 for k in range(40)])
    settings = (SelectConfig(acquisition=name, acquisition_bonus=9.0, coverage_share=0.0) for name in ("score", acquisition))
    plain, other = (EnvSched(None, graph, batch_size=8, select=some) for some in settings)
    for scheduler in (plain, other):
        for step in range(3):
            scheduler.observe(groups(scheduler.shadow(step, [f"e{k}/t{5 * k + step}" for k in range(8)])))
    assert plain.select(3).task_ids != other.select(3).task_ids
    assert other.select(3) == other.select(3)
