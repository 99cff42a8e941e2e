"""Rules that read prompt vectors, and BOTS, which reads the graph: literal numbers, worked out by hand."""

import math

import torch

from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.shuffle import shown_rows, shuffle
from envsched_gnn.records import Environment, Task
from envsched_gnn.schedule.policies.bots import Bots
from envsched_gnn.schedule.policies.dots import Dots
from envsched_gnn.schedule.policies.graph_potts import GraphPotts
from envsched_gnn.schedule.policies.leeps import Leeps
from envsched_gnn.schedule.policies.make import shown_prompts
from envsched_gnn.schedule.policies.pcl import Pcl
from tests.schedule.policies.hand import ask, binary, close, groups, identity_of
from tests.schedule.small import graph_of

AXES = torch.eye(4, dtype=torch.float64)


def test_pcl_fits_a_ridge():
    rule = Pcl(torch.tensor([[1.0], [0.0], [-1.0]]))
    close(rule.value(torch.arange(3)), [0.5, 0.5, 0.5])
    rule.learn(0, groups({0: binary(8)}))
    # x~ = (1, 1), y = 1/2: (I + [[1,1],[1,1]]) theta = (1/2, 1/2) gives theta = (1/6, 1/6)
    close(rule.value(torch.arange(3)), [5 / 6, 4 / 6, 0.5])
    assert rule.choose(ask([0, 1, 2], 1)).rows.tolist() == [2]
    rule.learn(1, groups({}))
    # the group weighs w = 2^(-1/8): theta = (w/2) / (1 + 2 w) each
    w = 2 ** (-1 / 8)
    close(rule.value(torch.arange(3)), [0.5 + w / (1 + 2 * w), 0.5 + w / (2 + 4 * w), 0.5])


def test_leeps_propagates_to_neighbours():
    vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])
    rule = Leeps(vectors, 8)
    rule.learn(0, groups({0: binary(8)}))
    # b = 1, W_0 = 1, similarity 1 (itself), 0.8, 0, 0 (negative): (s + 2) / (s + 2) = 1 everywhere
    close(rule.success(torch.arange(4)), [1, 1, 1, 1])
    rule.learn(1, groups({2: binary(0)}))
    # w = 2^(-1/8) on task 0; b = w / (w + 1); task 1: (0.8 w + 2 b) / (0.8 w + 0.6 + 2); similarities stand on a grid of 2^-20
    w = 2 ** (-1 / 8)
    b = w / (w + 1)
    expected = [(w + 2 * b) / (w + 2), (0.8 * w + 2 * b) / (0.8 * w + 2.6), 2 * b / 3, b]
    close(rule.success(torch.arange(4)), expected, 1e-6)


def test_leeps_divides_its_budget_by_recent_outcomes():
    rule = Leeps(torch.eye(8), 8)
    assert rule.exploit_share() == 0.5
    rule.learn(0, groups({0: binary(4), 1: binary(4), 2: binary(8)}))
    # explore: 2 of 3 mixed, (2+1)/(3+2) = 0.6; exploit: 1/2. 0.5 / 1.1
    assert math.isclose(rule.exploit_share(), 0.5 / 1.1)
    rule.learn(1, groups({0: binary(4), 1: binary(8), 3: binary(0)}))
    # explore 2 of 4: 3/6; exploit 1 of 2: 2/4
    assert math.isclose(rule.exploit_share(), 0.5)
    assert rule.memory.tasks["mixed"].tolist() == [True] + [False] * 7
    for step in range(2, 8):
        rule.learn(step, groups({0: binary(4), 3: binary(0)}))
    # the last 5 rounds: exploit 5 of 5: 6/7; explore 0 of 5: 1/7: above the bound
    assert math.isclose(rule.exploit_share(), 0.8)


def test_leeps_lets_what_it_just_saw_cool_down():
    rule = Leeps(torch.eye(4), 8)
    rule.learn(0, groups({0: binary(4), 1: binary(2)}))
    assert set(rule.choose(ask(range(4), 2)).rows.tolist()) == {2, 3}
    rule.learn(1, groups({2: binary(8)}))
    plan = rule.choose(ask(range(4), 2))
    # one exploit slot: p (1-p) = 1/4 of task 0 before 3/16 of task 1
    assert plan.rows[0] == 0
    close(plan.score[:1], [0.25])
    # task 3, never seen and without neighbours: b = (w (4/8 + 2/8) + 1) / (2 w + 1)
    w = 2 ** (-1 / 8)
    b = (0.75 * w + 1) / (2 * w + 1)
    assert plan.rows[1] == 3
    close(plan.score[1:], [1 - b**8 - (1 - b) ** 8 + 0.1])


def test_dots_attends_to_its_references():
    rule = Dots(AXES)
    first = rule.choose(ask(range(4), 4))
    assert (len(first.rows), first.use, first.more) == (2, "reference", True)
    rule.choose(ask(range(4), 2, trip=1, looked=groups({0: binary(8), 1: binary(0)})))
    # vectors of length 2, d = 4: q . k / 2 = 2 for the same axis, else 0: weights e^2 / (e^2 + 1) = s and 1 - s.
    # Attention of the references: s and 1 - s, labels 1 and 0; the line through both: predictions 1 and 0. Of the others: 1/2 and 1/2.
    close(rule.predicted(torch.arange(4)), [1, 0, 0.5, 0.5])
    assert set(rule.choose(ask(range(4), 2, trip=1)).rows.tolist()) == {2, 3}


def test_dots_without_a_single_reference_draws_at_random():
    rule = Dots(AXES)
    assert rule.choose(ask(range(4), 2, step=1)).use == "reference"
    plan = rule.choose(ask(range(4), 2, step=1, trip=1))
    assert (plan.use, len(plan.rows)) == ("train", 2)
    close(rule.predicted(torch.arange(2)), [0.5, 0.5])


def test_dots_looks_every_other_step():
    rule = Dots(AXES)
    rule.choose(ask(range(4), 2, trip=1, looked=groups({0: binary(8)})))
    assert [rule.choose(ask(range(4), 2, step=step)).use for step in range(1, 5)] == ["train", "reference", "train", "reference"]


def test_dots_learns_what_to_attend_to():
    rule = Dots(AXES)
    rule.choose(ask(range(4), 2, trip=1, looked=groups({0: binary(8), 1: binary(0)})))
    before = rule.predicted(torch.tensor([2]))
    maps = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1).requires_grad_()
    adam = torch.optim.Adam([maps], lr=1e-3)
    for step in range(20):
        rule.learn(step, groups({2: binary(8), 0: binary(0)}))
        for _ in range(4):
            adam.zero_grad()
            # -log of the prediction: softmax over the references (tasks 0 and 1) of q . k / 2, labels 1 and 0; vectors of length 2
            (-torch.log_softmax((2 * AXES[2] @ maps[0]) @ (2 * AXES[:2] @ maps[1]).T / 2, 0)[0]).backward()
            adam.step()
    assert int(rule.memory.shared["updates"]) == 80
    close(rule.memory.shared["maps"], maps.tolist(), 1e-9)
    assert float(rule.predicted(torch.tensor([2]))) > float(before)
    rule.learn(20, groups({0: binary(8)}))  # a reference teaches nothing
    assert int(rule.memory.shared["updates"]) == 80


def test_potts_of_a_single_state_is_a_beta_posterior():
    rule = GraphPotts(torch.ones((3, 2)), identity_of(torch.arange(3)))
    rule.learn(0, groups({0: binary(6), 1: [0.5] * 4}))
    # one state: a = 1 + 6 + 2, b = 1 + 2 + 2: 9/14; tasks seen average it with their own mean
    close(rule.success(torch.arange(3)), [(9 / 14 + 6 / 8) / 2, (9 / 14 + 0.5) / 2, 9 / 14])
    rule.learn(1, groups({0: binary(0)}))
    # a = 9, b = 13; task 0: 6 of 16
    close(rule.success(torch.tensor([0, 2])), [(9 / 22 + 6 / 16) / 2, 9 / 22])


def test_potts_two_states_of_unconnected_prompts():
    vectors = torch.cat([AXES[:1]] * 8 + [AXES[1:2]] * 8)
    rule = GraphPotts(vectors, identity_of(torch.arange(16)).flip(0) * torch.tensor([1, -1] * 8))
    assert rule._cluster[:8].unique().numel() == rule._cluster[8:].unique().numel() == 1
    assert rule._cluster[0] != rule._cluster[8]
    assert rule._graph[:8, 8:].nnz == 0
    assert rule._graph[:8, :8].nnz == 56
    rule.learn(0, groups({0: binary(8), 8: binary(0)}))
    p = rule.success(torch.arange(16))
    # The first sweep: task 0 has 7 neighbours of weight 1 and state q = 0.9 / 0.1: 2 * 7 * 0.8 = 11.2 above the other state's, log 9 of its
    # own prior, no evidence yet as all states are alike: q = 1 - 1.5e-6, so a = 1 + 8, b = 1 of its state, and 9/10 of the mean field.
    close(p[[1, 9]], [0.9, 0.1], 1e-4)
    close(p[[0, 8]], [0.95, 0.05], 1e-4)
    assert 0 < rule.metrics()["success_std"] < 0.41


def test_potts_evidence_moves_a_task_to_the_other_state():
    vectors = torch.cat([AXES[:1]] * 8 + [AXES[1:2]] * 7 + [AXES[2:3]])
    rule = GraphPotts(vectors, torch.arange(16) * torch.tensor([1] * 15 + [-1]))
    lone, state = 15, rule._cluster
    assert rule._graph[lone].nnz == 0
    other = int(next(row for row in range(16) if state[row] != state[lone]))
    rule.learn(0, groups({other: binary(8)}))
    before = float(rule.memory.shared["label"][lone, state[other]])
    rule.learn(1, groups({lone: binary(8)}))
    # prior 0.1 : 0.9 of the lone task. Its 8 successes weigh exp(8 (psi(9) - psi(10))) = exp(-8/9) in a state of Beta(9, 1), and
    # exp(8 (psi(1) - psi(2))) = exp(-8) in one of Beta(1, 1): 0.1 e^(-8/9) / (0.1 e^(-8/9) + 0.9 e^(-8)) = 0.99276 after the first sweep.
    assert math.isclose(before, 0.1, rel_tol=1e-6)
    assert float(rule.memory.shared["label"][lone, state[other]]) > 0.99


def test_bots_adds_faint_evidence_of_the_graph():
    graph = graph_of([0, 0, 1])
    rule = Bots(graph, 8)
    rule.learn(0, groups({0: binary(6)}))
    prior = rule.prior(1)
    # The only group is the reference too, so every prior is its mean, 3/4. a: 0.9 + 0.1 + 0.1 * 8 * 3/4 = 1.6, and 0.9 * 6 more where seen.
    close(prior, [0.75] * 3)
    close(rule.memory.tasks["a"], [7.0, 1.6, 1.6])
    close(rule.memory.tasks["b"], [1 + 0.2 + 1.8, 1.2, 1.2])
    rule.learn(1, groups({}))
    close(rule.memory.tasks["a"], [0.9 * 7 + 0.1 + 0.6, 0.9 * 1.6 + 0.7, 0.9 * 1.6 + 0.7])


def test_bots_hears_of_its_neighbours():
    graph = assemble_graph(
        env_ids=["a", "b"],
        env_index=torch.tensor([0, 0, 1, 1]),
        task_ids=["0", "1", "2", "3"],
        within_vectors=torch.ones((4, 1)),
        cross_vectors=AXES[:2],
        record_index=torch.tensor([0, 0, 1, 1]),
    )
    rule = Bots(graph, 8)
    rule.learn(0, groups({0: binary(8), 2: binary(0)}))
    # Reference 1/2. Within, of weight W = 2^(-1/8): task 1 hears 1 of task 0, (W + 2/2) / (W + 2), and task 3 hears 0, 1 / (W + 2). Nobody
    # else hears anything; across environments nothing is alike: 1/2. The prior is half of both.
    w = 2 ** (-1 / 8)
    close(rule.prior(1), [0.5, ((w + 1) / (w + 2) + 0.5) / 2, 0.5, (1 / (w + 2) + 0.5) / 2])


def test_a_shuffled_pool_shows_the_prompts_of_other_tasks():
    environment = Environment(env_id="e")
    prompts = ["book the red room", "cancel my order", "find a green lamp", "pay the bill", "book a green room"]
    tasks = tuple(Task(env_id="e", task_id=str(row), prompt=prompt) for row, prompt in enumerate(prompts))
    pool = Pool(environments=(environment,), tasks=tasks, source="five tasks")
    shuffled = shuffle(pool, seed=1)
    shown = shown_rows(shuffled)
    assert shown.tolist() != [0, 1, 2, 3, 4]
    plain, seen = (shown_prompts(each) for each in (pool, shuffled))
    torch.testing.assert_close(seen @ seen.mT, (plain @ plain.mT)[shown][:, shown])
