"""A round of any policy: trips, what is learned from, what is charged; on made-up rewards and in real environments."""

import pytest

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool.load import load_pool
from envsched_gnn.records import Rollout, Selection
from envsched_gnn.schedule.policies import NAMES, lesson, play_round, policy_of
from envsched_gnn.train.engine import ScriptedEngine
from tests.schedule.policies.test_peer import peer
from tests.schedule.small import graph_of, group


class Told:
    """An engine that gives every group the rewards that a function tells, and loses those it tells None for."""

    def __init__(self, rewards):
        self.rewards, self.selections = rewards, []

    def rollout(self, selection):
        self.selections.append(selection)
        for pick in reversed(selection.picks):
            told = self.rewards(selection, pick)
            if told is not None:
                yield group(pick, selection.step, told)


def test_dapo_learns_from_a_batch_of_mixed_groups_and_pays_for_all():
    mixed = {f"e0/t{k}" for k in range(0, 12, 2)}
    policy = peer("dapo", graph_of([0] * 12), batch_size=4)
    played = play_round(policy, Told(lambda s, pick: [0.0, 1.0] * 2 if pick.key in mixed else [1.0] * 4), 0)
    assert {s.use for s in played.selections} == {"filter"}
    assert len(played.train) == 4
    assert {g.key for g in played.train} <= mixed
    trips = len(played.selections)
    assert trips in (2, 3)  # six of twelve are mixed: no batch of four in one trip, unless by the chance of this seed; all after three
    assert played.charged == 4 * 4 * trips
    figures = policy.metrics()
    assert figures["envsched/total/charged_rollouts"] == played.charged
    assert figures["envsched/total/trained_rollouts"] == 16


def test_fractional_rewards_without_variance_are_discarded():
    policy = peer("dapo", graph_of([0] * 4), batch_size=2)
    played = play_round(policy, Told(lambda s, pick: [0.3] * 4 if pick.task_id != "t1" else [0.3, 0.3, 0.3, 0.4]), 0)
    assert [g.key for g in played.train] == ["e0/t1"]
    assert played.charged == 16


def test_pilots_belong_to_the_group_they_led_to():
    policy = peer("pilot_commit", graph_of([0] * 12), batch_size=2)
    engine = Told(lambda s, pick: [0.0, 1.0] if s.use == "pilot" else [1.0, 1.0])
    played = play_round(policy, engine, 0)
    assert [(s.use, s.num_rollouts, s.more, len(s.picks)) for s in played.selections] == [("pilot", 2, True, 6), ("train", 2, False, 2)]
    assert [g.rewards for g in played.train] == [(0.0, 1.0, 1.0, 1.0)] * 2
    assert [g.group_id for g in played.train] == list(played.selections[1].group_ids)
    assert all(group_id.startswith("0.pilot:e0/") for group_id in played.selections[0].group_ids)
    assert played.charged == 6 * 2 + 2 * 2
    assert policy.metrics()["envsched/total/charged_rollouts"] == 16
    assert policy.metrics()["envsched/total/trained_rollouts"] == 8


def test_references_are_paid_for_and_not_learned_from():
    policy = peer("dots", graph_of([0] * 8), batch_size=4)
    first, second = (play_round(policy, Told(lambda s, pick: [0.0, 1.0] * 2), step) for step in (0, 1))
    assert [s.use for s in first.selections] == ["reference", "train"]
    assert (len(first.groups), len(first.train), first.charged) == (6, 4, 24)
    assert (len(second.groups), len(second.train), second.charged) == (4, 4, 16)


def test_lost_groups_are_cancelled():
    policy = peer("uniform", graph_of([0] * 4), batch_size=4)
    played = play_round(policy, Told(lambda s, pick: None if pick.task_id == "t2" else [0.0, 1.0]), 0)
    assert sorted(g.task_id for g in played.groups) == ["t0", "t1", "t3"]
    assert policy.metrics()["envsched/total/cancelled"] == 1
    assert len(policy.select(1).picks) == 4


def test_a_step_without_tasks():
    policy = peer("dps", graph_of([0] * 3, held_out=[True] * 3))
    played = play_round(policy, Told(None), 0)
    assert (played.selections, played.train, played.charged) == ((), (), 0)


def test_plain_selections_are_learned_from_as_they_are():
    policy = policy_of("uniform", None, graph_of([0] * 3))
    selection = Selection(step=0, picks=policy.select(0).picks)
    groups = [group(pick, 0, [1.0, 1.0]) for pick in selection.picks]
    assert lesson([(selection, groups)], 1, policy.book) == groups


@pytest.fixture(scope="module")
def world():
    pool = load_pool(PoolConfig(toolworld=ToolWorldConfig(environments=3, tasks=8)))
    return pool, build_graph(pool)


def test_every_policy_plays_in_real_environments(world):
    pool, graph = world
    with ScriptedEngine(pool, 4, workers=1) as engine:
        for name in NAMES:
            if name == "oracle":
                continue
            policy = policy_of(name, pool, graph, batch_size=3, num_rollouts=4)
            rounds = [play_round(policy, engine, step) for step in range(3)]
            rollouts = [rollout for played in rounds for g in played.groups for rollout in g.rollouts]
            assert all(isinstance(rollout, Rollout) for rollout in rollouts)
            assert sum(played.charged for played in rounds) == len(rollouts)
            assert all(len(g.rollouts) == 4 for played in rounds for g in played.train), name
            figures = policy.metrics()
            assert figures["envsched/total/groups"] == sum(len(played.groups) for played in rounds)
            if "envsched/total/charged_rollouts" in figures:
                assert figures["envsched/total/charged_rollouts"] == len(rollouts)
                assert figures["envsched/total/trained_rollouts"] == sum(len(g.rollouts) for played in rounds for g in played.train)
            if name in ("dapo", "pilot_commit", "dots"):
                assert len(rollouts) > 3 * 3 * 4
            else:
                assert len(rollouts) == 3 * 3 * 4
            assert policy.problems() == ()
