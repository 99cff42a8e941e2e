"""The greedy pass: a batch worked out by hand; the shortlist against the whole pool; quotas and relaxations."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsched_gnn.config import SelectConfig
from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.schedule import greedy as module
from envsched_gnn.schedule import redundancy as redundancy_module
from envsched_gnn.schedule.exposure import Exposure
from envsched_gnn.schedule.greedy import BLOCKED, GreedyPass, PhaseScore, top_rows
from envsched_gnn.schedule.quotas import Quotas, quotas_at
from envsched_gnn.schedule.redundancy import Redundancy
from tests.schedule.small import graph_of


def quotas(environments, per_round=99, rolling=99, repeated=()):
    zeros = np.zeros(environments, dtype=np.int64)
    return Quotas(
        per_round=per_round, rolling=rolling, round_picks=zeros, window_picks=zeros.copy(), repeated=np.array(repeated, dtype=np.int64)
    )


def run(graph, phases, *, q=None, key=None, eligible=None, quotas, redundancy=None, earlier=(), crowd=1):
    store = graph["task"]
    tasks = store.env_index.numel()
    q = torch.zeros(tasks, dtype=torch.int64) if q is None else q
    key = torch.arange(tasks) if key is None else key
    eligible = torch.ones(tasks, dtype=torch.bool) if eligible is None else eligible
    ties = (lambda rows: q[rows], lambda rows: key[rows])
    greedy = GreedyPass(
        phases, eligible=eligible, ties=ties, env_index=store.env_index, quotas=quotas, redundancy=redundancy, earlier=earlier, crowd=crowd
    )
    return greedy, greedy.choose()


def phase(name, base, count, spread=False):
    return PhaseScore(phase=name, base=torch.tensor(base, dtype=torch.float64), count=count, spread=spread)


def test_by_hand():
    """Environments a = {0, 1, 2}, b = {3, 4}. s(0,1) = .8 within; tasks 2 and 3 share a record, so s_cross(2,3) = 1; all else is 0.

    Coverage, base (.9, .8, .6, .5, .4), two picks: 0 (.9). Then a is halved: 1 -> .4 - .5 (.8 - .5) = .25, 2 -> .3, 3 -> .5: pick 3.
    Exploitation, base (.1, .7, .75, .2, .5): 1 -> .7 - .15 = .55, 2 -> .75 - .5 (1 - .5) = .5, 4 -> .5: pick 1, then 2 before 4 by q.
    """
    a = torch.eye(3, dtype=torch.float64)
    a[0, 1] = a[1, 0] = 0.8
    graph = assemble_graph(
        env_ids=["a", "b"],
        env_index=torch.tensor([0, 0, 0, 1, 1]),
        task_ids=list("01234"),
        within_blocks=[a, torch.eye(2, dtype=torch.float64)],
        cross_vectors=torch.eye(4, dtype=torch.float64),
        record_index=torch.tensor([0, 1, 2, 2, 3]),
    )
    phases = [
        phase("coverage", [0.9, 0.8, 0.6, 0.5, 0.4], 2, spread=True),
        phase("exploitation", [0.1, 0.7, 0.75, 0.2, 0.5], 3),
    ]
    redundancy = Redundancy(graph, weight=0.5, threshold=0.5)
    _, choices = run(graph, phases, q=torch.tensor([5, 4, 3, 2, 1]), quotas=quotas(2), redundancy=redundancy)
    assert [c.task for c in choices] == [0, 3, 1, 2, 4]
    assert [c.phase for c in choices] == ["coverage"] * 2 + ["exploitation"] * 3
    # s(0, 1) = .8 lies on the grid of 2^-20: .8 -> 838861 / 1048576
    assert [c.score for c in choices] == pytest.approx([0.9, 0.5, 0.7 - 0.5 * (838861 / 2**20 - 0.5), 0.5, 0.5], abs=1e-15)
    assert all(c.broken == () for c in choices)


def test_ties_go_to_q_then_to_the_higher_key():
    graph = graph_of([0, 0, 0, 0])
    q, key = torch.tensor([1, 2, 2, 1]), torch.tensor([9, -5, 3, 10])
    _, choices = run(graph, [phase("exploitation", [0.5] * 4, 4)], q=q, key=key, quotas=quotas(1))
    assert [c.task for c in choices] == [2, 1, 3, 0]


def test_scores_within_a_rounding_step_tie():
    graph = graph_of([0, 0])
    _, choices = run(graph, [phase("exploitation", [0.5 + 1e-12, 0.5], 1)], q=torch.tensor([1, 2]), quotas=quotas(1))
    assert [c.task for c in choices] == [1]


def test_quotas_are_relaxed_in_order_and_each_broken_one_is_named():
    """One environment, four tasks, all picked: task 3 came twice in a row, two tasks a round, three in the window."""
    graph = graph_of([0] * 4)
    limits = quotas(1, per_round=2, rolling=3, repeated=[3])
    _, choices = run(graph, [phase("exploitation", [0.1, 0.2, 0.3, 0.9], 4)], quotas=limits)
    assert [c.task for c in choices] == [2, 1, 3, 0]
    assert [c.broken for c in choices] == [(), (), ("consecutive", "per_round"), ("rolling", "per_round")]


def test_consecutive_is_given_up_before_rolling():
    graph = graph_of([0, 0, 1])
    limits = quotas(2, per_round=1, rolling=1, repeated=[2])
    _, choices = run(graph, [phase("exploitation", [0.9, 0.8, 0.1], 3)], quotas=limits)
    assert [(c.task, c.broken) for c in choices] == [(0, ()), (2, ("consecutive",)), (1, ("rolling", "per_round"))]


def test_earlier_picks_of_the_round_are_not_picked_again_and_penalise():
    graph = graph_of([0, 1, 2], records=1, words=9)  # one record: s_cross = 1 for every pair
    redundancy = Redundancy(graph, weight=0.5, threshold=0.5)
    _, choices = run(graph, [phase("exploitation", [0.9, 0.5, 0.4], 3)], quotas=quotas(3), redundancy=redundancy, earlier=[0])
    assert [(c.task, c.score) for c in choices] == [(1, 0.25), (2, pytest.approx(0.15))]


def test_nothing_to_pick():
    graph = graph_of([0, 0])
    assert run(graph, [], quotas=quotas(1))[1] == []
    nobody = torch.zeros(2, dtype=torch.bool)
    assert run(graph, [phase("cold", [0.0, 0.0], 2)], eligible=nobody, quotas=quotas(1))[1] == []


def random_case(seed):
    """A pool with many ties, some quotas that bind, some earlier picks."""
    rng = np.random.default_rng(seed)
    tasks, environments = int(rng.integers(1, 80)), int(rng.integers(1, 9))
    graph = graph_of(rng.integers(0, environments, tasks), seed=seed, words=int(rng.integers(1, 6)))
    environments = len(graph.env_ids)
    levels = float(rng.choice([2, 5, 1e6]))
    cover, exploit = (np.ceil(rng.random(tasks) * levels) / levels for _ in range(2))
    n = int(rng.integers(0, 30))
    config = SelectConfig(batch_size=8, per_round=int(rng.integers(1, 5)), rolling=int(rng.integers(1, 7)), consecutive=1)
    exposure = Exposure(graph["task"].env_index.numpy(), environments)
    for step in range(3):
        exposure.add(step, rng.choice(tasks, min(tasks, 4), replace=False).tolist())
    return (
        graph,
        cover,
        exploit,
        n,
        config,
        exposure,
        torch.from_numpy(rng.random(tasks) < 0.9),
        torch.from_numpy(rng.integers(0, 3, tasks)),
    )


def choose(case, whole_pool, shortlist, table):
    graph, cover, exploit, n, config, exposure, eligible, q = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WHOLE_POOL", whole_pool)
        patch.setattr(module, "SHORTLIST", shortlist)
        patch.setattr(module, "GROWTH", 2)
        patch.setattr(redundancy_module, "MAX_TABLE_RECORDS", table)
        phases = [phase("coverage", cover, n // 2, spread=True), phase("exploitation", exploit, n - n // 2)]
        earlier = exposure.at(2).tolist()
        eligible = eligible.clone()
        eligible[earlier] = False
        greedy, choices = run(
            graph,
            [p for p in phases if p.count],
            q=q,
            eligible=eligible,
            quotas=quotas_at(exposure, 2, config, len(graph.env_ids)),
            redundancy=Redundancy(graph, weight=0.5, threshold=0.5),
            earlier=earlier,
            crowd=1,
        )
    return greedy, choices


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), shortlist=st.sampled_from((1, 2, 7)))
def test_a_shortlist_picks_what_the_whole_pool_picks(seed, shortlist):
    """From one candidate on, growing, with similarities looked up or computed: the same picks, scores and relaxations."""
    case = random_case(seed)
    _, expected = choose(case, 10**9, 256, 10**9)
    _, got = choose(case, 0, shortlist, 0)
    assert got == expected
    eligible = case[6].clone()
    eligible[case[5].at(2)] = False
    assert len(got) == min(case[3], int(eligible.sum()))


def test_the_shortlist_grows_when_its_bound_fails():
    """64 tasks of one environment stand above all others; once one is picked, coverage must go elsewhere."""
    graph = graph_of([0] * 64 + [1, 2, 3], words=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WHOLE_POOL", 0)
        patch.setattr(module, "SHORTLIST", 4)
        greedy, choices = run(graph, [phase("coverage", [0.9] * 64 + [0.8, 0.7, 0.6], 4, spread=True)], quotas=quotas(4))
    assert [c.task for c in choices] == [63, 64, 65, 66]
    assert greedy.size > 4


def columns_of(score, q, key):
    return torch.tensor(score), (lambda rows: torch.tensor(q)[rows], lambda rows: torch.tensor(key)[rows])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=30), st.integers(1, 30))
def test_top_rows_is_the_head_of_the_sorted_pool(entries, size):
    score, q, allowed = (list(column) for column in zip(*entries, strict=True))
    key = [(7 * row) % 31 for row in range(len(entries))]
    first, ties = columns_of(score, q, key)
    rows, bound = top_rows(first, ties, torch.tensor(allowed), size)
    order = sorted((r for r in range(len(entries)) if allowed[r]), key=lambda r: (-score[r], -q[r], -key[r]))
    assert sorted(rows.tolist()) == sorted(order[:size])
    left_out = order[size:]
    assert bound == ((score[left_out[0]], q[left_out[0]], key[left_out[0]]) if left_out else None)
    assert min(score) > BLOCKED
