"""Rules that know no prompts: literal numbers, worked out by hand."""

import math

import torch

from envsched_gnn.schedule.policies.arms import draw, mean_advantage
from envsched_gnn.schedule.policies.dapo import Dapo
from envsched_gnn.schedule.policies.dps import Dps
from envsched_gnn.schedule.policies.dump import Dump
from envsched_gnn.schedule.policies.greso import EASY, HARD, Greso
from envsched_gnn.schedule.policies.mopps import Mopps
from envsched_gnn.schedule.policies.pilot_commit import PilotCommit
from envsched_gnn.schedule.policies.sec import Sec
from tests.schedule.policies.hand import ask, binary, close, groups


def test_dps_filters_as_by_hand():
    rule = Dps(3)
    rule.learn(0, groups({0: binary(4)}))
    # P is 1/3 everywhere, before 1/3: xi has only the row of `mixed`, 1/3 in each column after its division.
    # lambda 0.5: alpha = 0.5 * 1 + 0.5 * 1 + xi: the row of `mixed` is 4/3, the others 1; the column adds up to 10/3.
    close(rule.memory.tasks["alpha"][0], [[1, 1, 1], [4 / 3] * 3, [1, 1, 1]])
    close(rule.memory.tasks["belief"][0], [0.3, 0.4, 0.3])
    close(rule.memory.tasks["belief"][1], [1 / 3] * 3)
    rule.learn(1, groups({}))
    # Unobserved: 0.5 * 4/3 + 0.5 = 7/6; 7/6 / (7/6 + 2) = 7/19; all columns are alike, so the belief is the column.
    close(rule.memory.tasks["belief"][0], [6 / 19, 7 / 19, 6 / 19])
    close(rule.memory.tasks["before"][0], [0.3, 0.4, 0.3])


def test_dps_uses_the_belief_before_and_the_transitions():
    rule = Dps(1)
    rule.learn(0, groups({0: binary(4)}))
    rule.learn(1, groups({0: binary(0)}))
    # before = (0, 1, 0): xi is 1 at (none, from mixed). alpha = 0.5 * ((1,1,1), (4/3,4/3,4/3), (1,1,1)) + 0.5, and 1 more at (none, mixed):
    # the column from `none` is (1, 7/6, 1): the belief is that, divided by 19/6.
    close(rule.memory.tasks["alpha"][0], [[1, 2, 1], [7 / 6] * 3, [1, 1, 1]])
    close(rule.memory.tasks["belief"][0], [6 / 19, 7 / 19, 6 / 19])


def test_dps_asks_for_variance_and_not_for_a_mean_between():
    rule = Dps(4)
    rule.learn(0, groups({0: [0.3] * 8, 1: [0.5] * 8, 2: [0.25, 0.75] * 4}))
    assert rule.memory.tasks["before"][:3].argmax(1).tolist() == [0, 2, 1]
    assert rule.choose(ask([0, 1, 2, 3], 1)).rows.tolist() == [2]


def test_mopps_counts_and_prefers_what_is_likely_near_a_half():
    rule = Mopps(3)
    rule.learn(0, groups({0: binary(6), 2: [0.25] * 4}))
    # 0.5 * 1 + 0.5 + 6 = 7 and + 2 = 3; fractional: K m = 4 * 0.25 = 1, K (1-m) = 3.
    close(rule.memory.tasks["a"], [7, 1, 2])
    close(rule.memory.tasks["b"], [3, 1, 4])
    rule.learn(1, groups({0: binary(0)}))
    close(rule.memory.tasks["a"], [4, 1, 2])  # 0.5 * 7 + 0.5
    close(rule.memory.tasks["b"], [10, 1, 4])  # 0.5 * 3 + 0.5 + 8
    rule.memory.tasks["a"] = torch.tensor([4000.0, 1000.0, 2500.0], dtype=torch.float64)
    rule.memory.tasks["b"] = torch.tensor([1000.0, 4000.0, 2500.0], dtype=torch.float64)
    plan = rule.choose(ask([0, 1, 2], 1))
    assert plan.rows.tolist() == [2]
    assert abs(float(plan.score)) < 0.001  # (p - 1/2)^2 of a Beta of standard deviation 0.007
    assert rule.metrics() == {"success": 0.5}  # (0.8 + 0.2 + 0.5) / 3


def test_mopps_draws_its_candidates_from_16_batches():
    picked = {int(Mopps(100).choose(ask(range(100), 1, step=step)).rows) for step in range(40)}
    assert len(picked) > 20


def test_advantages():
    # binary p = 1/4: 2 sqrt(3/16) = 0.866...; rewards 0, 1/2, 1: |.| mean 1/3, std sqrt(1/6): 0.8165; none without variance
    close(mean_advantage(groups({0: binary(2), 1: [0.0, 0.5, 1.0], 2: [0.4] * 4})), [math.sqrt(3) / 2, math.sqrt(6) / 3, 0])


def test_sec_moves_the_values_of_the_environments_it_saw():
    rule = Sec(torch.tensor([0, 0, 1, 2]), 3)
    rule.learn(0, groups({0: binary(4), 1: binary(8), 3: binary(2)}))
    # environment 0: mean of 1 and 0 = 1/2; 0.1 * 1/2. Environment 2: 0.1 * sqrt(3)/2.
    close(rule.memory.environments["value"], [0.05, 0, 0.05 * math.sqrt(3)])
    rule.learn(1, groups({0: binary(4)}))
    close(rule.memory.environments["value"], [0.9 * 0.05 + 0.1, 0, 0.05 * math.sqrt(3)])


def test_draws_follow_the_softmax_over_environments_that_have_tasks():
    env_index = torch.tensor([0] * 10 + [1] * 30 + [2] * 5)
    logit = torch.tensor([math.log(3), 0.0, 9.0], dtype=torch.float64)
    first = [int(draw(ask(range(40), 1, step=step), logit, env_index).rows) for step in range(500)]
    share = sum(row < 10 for row in first) / 500
    # P = 3 : 1, environment 2 has no eligible task. Standard deviation of the share: 0.019.
    assert abs(share - 0.75) < 0.08
    assert {row for row in first if row < 10} == set(range(10))


def test_dump_bounds():
    rule = Dump(torch.tensor([0, 0, 1]), 3)
    close(rule.bounds(), [0, 0, 0])  # ln 1 = 0
    rule.learn(0, groups({0: binary(4), 1: binary(0), 2: binary(2)}))
    # n = 3: 2 ln 4 = 2.7726. Environment 0: mean of 1, 0 + sqrt(2.7726 / 3); 1: sqrt(3)/2 + sqrt(2.7726 / 2); 2: sqrt(2.7726)
    close(rule.bounds(), [0.5 + math.sqrt(2 * math.log(4) / 3), math.sqrt(3) / 2 + math.sqrt(math.log(4)), math.sqrt(2 * math.log(4))])


def test_dump_forgets_what_has_left_its_window():
    rule = Dump(torch.zeros(700, dtype=torch.int64), 1)
    rule.learn(0, groups({row: binary(4) for row in range(200)}))
    assert float(rule.memory.environments["window"].sum()) == 200
    rule.learn(1, groups({row: binary(8) for row in range(150)}))
    # 350 groups: the first 50 of advantage 1 have gone.
    assert float(rule.memory.environments["window"].sum()) == 150
    rule.learn(2, groups({row: binary(4) for row in range(700)}))
    assert float(rule.memory.environments["window"].sum()) == 300
    assert rule.memory.environments["count"].tolist() == [1050]


def test_greso_counts_streaks_of_one_kind():
    rule = Greso(5)
    rule.learn(0, groups({0: binary(8), 1: binary(0), 2: binary(4), 3: [0.3] * 4}))
    rule.learn(1, groups({0: binary(8), 1: binary(8), 2: binary(0), 3: binary(1)}))
    assert rule.memory.tasks["streak"].tolist() == [2, 1, 1, 0, 0]
    assert rule.memory.tasks["kind"].tolist() == [EASY, EASY, HARD, HARD, 0]
    # p = 1/2: 0.5^2, 0.5, 0.5, 1, 1; and never below 0.01
    close(rule.keep_probability(torch.arange(5)), [0.25, 0.5, 0.5, 1, 1])
    rule.memory.tasks["streak"][0] = 7  # 0.5^7 = 0.0078
    close(rule.keep_probability(torch.tensor([0])), [0.01])


def test_greso_steers_p_from_the_second_epoch_on():
    rule = Greso(4)
    rule.learn(0, groups({0: binary(8), 1: binary(4)}))
    assert rule.memory.shared["p"].tolist() == [0.5, 0.5]
    rule.memory.tasks["visits"][0] = 2
    rule.learn(1, groups({0: binary(8), 1: binary(4), 2: binary(4)}))
    # easy 1/3 >= 0.083: p_easy falls; hard 0 < 0.167: p_hard grows
    close(rule.memory.shared["p"], [0.49, 0.51])
    for step in range(60):
        rule.learn(2 + step, groups({0: binary(8)}))
    close(rule.memory.shared["p"], [0.05, 0.95])


def test_greso_passes_over_and_fills_up():
    rule = Greso(6)
    rule.memory.tasks["streak"][:] = 50  # all are kept with 1 %
    plan = rule.choose(ask(range(6), 4))
    assert len(set(plan.rows.tolist())) == 4
    assert rule.memory.tasks["visits"].tolist() == [1] * 6
    rule.memory.tasks["streak"][:] = 0
    plan = rule.choose(ask(range(6), 4, step=1))
    assert rule.memory.tasks["visits"].sum() == 10
    assert rule.memory.tasks["visits"][plan.rows].tolist() == [2] * 4


def test_dapo_draws_again_until_a_batch_is_mixed():
    rule = Dapo(9)
    first = rule.choose(ask(range(9), 3))
    assert (len(first.rows), first.use, first.more, first.phase) == (3, "filter", True, "uniform")
    left = [row for row in range(9) if row not in first.rows]
    two = {row: binary(4) for row in first.rows.tolist()[:2]}
    second = rule.choose(ask(left, 3, trip=1, looked=groups(two)))
    assert len(second.rows) == 3
    enough = rule.choose(ask(left, 3, trip=2, looked=groups(two | {int(second.rows[0]): binary(1)})))
    assert (len(enough.rows), enough.more) == (0, False)
    assert len(rule.choose(ask(left, 3, trip=10)).rows) == 0
    assert len(rule.choose(ask(left, 3, trip=9)).rows) == 3


def test_pilots_then_commits():
    rule = PilotCommit(12, 8)
    pilots = rule.choose(ask(range(12), 2))
    assert (len(pilots.rows), pilots.use, pilots.num_rollouts, pilots.more) == (6, "pilot", 2, True)
    a, b, c = pilots.rows.tolist()[:3]
    looked = {row: [0.0, 0.0] for row in pilots.rows.tolist()} | {a: [0.0, 1.0]}
    again = rule.choose(ask(range(12), 2, trip=1, looked=groups(looked)))
    assert sorted(pilots.rows.tolist() + again.rows.tolist()) == list(range(12))
    looked |= {row: [0.5, 0.5] for row in again.rows.tolist()} | {b: [0.25, 0.75], c: [0.0, 0.5]}
    commit = rule.choose(ask(range(12), 2, trip=2, looked=groups(looked)))
    # variances 1/4 of a; 1/16 of b and c, of which the key takes one
    assert (commit.use, commit.num_rollouts, commit.more) == ("train", 6, False)
    assert commit.rows[0] == a
    assert commit.rows[1] in (b, c)
    close(commit.score, [0.25, 0.0625])


def test_nothing_to_commit_to():
    rule = PilotCommit(4, 8)
    rows = rule.choose(ask(range(4), 2)).rows.tolist()
    plan = rule.choose(ask(range(4), 2, trip=1, looked=groups({row: [1.0, 1.0] for row in rows})))
    assert (len(plan.rows), plan.more) == (0, False)
