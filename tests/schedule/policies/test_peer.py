"""The host: whatever the rule, the verbs keep their promises."""

import copy
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsched_gnn.errors import CheckpointError, ConfigError, GraphError, HistoryError
from envsched_gnn.records import Rollout, RolloutGroup
from envsched_gnn.schedule import EnvSched, Uniform
from envsched_gnn.schedule.policies import FACTS, NAMES, policy_of
from tests.features.shop import POOL
from tests.schedule.small import graph_of, group

PEERS = [name for name in NAMES if name not in ("uniform", "envsched", "paper", "oracle")]
LOOKING = ("dots", "pilot_commit")
"""Peers whose first request may be no batch to train on."""


def vectors_of(graph):
    """A vector for each task that depends on its identity alone."""
    identity = graph["task"].identity
    return torch.stack([((identity >> shift) & 0xFF).to(torch.float64) - 127 for shift in (0, 8, 16, 24, 32)], 1)


def peer(name, graph, **settings):
    return policy_of(name, None, graph, embedding=vectors_of(graph), num_rollouts=4, **{"batch_size": 3, "seed": 1} | settings)


def rewards(pick, step, k):
    """Rewards that depend on task and step alone; a third of the groups have no variance."""
    dice = random.Random(f"{pick.key} {step}")
    kind = dice.randrange(3)
    return [(1.0, 0.0, dice.choice([0.0, 0.25, 1.0]))[min(kind, 2)] if kind < 2 else dice.choice([0.0, 0.25, 1.0]) for _ in range(k)]


def groups_of(selection, k=4):
    return [group(p, selection.step, rewards(p, selection.step, selection.num_rollouts or k)) for p in selection.picks]


def trips(policy, step, observe=True):
    """All selections of a step, each observed before the next."""
    selections = [policy.select(step)]
    while observe and selections[-1].picks:
        policy.observe(groups_of(selections[-1]))
        if not selections[-1].more:
            break
        selections.append(policy.select(step, request_id=str(len(selections))))
    return selections


POOLS = st.tuples(st.lists(st.integers(0, 3), min_size=2, max_size=14), st.integers(1, 6), st.integers(0, 10_000))
FEW = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", PEERS)
@FEW
@given(POOLS, st.data())
def test_picks(name, pool, data):
    """min(n, eligible) tasks to train on, no repeats, none held out, none in flight."""
    env_index, n, seed = pool
    held_out = data.draw(st.lists(st.booleans(), min_size=len(env_index), max_size=len(env_index)))
    graph = graph_of(sorted(env_index), held_out=held_out, env_ids=[f"e{k}" for k in range(4)])
    policy = peer(name, graph, batch_size=n, seed=seed)
    eligible = held_out.count(False)
    lost = policy.select(0).picks if name not in LOOKING else ()
    for step in range(1, 5):
        for selection in trips(policy, step):
            rows = [pick.task_index for pick in selection.picks]
            assert len(set(rows)) == len(rows)
            assert not any(held_out[row] for row in rows)
            assert not set(rows) & {pick.task_index for pick in lost}
            assert all(pick.group_id.startswith(f"{step}") for pick in selection.picks)
            if selection.use == "train" and name != "pilot_commit":
                assert len(rows) == min(n, eligible - len(lost))
    assert policy.problems() == ()


@pytest.mark.parametrize("name", PEERS)
def test_resume_is_bit_equal(name):
    graph = graph_of([0] * 9 + [1] * 6 + [2] * 5)
    first = peer(name, graph, batch_size=4)
    for step in range(5):
        trips(first, step)
    pending = first.select(5)
    first.observe(groups_of(pending)[:2])  # the round is not over: two groups have come, the others are in flight
    saved = first.state_dict()
    kept = copy.deepcopy(saved)
    second = peer(name, graph, batch_size=4)
    report = second.load_state_dict(saved)
    assert (report.known, report.unknown, report.new) == (20, 0, 0)
    assert second.select(5) == pending
    for policy in (first, second):
        policy.observe(groups_of(pending)[2:])
    for step in range(6, 12):
        assert trips(first, step) == trips(second, step)
    assert first.metrics() == second.metrics()
    assert_equal(saved["memory"], kept["memory"])  # what was saved is a copy, not a view


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], dict):
            assert_equal(a[name], b[name])
        elif isinstance(a[name], torch.Tensor):
            assert torch.equal(a[name], b[name]), name
        else:
            assert a[name] == b[name]


@pytest.mark.parametrize("name", PEERS)
@FEW
@given(st.randoms(use_true_random=False))
def test_the_order_and_the_parts_of_a_report_do_not_matter(name, dice):
    graph = graph_of([0] * 7 + [1] * 5)
    one, other = (peer(name, graph, batch_size=4) for _ in range(2))
    for step in range(4):
        picked = one.select(step)
        assert other.select(step) == picked
        came = groups_of(picked)
        one.observe(came)
        dice.shuffle(came)
        for some in came:
            other.observe([some])
            other.observe([some])  # a repeat changes nothing
    assert_equal(one.state_dict()["memory"], other.state_dict()["memory"])


@pytest.mark.parametrize("name", [name for name in PEERS if name != "bots"])  # of equal neighbours the graph takes the lower rows
def test_the_order_of_the_pool_does_not_matter(name):
    env_index, n = [0] * 8 + [1] * 7 + [2] * 6, 21
    names = [f"t{k}" for k in range(n)]
    order = random.Random(3).sample(range(n), n)
    one = graph_of(env_index, task_ids=names, env_ids=["a", "b", "c"], words=1, records=1)
    other = graph_of([env_index[k] for k in order], task_ids=[names[k] for k in order], env_ids=["a", "b", "c"], words=1, records=1)
    policies = [peer(name, graph, batch_size=4) for graph in (one, other)]
    for step in range(6):
        first, second = (trips(policy, step) for policy in policies)
        assert [s.task_ids for s in first] == [s.task_ids for s in second]


@pytest.mark.parametrize("name", PEERS)
def test_a_request_is_answered_once(name):
    policy = peer(name, graph_of([0] * 5 + [1] * 4))
    selection = policy.select(2)
    assert policy.select(2) is selection
    assert policy.select(2, 3) is selection
    with pytest.raises(HistoryError, match="ascending order"):
        policy.select(1)
    with pytest.raises(HistoryError, match="from 0 on"):
        policy.select(3, -1)
    assert policy.select(3, 0).picks == ()


@pytest.mark.parametrize("name", PEERS)
def test_a_pool_smaller_than_a_batch(name):
    policy = peer(name, graph_of([0, 0, 1]), batch_size=64)
    for step in range(6):
        for selection in trips(policy, step):
            assert len(selection.picks) <= 3
    assert policy.metrics()["envsched/total/selected"] >= 18 - 3 * (name == "pilot_commit")


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_zero_variance_everywhere(name, level):
    policy = peer(name, graph_of([0] * 6 + [1] * 6))
    for step in range(8):
        selection = policy.select(step)
        for trip in range(1, 12):
            policy.observe([group(p, step, [level] * (selection.num_rollouts or 4)) for p in selection.picks])
            if not selection.more:
                break
            selection = policy.select(step, request_id=str(trip))
    figures = policy.metrics()
    assert all(value == value for value in figures.values())  # no NaN
    assert figures["envsched/total/charged_rollouts"] > 0
    assert (figures["envsched/total/trained_rollouts"] == 0) == (name in ("dapo", "pilot_commit"))
    assert figures["envsched/round/zero_variance_share"] == 1


@pytest.mark.parametrize("name", PEERS)
def test_all_rollouts_failed(name):
    policy = peer(name, graph_of([0] * 6 + [1] * 6))
    before = policy.state_dict()["memory"]
    for step in range(6):
        selection = policy.select(step)
        policy.observe([group(p, step, [None] * 4, status="crashed") for p in selection.picks])
        if selection.more:
            policy.select(step, request_id="1")
    assert policy.metrics()["envsched/total/observed"] == 0
    assert policy.metrics()["envsched/total/failed"] > 0
    learned = {"dps": "belief", "mopps": "a", "leeps": "weight", "bots": None}
    if (table := learned.get(name)) is not None:
        torch.testing.assert_close(policy.state_dict()["memory"]["tasks"][table], before["tasks"][table])


@pytest.mark.parametrize("name", PEERS)
def test_strange_reports(name):
    policy = peer(name, graph_of([0] * 4 + [1] * 4))
    selection = policy.select(0)
    stranger = RolloutGroup(group_id="0:x/y", env_id="x", task_id="y", step=0, rollouts=(Rollout(reward=1.0),) * 4)
    one = group(selection.picks[0], 0, [0.5])  # one reward teaches nothing
    policy.observe([stranger, one, *groups_of(selection)[1:]])
    policy.cancel("no such group")
    assert policy.metrics()["envsched/total/unknown"] == 1
    assert "is not in the pool" in policy.problems()[0]
    with pytest.raises(HistoryError, match="expected RolloutGroup"):
        policy.observe([3])
    assert policy.select(1).picks


@pytest.mark.parametrize("name", PEERS)
def test_cancelled_tasks_are_free_again(name):
    graph = graph_of([0, 0, 1])
    policy = peer(name, graph)
    selection = policy.select(0)
    assert len(selection.picks) in (2, 3)
    policy.cancel(selection.group_ids)
    assert policy.select(2 if name != "dots" else 4).picks


@pytest.mark.parametrize("name", PEERS)
def test_a_pool_that_has_changed(name):
    names, envs = [f"t{k}" for k in range(24)], ["a", "b", "c"]
    whole = graph_of([0] * 8 + [1] * 8 + [2] * 8, task_ids=names, env_ids=envs)
    part = graph_of([1] * 8 + [0] * 4, task_ids=names[8:16] + names[:4], env_ids=envs[:2])
    first = peer(name, whole, batch_size=4)
    for step in range(6):
        trips(first, step)
    saved = first.state_dict()
    second = peer(name, part, batch_size=4)
    report = second.load_state_dict(saved)
    assert (report.known, report.unknown, report.new) == (12, 12, 0)
    for step in range(6, 9):
        trips(second, step)
    third = peer(name, whole, batch_size=4)
    report = third.load_state_dict(second.state_dict())
    assert (report.known, report.unknown, report.new) == (24, 0, 0)
    for kind, rows in (("tasks", slice(16, 24)), ("environments", slice(2, 3))):
        for table, values in third.state_dict()["memory"][kind].items():
            assert torch.equal(values[rows], saved["memory"][kind][table][rows]) or table in ("alpha", "belief", "before", "a", "b")


def test_a_state_of_another_peer_or_a_damaged_one_is_refused():
    graph = graph_of([0, 0, 1])
    saved = peer("dps", graph).state_dict()
    with pytest.raises(CheckpointError, match="expected version 1 of 'peer mopps'"):
        peer("mopps", graph).load_state_dict(saved)
    policy = peer("dps", graph)
    selection = policy.select(0)
    saved["memory"]["tasks"]["alpha"] = saved["memory"]["tasks"]["alpha"][:2]
    with pytest.raises(CheckpointError, match="table 'alpha' has 2 rows for 3 identities"):
        policy.load_state_dict(saved)
    assert policy.select(0) is selection


def test_a_round_is_learned_once_however_it_ends():
    graph = graph_of([0] * 6)
    policy = peer("dps", graph)
    picked = policy.select(0)
    policy.observe(groups_of(picked)[:2])
    assert torch.equal(policy.state_dict()["memory"]["tasks"]["belief"], torch.full((6, 3), 1 / 3, dtype=torch.float64))
    policy.cancel(picked.group_ids[2])
    policy.select(1)
    belief = policy.state_dict()["memory"]["tasks"]["belief"]
    assert int((belief[:, 0] != 1 / 3).sum()) == 2
    policy.observe(groups_of(picked)[2:])  # it reports after all, in the round of step 1
    policy.observe(groups_of(policy.select(1)))
    assert int((policy.state_dict()["memory"]["tasks"]["belief"][:, 0] != 1 / 3).sum()) >= 4


def test_names_make_policies():
    graph = graph_of([0, 0, 1])
    for name in NAMES:
        if name != "oracle":
            policy = policy_of(name, None, graph, embedding=vectors_of(graph), batch_size=2, seed=5)
            assert len(policy.select(1).picks) == 2 + (name == "pilot_commit") - (name == "dots")
    assert isinstance(policy_of("uniform", None, graph), Uniform)
    presets = {name: policy_of(name, None, graph) for name in ("envsched", "paper")}
    assert {name: (type(p), p.preset) for name, p in presets.items()} == {"envsched": (EnvSched, "default"), "paper": (EnvSched, "paper")}
    with pytest.raises(ConfigError, match="compare"):
        policy_of("oracle", None, graph)


@pytest.mark.parametrize(
    ("name", "near"), [("dap", "dapo"), ("Pilot-Commit", "pilot_commit"), ("graph", "graph_potts"), ("unifrom", "uniform")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name, near):
    with pytest.raises(ConfigError, match=f"expected one of uniform, .*Did you mean '{near}'"):
        policy_of(name, None, graph_of([0, 1]))


def test_vectors_come_from_prompts_or_are_asked_for():
    with pytest.raises(ConfigError, match="policy 'pcl': neither a pool nor vectors"):
        policy_of("pcl", None, graph_of([0, 1]))
    with pytest.raises(ConfigError, match=r"shape \(3, 2\); expected a row a task, 2 of them"):
        policy_of("pcl", None, graph_of([0, 1]), embedding=torch.ones((3, 2)))
    from envsched_gnn.graph.build import build_graph

    assert policy_of("leeps", POOL, build_graph(POOL), batch_size=2).select(0).picks
    with pytest.raises(GraphError, match="Build the graph again"):
        policy_of("pcl", POOL, graph_of([0, 1]), embedding=torch.ones((2, 2)))


def test_every_policy_has_its_facts():
    assert len({facts.name for facts in FACTS}) == 16
    assert all(value for facts in FACTS for value in vars(facts).values())
