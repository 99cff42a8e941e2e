"""Group statistics and evidence: literal numbers, hostile rewards, properties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsched_gnn.errors import HistoryError
from envsched_gnn.history import History, group_statistics


def one(rewards: list[float | None], low: float = 0.0, high: float = 1.0) -> tuple[float, float, float, bool]:
    s = group_statistics([rewards], [low], [high])
    return float(s.variance), float(s.mean), float(s.dispersion), bool(s.observed)


def test_statistics_of_the_worked_example() -> None:
    v, m, d, observed = one([3 / 16] * 4 + [0, 12 / 16, 12 / 16, 10 / 16])
    assert (m, observed) == (0.359375, True)
    assert v == pytest.approx(0.0778809, abs=5e-8)
    assert d == pytest.approx(0.338282, abs=5e-7)


def test_rewards_are_mapped_from_their_range() -> None:
    v, m, d, _ = one([-5.0, 15.0, 5.0, 5.0], -5.0, 15.0)
    assert (v, m, d) == (0.125, 0.5, 0.5)


def test_dispersion_divides_by_at_least_a_hundredth() -> None:
    rewards = [0.0] * 999 + [1.0]
    v, _, d, _ = one(rewards)
    assert d == pytest.approx(v / 0.01)


@pytest.mark.parametrize("rewards", [[0.3, 0.1 + 0.2, 0.3], [1.0, 1.0 - 1e-10, 1.0]])
def test_float_noise_is_zero_variance(rewards: list[float | None]) -> None:
    assert one(rewards)[0] == 0.0
    assert one([r * 1e6 if r is not None else None for r in rewards], 0.0, 1e6)[0] == 0.0


def test_nan_and_none_are_masked_in_silence() -> None:
    s = group_statistics([[None, 0.0, math.nan, 1.0], [None, None], [], [1.0]], [0.0] * 4, [1.0] * 4)
    assert s.variance.tolist() == [0.25, 0.0, 0.0, 0.0]
    assert s.observed.tolist() == [True, False, False, False]
    assert s.num_valid.tolist() == [2, 0, 0, 1]
    assert s.rejected == ()


def test_infinite_and_out_of_range_rewards_are_masked_and_named() -> None:
    s = group_statistics([[0.0, 1.0], [math.inf, 0.5, 1.5, -math.inf, 0.5]], [0.0, 0.0], [1.0, 1.0])
    assert s.rejected == ((1, 0, math.inf), (1, 2, 1.5), (1, 3, -math.inf))
    assert s.mean.tolist() == [0.5, 0.5]
    assert s.num_valid.tolist() == [2, 2]


def test_a_reward_just_outside_its_range_is_clamped() -> None:
    s = group_statistics([[1.0 + 1e-12, -1e-12]], [0.0], [1.0])
    assert (s.rejected, s.mean.tolist(), s.variance.tolist()) == ((), [0.5], [0.25])


def test_no_groups_are_no_statistics() -> None:
    assert group_statistics([], [], []).variance.shape == (0,)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0)])
def test_an_empty_range_is_an_error(low: float, high: float) -> None:
    with pytest.raises(HistoryError, match=r"of group 1 is empty\. Give lowest < highest"):
        group_statistics([[0.0], [0.0]], [0.0, low], [1.0, high])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_variance_and_dispersion_stay_in_their_range(rewards: list[float | None]) -> None:
    v, m, d, _ = one(rewards)
    assert 0 <= v <= 0.25 + 1e-15
    assert 0 <= m <= 1
    assert 0 <= d <= 1


def filled(log: list[tuple[int, int, float, float, float]], num_tasks: int = 4, device: torch.device | str = "cpu") -> History:
    history = History(num_tasks, half_life_informative=200.0, device=device)
    tasks, steps, *values = zip(*log, strict=True)
    history.add(torch.tensor(tasks), torch.tensor(steps), *(torch.tensor(y, dtype=torch.float64) for y in values))
    return history


def test_evidence_by_hand(device: torch.device) -> None:
    evidence = filled([(0, 0, 0.2, 0.5, 0.8), (1, 0, 0.0, 0.0, 0.0), (0, 8, 0.1, 0.5, 0.4)], device=device).evidence(8 + 8)
    # Long: w = 1/4 at step 0 and 1/2 at step 8; step means of v .1 and .1, of d .4 and .4, of m .25 and .5.
    torch.testing.assert_close(evidence.weight[0].cpu(), torch.tensor([0.75, 0.25, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(evidence.weight[1].cpu(), torch.tensor([2**-8 + 2**-4, 2**-8, 0.0, 0.0], dtype=torch.float64))
    ref_m = (0.25 * 2 * 0.25 + 0.5 * 0.5) / (0.25 * 2 + 0.5)
    torch.testing.assert_close(evidence.reference[0].cpu(), torch.tensor([0.1, ref_m, 0.4], dtype=torch.float64))
    own_v = (0.25 * 0.2 + 0.5 * 0.1) / 0.75
    own_m = (0.25 * (0.5 - 0.25 + ref_m) + 0.5 * ref_m) / 0.75
    torch.testing.assert_close(evidence.estimate[0, :2, 0].cpu(), torch.tensor([own_v, own_m], dtype=torch.float64))
    assert evidence.estimate[0, 0, 1].item() == pytest.approx(0.0, abs=1e-15)
    assert evidence.estimate[:, :, 2:].abs().max().item() == 0
    weight = 2 ** (-16 / 200) + 2 ** (-8 / 200)
    assert evidence.informative_weight[0].item() == pytest.approx(weight)
    assert evidence.informative_estimate[:2].tolist() == pytest.approx([1.0, 0.0])
    assert evidence.informative_level == 0.5  # the first groups, both of step 0: one of two
    assert evidence.informative_share == pytest.approx((0.25 * 1 + 0.5 * 1) / (0.25 * 2 + 0.5))


def test_tasks_that_come_back_do_not_raise_the_level() -> None:
    """First groups z = 1, 0 at step 0 and 0 at step 8; task 0 comes back at steps 8 and 10^6 and varies each time."""
    log = [(0, 0, 0.2, 0.5, 0.8), (1, 0, 0.0, 0.0, 0.0), (2, 8, 0.0, 1.0, 0.0), (0, 8, 0.2, 0.5, 0.8), (0, 10**6, 0.2, 0.5, 0.8)]
    for order in (log, log[::-1]):
        evidence = filled(order).evidence(10**6 + 1)
        assert evidence.informative_level == pytest.approx(0.5 * 1 / (0.5 * 2 + 1))  # relative to step 8, the last that has a first group
        assert evidence.informative_share == pytest.approx(1.0)
    assert filled(log[2:]).evidence(9).informative_level == 0.5  # a ledger that begins late: its first groups are those that it holds


def test_observations_are_clipped_after_centring() -> None:
    # Step 1 has mean .125; its higher group would be centred to .25 - .125 + ref > .25.
    evidence = filled([(0, 0, 0.25, 0.5, 1.0), (1, 1, 0.25, 0.5, 1.0), (2, 1, 0.0, 0.5, 0.0)]).evidence(2)
    assert evidence.estimate[0, 0, 1].item() == 0.25
    reference = float(evidence.reference[0, 0])
    assert evidence.estimate[0, 0, 2].item() == pytest.approx(reference - 0.125)


def test_nothing_observed_gives_the_starting_references() -> None:
    for evidence in (History(3).evidence(0), filled([(0, 5, 0.2, 0.5, 0.8)]).evidence(5)):
        assert evidence.reference.tolist() == [[0.05, 0.5, 0.25]] * 2
        assert (evidence.informative_level, evidence.informative_share) == (0.5, 0.5)
        assert float(evidence.weight.sum() + evidence.informative_weight.sum()) == 0


def test_groups_of_the_step_itself_and_later_ones_do_not_count() -> None:
    early = [(0, 0, 0.2, 0.5, 0.8), (1, 3, 0.1, 0.4, 0.4)]
    late = [(1, 7, 0.25, 0.5, 1.0), (2, 5000, 0.0, 1.0, 0.0)]
    assert_same(filled(late + early).evidence(7), filled(early).evidence(7))


def assert_same(a: object, b: object, atol: float = 1e-14) -> None:
    for name in ("weight", "estimate", "reference", "informative_weight", "informative_estimate"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=atol)
    for name in ("informative_level", "informative_share"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), abs=atol)


def test_old_evidence_underflows_to_none_but_references_stay() -> None:
    evidence = filled([(0, 0, 0.2, 0.4, 0.8), (1, 0, 0.1, 0.4, 0.4)]).evidence(10**7)
    assert evidence.weight.abs().max().item() == 0
    assert evidence.reference.flatten().tolist() == pytest.approx([0.15, 0.4, 0.6] * 2)
    assert evidence.informative_level == 1.0
    assert bool(evidence.estimate.isfinite().all())


def test_an_observation_far_older_than_the_latest_counts_as_none() -> None:
    evidence = filled([(0, 0, 0.2, 0.4, 0.8), (1, 10**6, 0.1, 0.4, 0.4)]).evidence(10**6 + 1)
    assert evidence.weight[:, 0].tolist() == [0.0, 0.0]
    assert bool(evidence.estimate.isfinite().all())
    assert evidence.reference[0].tolist() == pytest.approx([0.1, 0.4, 0.4])


logs = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12), st.floats(0, 0.25), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=25
)


@settings(max_examples=50, deadline=None)
@given(logs, st.randoms())
def test_order_of_arrival_does_not_matter(log: list[tuple[int, int, float, float, float]], random: object) -> None:
    shuffled = list(log)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert_same(filled(log).evidence(10), filled(shuffled).evidence(10), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(logs, st.floats(-0.02, 0.02))
def test_a_constant_on_one_step_shifts_all_alike_up_to_clipping(log: list[tuple[int, int, float, float, float]], shift: float) -> None:
    """Centring removes it from the observations; only the reference moves, by the step's share of the weight."""
    log = [(task, step, 0.1 + v / 8, 0.4 + m / 8, 0.4 + d / 8) for task, step, v, m, d in log]
    moved = [(i, s, v + shift * (s == log[0][1]), m, d) for i, s, v, m, d in log]
    before, after = filled(log).evidence(13), filled(moved).evidence(13)
    for horizon in range(2):
        change = after.reference[horizon, 0] - before.reference[horizon, 0]
        seen = before.weight[horizon] > 0
        expected = (before.estimate[horizon, 0] + change)[seen]
        torch.testing.assert_close(after.estimate[horizon, 0][seen], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("power", "own", "level"), [(1.0, 0.215 / 1.5, 0.15), (0.5, 0.55 / 1.5, 0.38)])
def test_sizes_by_hand(power: float, own: float, level: float) -> None:
    """Half-life 8: 0.25 counts half beside 0.09 eight steps later; groups without variance have no size."""
    history = History(3, half_life_informative=8.0, power=power)
    assert history.evidence(0).size_level == 0.0
    for step, variance in ((8, [0.09, 0.16]), (0, [0.25, 0.0])):
        y = torch.tensor(variance, dtype=torch.float64)
        history.add(torch.tensor([0, 1]), torch.tensor([step, step]), y, y, y)
    evidence = history.evidence(9)
    assert evidence.size is not None
    assert evidence.size.tolist() == pytest.approx([own, 0.16**power, 0.0])
    assert evidence.size_level == pytest.approx(level)
    assert History(3).evidence(0).size is None


def test_a_state_restores_the_log_bit_equal(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    history = History(50, device=device)
    for step in torch.randperm(40, generator=generator).tolist():
        v, m, d = torch.rand(3, 64, generator=generator, dtype=torch.float64)
        history.add(torch.randint(0, 50, (64,), generator=generator), torch.full((64,), step), v / 4, m, d)
    other = History(50, device=device)
    other.load_state_dict(history.state_dict())
    assert len(other) == 40 * 64
    a, b = history.evidence(40), other.evidence(40)
    assert all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("weight", "estimate", "reference", "informative_estimate"))
    assert (a.informative_level, a.informative_share) == (b.informative_level, b.informative_share)


def test_reading_the_evidence_changes_nothing() -> None:
    history = filled([(0, 0, 0.2, 0.5, 0.8), (1, 1, 0.0, 0.0, 0.0)])
    first = history.evidence(2)
    history.evidence(1)
    assert_same(first, history.evidence(2), atol=0)


def test_the_log_can_be_read_back() -> None:
    history = filled([(0, 0, 0.25, 0.5, 0.75), (3, 2, 0.0, 1.0, 0.0)])
    assert history.tasks.tolist() == [0, 3]
    assert history.steps.tolist() == [0, 2]
    assert history.values.tolist() == [[0.25, 0.0], [0.5, 1.0], [0.75, 0.0]]
