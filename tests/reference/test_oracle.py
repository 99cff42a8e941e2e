"""The oracle against numbers worked out on paper: who checks the checker."""

import math

import pytest

from tests.reference import history, prediction
from tests.reference.prediction import World
from tests.reference.scheduler import ReferenceScheduler
from tests.reference.selection import Settings, caps, key, mix64, select


def close(expected):
    return pytest.approx(expected, abs=5e-10)


# --- four tasks in two environments: {0, 1} and {2, 3} -------------------------------------------------------------------------------
def four_tasks(held_out=(False,) * 4):
    within = [[0, 0.5, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 0.8], [0, 0, 0.8, 0]]
    cross = [[0, 0, 0.6, 0], [0, 0, 0, 0.4], [0.6, 0, 0, 0], [0, 0.4, 0, 0]]
    return World(
        env=[0, 0, 1, 1], s_within=within, s_cross=cross, identity=[11, 22, 33, 44], reward_range=[(0.0, 1.0)] * 4, held_out=list(held_out)
    )


FOUR_LOG = [(0, 0, {"v": 0.1, "m": 0.9, "d": 0.2}), (2, 0, {"v": 0.02, "m": 0.5, "d": 0.6})]
"""Two groups at step 0, read at step 8: weights 1/2 (half-life 8) and 1/16 (half-life 2); references v .06, m .7, d .4."""


def test_group_statistics_of_the_design():
    y = history.group_statistics([3 / 16] * 4 + [0, 12 / 16, 12 / 16, 10 / 16])
    assert (y["m"], round(y["v"], 7), round(y["d"], 6)) == (0.359375, 0.0778809, 0.338282)


def test_masked_rewards():
    assert history.group_statistics([0, None, float("nan"), float("inf"), -0.1, 1.5, 1]) == {"v": 0.25, "m": 0.5, "d": 1.0}
    assert history.group_statistics([0.5, None]) is None
    assert history.group_statistics([0.5, 1.5 + 1e-8], 0.5, 1.5) is None
    assert history.group_statistics([]) is None


def test_reward_range_and_noise():
    """A reward that leaves its range by rounding noise is at the edge of it."""
    assert history.group_statistics([-1e-11, 10 + 1e-11], 0.0, 10.0) == {"v": 0.25, "m": 0.5, "d": 1.0}
    assert history.group_statistics([-2, 2, 0, 0], -2.0, 2.0) == {"v": 0.125, "m": 0.5, "d": 0.5}
    assert history.group_statistics([0.3, 0.1 + 0.2]) == {"v": 0.0, "m": pytest.approx(0.3), "d": 0.0}
    assert history.group_statistics([0.3, 0.3 + 4e-6])["v"] == pytest.approx(4e-12, rel=1e-9)


def test_dispersion_floor_near_the_edge():
    """m (1 - m) = .0099 < .01, so d = v / .01: one of a hundred rollouts passes."""
    assert history.group_statistics([1] + [0] * 99)["d"] == pytest.approx(0.99, abs=1e-12)


def test_reference_centring_and_clip():
    """Step means .1 and .2; ref(16) = (.25*.2 + .5*.4) / (2*.25 + 2*.5) = 1/6; .2 - .1 + 1/6 is clipped to 1/4."""
    rows = [(0, 0, 0.2), (1, 0, 0.0), (2, 8, 0.25), (0, 8, 0.15)]
    log = [(task, step, {"v": v, "m": 0.5, "d": 0.5}) for task, step, v in rows]
    assert history.references(log, 16, 8.0)["v"] == close(1 / 6)
    assert history.own_estimate(log, 1, 16, 8.0)["v"] == close(1 / 15)
    assert history.own_estimate(log, 2, 16, 8.0)["v"] == close(0.05 + 1 / 6)
    assert history.effective_weight(log, 0, 16, 8.0) == close(0.75)
    assert history.own_estimate(log, 0, 16, 8.0)["v"] == close((0.25 * 0.25 + 0.5 * (1 / 6 - 0.05)) / 0.75)
    assert history.references(log, 8, 8.0)["v"] == close(0.1)  # the groups of step 8 are not known at step 8


def test_before_any_observation():
    assert history.references([], 5, 8.0) == {"v": 0.05, "m": 0.5, "d": 0.25}
    assert history.informative_level([], 5, 1e-6) == 0.5
    assert history.own_estimate([], 0, 5, 8.0) is None


def test_a_variance_that_equals_the_floor_is_not_above_it():
    """One reward of 1/4 among five has variance 1/100, which float sums miss by a bit either way."""
    y = history.group_statistics([0, 0, 0.25, 0, 0])
    assert [history.z(y, floor) for floor in (0.01, 0.01 - 1e-9, 0.01 + 1e-9)] == [0.0, 1.0, 0.0]
    assert history.z({"v": 0.0}, 0.0) == 0.0


def test_old_evidence_does_not_underflow():
    log = [(0, 0, {"v": 0.2, "m": 0.5, "d": 0.5}), (1, 0, {"v": 0.0, "m": 0.5, "d": 0.5})]
    assert history.effective_weight(log, 0, 10**6, 2.0) == 0.0
    assert history.references(log, 10**6, 2.0)["v"] == close(0.1)
    assert history.informative_level(log, 10**6, 1e-6) == close(0.5)


def test_percentile_ranks_average_ties():
    assert prediction.pr([0.3, 0.1, 0.3, 0.2]) == [0.75, 0.125, 0.75, 0.375]
    assert prediction.pr([0.1 + 0.2, 0.3]) == [0.5, 0.5]
    assert prediction.pr([7.0]) == [0.5]


def test_quantile_function():
    values = [0.4, 0.1, 0.2, 0.3]
    assert [prediction.quantile(values, p) for p in (0.0, 0.125, 0.25, 0.5, 0.875, 1.0)] == pytest.approx([0.1, 0.1, 0.15, 0.25, 0.4, 0.4])


def test_neighbours():
    """k nearest of the relation; ties to the lower index; no similarity, no neighbour; unobserved tasks are none."""
    n = 9
    row = [0, 0.5, 0.5, 0.0, 0.9, 0.1, 0.5, 0.5, 0.5]
    within = [[0.0] * n for _ in range(n)]
    within[0] = row
    world = World(
        env=[0] * n, s_within=within, s_cross=[[1.0] * n] * n, identity=[0] * n, reward_range=[(0.0, 1.0)] * n, held_out=[False] * n
    )
    assert prediction.neighbours(world, set(range(n)), 0, "within") == [(4, 0.9), (1, 0.5), (2, 0.5), (6, 0.5), (7, 0.5), (8, 0.5)]
    assert prediction.neighbours(world, {0, 3, 5, 7}, 0, "within") == [(7, 0.5), (5, 0.1)]
    assert prediction.neighbours(world, set(range(n)), 0, "cross") == []


def test_paper_on_four_tasks():
    parts = prediction.paper(four_tasks(), FOUR_LOG, 8)
    long, short = parts["est"]["long"], parts["est"]["short"]
    assert parts["W"]["long"] == [0.5, 0, 0.5, 0]
    assert parts["W"]["short"] == [0.0625, 0, 0.0625, 0]
    assert long["v"] == close([0.0659130435, 0.0622222222, 0.0540869565, 0.0566666667])
    assert long["m"] == close([0.7295652174, 0.7111111111, 0.6704347826, 0.6833333333])
    assert long["d"] == close([0.3704347826, 0.3888888889, 0.4295652174, 0.4166666667])
    assert short["v"] == close([0.0608551775, 0.0603076923, 0.0591448225, 0.0595121951])
    assert parts["f"]["long"] == close([0.0730867126, 0.0798902606, 0.0949132874, 0.0901620370])
    # ranks of est_v 4 3 1 2, of f 1 2 4 3: Q at .6125, .5375, .3875, .4625
    assert parts["u_long"] == close([0.0619444444, 0.0602777778, 0.0569444444, 0.0586111111])
    assert parts["u_short"] == close([0.0602679175, 0.0600292683, 0.0595519700, 0.0597906191])
    assert parts["u"] == close([0.0611061810, 0.0601535231, 0.0569444444, 0.0586111111])
    assert prediction.pr(parts["u"]) == [0.875, 0.625, 0.125, 0.375]


def test_experts_on_four_tasks():
    """H = 200, W = 2^-.04, to others 2 W / (W + 1); with v_floor .05 task 0 was informative and task 2 was not, so the level is 1/2."""
    p = dict(zip(prediction.EXPERTS, prediction.experts(four_tasks(), FOUR_LOG, 8, 64, 0.05), strict=True))
    assert p["level", 0.5] == close([0.8302385766, 0.5, 0.1697614234, 0.5])
    assert p["within", 1.0] == close([0.7465344861, 0.6651192883, 0.2534655139, 0.2794997516])
    assert p["cross", 3.0] == close([0.4820589297, 0.5, 0.5179410703, 0.5])
    assert p["mean", 1.0] == close([0.6994235983, 0.5825596442, 0.3005764017, 0.3897498758])
    # faint: priors (3/2 + within) / 4, which at W = 0 is what the expert says
    assert p["faint_within", 1.0][1] == close((1.5 + 0.6651192883) / 4)
    assert p["faint_mean", 3.0][3] == close((1.5 + 0.3897498758) / 4)


def test_expert_weights_discount_by_observed_rounds():
    """Rounds 3 and 70: L = .9 log .5 + log .25 and .9 log .25 + log .5, so the ratio is 2^.1; the other nineteen experts got 0."""
    rounds = {3: [math.log(0.5), math.log(0.25)] + [0.0] * 19, 70: [math.log(0.25), math.log(0.5)] + [0.0] * 19}
    weights = prediction.expert_weights(rounds)
    assert weights[0] == close(2**-2.9 / (2**-2.9 + 2**-2.8 + 19))
    assert weights[1] == close(2**-2.8 / (2**-2.9 + 2**-2.8 + 19))
    assert sum(weights) == close(1)


def test_log_likelihood_is_clipped():
    assert prediction.log_likelihood([0.0, 0.3, 1.0], True) == close([math.log(0.02), math.log(0.3), math.log(0.98)])
    assert prediction.log_likelihood([0.0, 0.3, 1.0], False) == close([math.log(0.98), math.log(0.7), math.log(0.02)])


def test_keys_are_splitmix64():
    assert mix64(0) == 0xE220A8397B1DCDAF
    assert mix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    assert key(-1, 0, 0) == key(2**64 - 1, 0, 0) == mix64((2**64 - 1) ^ mix64(0xE220A8397B1DCDAF))


def test_caps():
    def world_of(environments):
        n = environments
        held_out = [False] * (n - 1) + [True]
        return World(env=list(range(n)), s_within=[], s_cross=[], identity=[0] * n, reward_range=[(0.0, 1.0)] * n, held_out=held_out)

    assert caps(world_of(52), Settings()) == (4, 11)
    assert caps(world_of(25), Settings()) == (9, 24)
    assert caps(world_of(8), Settings(batch_size=112)) == (51, 140)  # exactly 51, not 52 by rounding
    assert caps(world_of(1001), Settings(batch_size=1)) == (1, 2)
    assert caps(world_of(52), Settings(per_round=3, rolling=5)) == (3, 5)


def pick_four(settings, n, weighed=False):
    past = [(0, 0), (0, 2)]
    q = [0.875, 0.625, 0.125, 0.375]
    return select(four_tasks(), past, [0], {0, 2}, False, [0.5, 0, 0.5, 0], q, weighed, [True] * 4, 8, n, settings)


def test_scores_of_four_tasks():
    """n_e = .25, nbar = .75: coverage (.75 + 1 + 1)/3 for tasks 1 and 3, tied, so the larger q wins; then the division by 1 + picks."""
    batch = pick_four(Settings(batch_size=2), 3)
    assert [(task, phase) for task, phase, _ in batch.picks] == [(1, "coverage"), (3, "coverage"), (0, "exploitation")]
    assert [score for _, _, score in batch.picks] == close([2.75 / 3, 2.75 / 3, 0.875 / math.sqrt(17 / 16)])
    assert batch.relaxations == []


def test_coverage_weighed_by_q():
    """Task 0 came once: .875 (.75 + .5 + 2/2.3)/3 / 2 = .309, below task 1: .625 2.75/3 = .573. Then task 3 in the other environment."""
    batch = pick_four(Settings(batch_size=2, coverage_share=1.0), 2, weighed=True)
    assert [task for task, _, _ in batch.picks] == [1, 3]
    assert [score for _, _, score in batch.picks] == close([0.625 * 2.75 / 3, 0.375 * 2.75 / 3])


def test_penalty_of_four_tasks():
    """Threshold .1: task 3 pays .5 (.4 - .1) for task 1, task 0 pays .5 (.5 - .1) for task 1."""
    batch = pick_four(Settings(batch_size=2, threshold=0.1), 3)
    assert [score for _, _, score in batch.picks] == close([2.75 / 3, 2.75 / 3 - 0.15, 0.875 / math.sqrt(17 / 16) - 0.2])


def test_division_spreads_the_batch():
    """All coverage: after tasks 1 and 3 both environments hold one pick; tasks 0 and 2 tie at half of (.75 + .5 + 2/2.3)/3."""
    batch = pick_four(Settings(batch_size=2, coverage_share=1.0, penalty=0.0), 4)
    assert [task for task, _, _ in batch.picks] == [1, 3, 0, 2]
    assert [score for _, _, score in batch.picks[2:]] == close([(1.25 + 2 / 2.3) / 6] * 2)


def one_environment(n):
    zero = [[0.0] * n] * n
    return World(env=[0] * n, s_within=zero, s_cross=zero, identity=list(range(n)), reward_range=[(0.0, 1.0)] * n, held_out=[False] * n)


def relaxed(past, n, settings, empty=(), want=3):
    batch = select(
        one_environment(3),
        past,
        [s for s, _ in past] + list(empty),
        {0},
        False,
        [0.0] * 3,
        [1 / 6, 1 / 2, 5 / 6],
        False,
        [True] * 3,
        9,
        want,
        settings,
    )
    assert len(batch.picks) == n
    return [task for task, _, _ in batch.picks], batch.relaxations


def test_relaxations():
    exploit = {"coverage_share": 0.0, "batch_size": 3}
    assert relaxed([], 3, Settings(**exploit)) == ([2, 1, 0], [])
    tasks, relaxations = relaxed([], 3, Settings(**exploit, per_round=2, rolling=2))
    assert (tasks, relaxations) == ([2, 1, 0], [("rolling", 0), ("per_round", 0)])
    # a window of two earlier rounds: rounds 4 and 7 count, round 1 does not
    past = [(1, 2), (4, 1), (7, 1)]
    assert relaxed(past, 1, Settings(**exploit, per_round=9, rolling=3), want=1) == ([2], [])
    assert relaxed(past, 1, Settings(**exploit, per_round=9, rolling=2), want=1) == ([2], [("rolling", 2)])
    # task 1 stands in both latest rounds: chosen last, as the only consecutive violation, before any rolling violation
    assert relaxed(past, 3, Settings(**exploit, per_round=9, rolling=9)) == ([2, 0, 1], [("consecutive", 1)])
    assert relaxed([(4, 1)], 3, Settings(**exploit, per_round=9, rolling=9)) == ([2, 1, 0], [])
    # a round in which nothing could be picked is a round
    assert relaxed(past, 3, Settings(**exploit, per_round=9, rolling=9), empty=(8,)) == ([2, 1, 0], [])


def test_cold_batch_follows_the_keys():
    world = one_environment(5)
    batch = select(world, [], [], set(), True, [0.0] * 5, [0.0] * 5, False, [True, True, False, True, True], 0, 9, Settings(seed=3))
    order = sorted([0, 1, 3, 4], key=lambda i: -key(i, 3, 0))
    assert batch.picks == [(i, "cold", 0.0) for i in order]


def test_the_loop_learns_once():
    scheduler = ReferenceScheduler(four_tasks(held_out=(False, False, False, True)), Settings(batch_size=3), v_floor=0.05)
    _, batch = scheduler.select(0)
    assert sorted(task for task, _, _ in batch.picks) == [0, 1, 2]
    assert scheduler.select(1)[1].picks == []  # all in flight
    scheduler.observe(0, 0, [0, 1])
    scheduler.observe(0, 0, [1, 1])
    scheduler.observe(0, 2, [1, None])
    scheduler.cancel(0, 1)
    assert scheduler.log == [(0, 0, {"v": 0.25, "m": 0.5, "d": 1.0})]
    parts, batch = scheduler.select(2)
    assert len(batch.picks) == 3
    assert parts["expert_weights"] == close([1 / 21] * 21)  # before the round every expert said 1/2
    assert parts["p_informative"][0] > 0.99
