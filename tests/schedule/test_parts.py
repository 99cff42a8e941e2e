"""Keys, exposure, quotas, scores and quarantine, one by one, with literal numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envsched_gnn.config import SelectConfig
from envsched_gnn.schedule import coverage
from envsched_gnn.schedule.exposure import Exposure
from envsched_gnn.schedule.keys import mix64, task_keys
from envsched_gnn.schedule.metrics import rank_correlation, reward_figures
from envsched_gnn.schedule.quarantine import Quarantine
from envsched_gnn.schedule.quotas import limits, quotas_at


def test_mix64_is_splitmix64():
    """The first outputs of splitmix64 seeded with 0 and 1234567, as published with the algorithm."""
    states = torch.tensor([0, 1234567], dtype=torch.int64)
    assert [x % 2**64 for x in mix64(states).tolist()] == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_keys_belong_to_tasks_not_to_rows():
    identity = torch.tensor([5, -7, 2**62, 0])
    keys = task_keys(identity, 3, 9)
    assert task_keys(identity.flip(0), 3, 9).tolist() == keys.flip(0).tolist()
    assert len({*keys.tolist(), *task_keys(identity, 3, 10).tolist(), *task_keys(identity, 4, 9).tolist()}) == 12


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**70))
def test_any_seed_and_step_is_legal(seed, step):
    assert task_keys(torch.tensor([1]), seed, step).dtype == torch.int64


@pytest.mark.parametrize(
    ("batch", "environments", "expected"),
    [
        (64, 51, (4, 11)),
        (64, 1, (204, 561)),
        (64, 10_000, (1, 2)),
        (48, 153, (1, 2)),
        (64, 34, (6, 16)),
        (1, 51, (1, 2)),
        (128, 51, (8, 22)),
    ],
)
def test_limits(batch, environments, expected):
    """max(1, ceil(4 (B/64) (51/M))), floor(2.75 per round)."""
    assert limits(SelectConfig(batch_size=batch), environments) == expected


def test_limits_may_be_configured():
    assert limits(SelectConfig(per_round=3), 51) == (3, 8)
    assert limits(SelectConfig(rolling=5), 51) == (4, 5)


def exposed():
    """Environments {0, 1}, {2}, {}, {3}; rounds at steps 0, 4 and 8."""
    exposure = Exposure(np.array([0, 0, 1, 3]), 4)
    exposure.add(0, [0, 2])
    exposure.add(4, [0, 1])
    exposure.add(8, [0, 3])
    return exposure


def test_environment_density():
    """At step 8: environment 0 has (2^-1 + 2 2^-1/2) / 2, environment 1 has 2^-1, step 8 itself does not count yet."""
    assert exposed().environment_density(8).tolist() == pytest.approx([(0.5 + 2 * 2**-0.5) / 2, 0.5, 0, 0], abs=1e-15)
    assert exposed().environment_density(0).tolist() == [0, 0, 0, 0]


def test_counts():
    exposure = exposed()
    assert exposure.num_selections(8).tolist() == [3, 1, 1, 1]
    assert exposure.num_selections(7).tolist() == [2, 1, 1, 0]
    assert exposure.rounds_before(8, 2) == [0, 4]
    assert exposure.environment_picks([0, 4]).tolist() == [3, 1, 0, 0]
    assert exposure.environment_picks([]).tolist() == [0, 0, 0, 0]
    assert exposure.repeated(9, 2).tolist() == [0]
    assert exposure.repeated(9, 3).tolist() == [0]
    assert exposure.repeated(9, 4).tolist() == []
    assert exposure.repeated(4, 1).tolist() == [0, 2]


def test_rounds_may_come_late():
    exposure = exposed()
    exposure.add(2, [3])
    assert exposure.rounds == [0, 2, 4, 8]
    assert exposure.log() == [(0, [0, 2]), (2, [3]), (4, [0, 1]), (8, [0, 3])]


def test_quotas_count_the_window_with_this_round():
    quotas = quotas_at(exposed(), 8, SelectConfig(per_round=2, rolling=4), 3)
    assert quotas.round_picks.tolist() == [1, 0, 0, 1]
    assert quotas.window_picks.tolist() == [4, 1, 0, 1]
    assert quotas.repeated.tolist() == [0]
    assert [quotas.open_environments(relaxed).tolist() for relaxed in (0, 2, 3)] == [[False, True, True, True], [True] * 4, [True] * 4]
    assert quotas.broken_by(0, 0) == ["consecutive", "rolling"]
    quotas.count(0)
    assert quotas.broken_by(1, 0) == ["rolling", "per_round"]
    assert [quotas.is_open(0, relaxed) for relaxed in range(4)] == [False, False, False, True]


def test_scores_by_hand():
    """n = (1, 0, 3): nbar over environments 0 and 2 = 2 + 8/16; then the three terms of a task."""
    n = torch.tensor([1.0, 0.0, 3.0], dtype=torch.float64)
    nbar = coverage.mean_density(n, torch.tensor([0, 2]), 8, 16)
    assert float(nbar) == 2.5
    terms = coverage.environment_term(n, nbar)
    assert terms.tolist() == pytest.approx([1 / 1.4, 1, 1 / 2.2], abs=1e-15)
    c, evidence = torch.tensor([0, 1, 3]), torch.tensor([0.0, 2.0, 6.0], dtype=torch.float64)
    score = coverage.coverage_score(terms, coverage.task_term(c), coverage.pattern_term(evidence))
    assert score.tolist() == pytest.approx([(1 / 1.4 + 1 + 1) / 3, (1 + 0.5 + 0.5) / 3, (1 / 2.2 + 0.25 + 0.25) / 3], abs=1e-15)
    q = torch.full((3,), 0.5, dtype=torch.float64)
    assert coverage.weighed(torch.tensor([0.8, 0.8, 0.6]).double(), q, torch.tensor([0, 1, 4])).tolist() == pytest.approx([0.4, 0.2, 0.06])
    assert coverage.exploitation_score(q, torch.tensor([0, 16, 48]), 16.0).tolist() == pytest.approx([0.5, 0.5 / 2**0.5, 0.25], abs=1e-15)
    assert coverage.exploitation_score(q, torch.tensor([0, 1, 3]), 1.0).tolist() == pytest.approx([0.5, 0.5 / 2**0.5, 0.25], abs=1e-15)


def test_quarantine_lasts_16_rounds_then_32():
    quarantine = Quarantine(3)
    assert [quarantine.report(7, True, 10) for _ in range(3)] == [False, False, True]
    assert quarantine.active(25) == [7]
    assert quarantine.active(26) == []
    assert [quarantine.report(7, True, 30) for _ in range(3)] == [False, False, True]
    assert quarantine.active(61) == [7]
    assert quarantine.active(62) == []
    quarantine.release([7, 8])
    assert quarantine.active(31) == []


def test_only_failures_in_a_row_count():
    quarantine = Quarantine(2)
    assert [quarantine.report(1, failed, 0) for failed in (True, False, True, None, True)] == [False, False, False, False, True]


def test_rank_correlation():
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == pytest.approx(1)
    assert rank_correlation([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(0.8)
    assert rank_correlation([1.0, 1.0], [0.0, 1.0]) is None
    assert rank_correlation([1.0], [1.0]) is None


def test_reward_figures():
    assert reward_figures([0.25, 0.0, 0.0, 0.09], [0.5, 0.0, 1.0, 0.1]) == {
        "variance_mean": pytest.approx(0.085),
        "variance_median": pytest.approx(0.045),
        "reward_mean": pytest.approx(0.4),
        "reward_median": pytest.approx(0.3),
        "zero_variance_share": 0.5,
    }
    assert all(np.isnan(value) for value in reward_figures([], []).values())
