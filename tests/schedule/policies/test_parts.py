"""Draws, orders, pooled groups, prompt vectors and their neighbours."""

import math

import numpy as np
import pytest
import torch

from envsched_gnn.schedule import Uniform
from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Report, groups_of, mean_deviation, num_trained
from envsched_gnn.schedule.policies.knn import clusters, mutual_graph, nearest, observed_neighbors
from envsched_gnn.schedule.policies.prompts import prompt_embedding, unit
from tests.schedule.policies.hand import close, identity_of
from tests.schedule.small import graph_of, groups


def report(row, rewards, *, step=0, use="train"):
    r = np.array(rewards, dtype=float)
    deviation = mean_deviation(rewards, 0.0, 1.0)
    return Report(row, step, use, len(r), len(r), float(r.mean()), float(r.var()), deviation)


def test_draws_are_uniform_and_a_function_of_identity():
    identity = identity_of(torch.arange(20_000))
    u = chance.draws(identity, 3, 5, chance.SKIP)
    assert 0 < float(u.min()) < float(u.max()) < 1
    # standard error of the mean: 1 / sqrt(12 * 20000) = 0.002; of the share below a tenth: 0.0021
    assert abs(float(u.mean()) - 0.5) < 0.01
    assert abs(float((u < 0.1).double().mean()) - 0.1) < 0.01
    assert torch.equal(chance.draws(identity.flip(0), 3, 5, chance.SKIP), u.flip(0))
    for other in ((4, 5, chance.SKIP), (3, 6, chance.SKIP), (3, 5, chance.GUMBEL)):
        correlation = np.corrcoef(u.numpy(), chance.draws(identity, *other).numpy())[0, 1]
        assert abs(correlation) < 0.03


def test_gumbel_and_beta_by_hand():
    close(chance.gumbel(torch.tensor([math.exp(-1), math.exp(-math.e)], dtype=torch.float64)), [0, -1])
    one, two, u = (torch.tensor([x], dtype=torch.float64) for x in (1.0, 2.0, 0.25))
    close(chance.beta(one, one, u), [0.25])  # uniform
    close(chance.beta(two, one, u), [0.5])  # distribution function x^2


def test_ranked_rounds_scores_and_lets_the_key_decide():
    score = torch.tensor([0.5, 0.5 + 1e-12, 1.0, -1.0])
    for count in range(6):
        assert chance.ranked(score, torch.tensor([5, 4, 0, 9]), count).tolist() == [2, 0, 1, 3][:count]


def test_epochs_are_those_of_uniform():
    graph = graph_of([0] * 7 + [1] * 6)
    uniform = Uniform(None, graph, batch_size=5, seed=11)
    visits, identity = torch.zeros(13, dtype=torch.int64), graph["task"].identity
    for step in range(8):
        selection = uniform.select(step)
        uniform.observe(groups(selection))
        rows = chance.in_epochs(visits, identity, 11, 5)
        assert rows.tolist() == [pick.task_index for pick in selection.picks]
        visits[rows] += 1


def test_groups_of_a_task_are_pooled():
    parts = [report(4, [0.0, 1.0], use="pilot"), report(2, [0.3] * 4), report(4, [1.0] * 6)]
    pooled = groups_of([*parts, Report(7, 0, "train", 8, 1, 0.5, 0.0, 0.0)])
    assert pooled.rows.tolist() == [2, 4]
    # task 4: 7 of 8 rewards are 1; task 7 has one reward and is left out
    close(pooled.num_rewards, [4, 8])
    close(pooled.mean, [0.3, 7 / 8])
    close(pooled.variance, [0, 7 / 64])
    assert pooled.mixed.tolist() == [False, True]
    assert len(groups_of([])) == 0


def test_mean_deviation_leaves_out_what_is_masked_and_maps_the_range():
    # [-1, 3]: 0, 1/2, 1: |.| 1/2, 0, 1/2
    assert mean_deviation([-1.0, None, 1.0, 3.0, 99.0, math.nan], -1.0, 3.0) == pytest.approx(1 / 3)
    assert mean_deviation([None], 0.0, 1.0) == 0


def test_which_rollouts_are_trained_on():
    pilot = report(0, [0.0, 1.0], use="pilot")
    assert num_trained(pilot, [], 2) == 0
    assert num_trained(report(0, [0.0] * 6), [pilot, report(1, [0.0, 1.0], use="pilot")], 2) == 8
    assert num_trained(report(0, [0.0] * 6, step=1), [pilot], 2) == 6
    kept = [report(row, [0.0, 1.0], use="filter") for row in range(2)]
    assert num_trained(report(5, [0.0, 1.0], use="filter"), kept[:1], 2) == 2
    assert num_trained(report(5, [0.0, 1.0], use="filter"), kept, 2) == 0
    assert num_trained(report(5, [0.5, 0.5], use="filter"), [], 2) == 0
    assert num_trained(report(5, [0.0, 1.0], use="reference"), [], 2) == 0


def test_prompts_that_share_words_are_near():
    vectors = prompt_embedding(["refund the order of Ann", "refund an order", "book a flight", "???"])
    cosine = vectors @ vectors.T
    assert cosine[0, 1] > 0.1 > 0 == cosine[0, 2]
    close(cosine.diagonal(), [1, 1, 1, 0])


def test_many_prompts_are_reduced_and_the_same_every_time():
    words = [f"w{k}" for k in range(100)]
    prompts = [" ".join(words[(row * 7 + k * 3) % 100] for k in range(6)) for row in range(150)]
    vectors = prompt_embedding(prompts)
    assert vectors.shape == (150, 64)
    assert torch.equal(vectors, prompt_embedding(prompts))


def test_prompts_without_words():
    assert prompt_embedding(["", "?"]).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(("tasks", "k"), [(3, 5), (200, 7), (700, 80)])
def test_nearest_is_exact(tasks, k):
    vectors = unit(torch.randn((tasks, 5), generator=torch.Generator().manual_seed(tasks)))
    index, cosine = nearest(vectors, k)
    full = (vectors @ vectors.T).fill_diagonal_(-2)
    expected = full.topk(min(k, tasks - 1))
    torch.testing.assert_close(cosine.double(), expected.values, rtol=0, atol=1e-6)
    torch.testing.assert_close(full.gather(1, index), expected.values, rtol=0, atol=1e-6)


def test_mutual_neighbours_by_hand():
    # On a line of angles 0, 10, 15, 90 degrees with k = 1: 0 -> 1, 1 -> 2, 2 -> 1, 3 -> 2: only 1 and 2 are mutual.
    angle = torch.deg2rad(torch.tensor([0.0, 10.0, 15.0, 90.0]))
    graph = mutual_graph(torch.stack([angle.cos(), angle.sin()], 1), 1)
    assert graph.nnz == 2
    assert graph[1, 2] == graph[2, 1] == pytest.approx(math.cos(math.radians(5)), abs=1e-6)
    assert mutual_graph(torch.ones((1, 2)), 4).nnz == 0


def test_clusters_do_not_depend_on_the_order_of_tasks():
    vectors = unit(torch.randn((60, 4), generator=torch.Generator().manual_seed(0)))
    identity, order = identity_of(torch.arange(60)), torch.randperm(60, generator=torch.Generator().manual_seed(1))
    label = clusters(vectors, identity, 5)
    assert len(label.unique()) == 5
    assert torch.equal(clusters(vectors[order], identity[order], 5), label[order])


def test_observed_neighbours_leave_out_the_task_itself_and_opposites():
    lists = observed_neighbors(torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]), 2)
    lists.insert(torch.tensor([0, 1]))
    assert [lists.of("cross", row)[0].tolist() for row in range(3)] == [[1], [0], []]
    assert lists.of("cross", 0)[1].tolist() == pytest.approx([0.6], abs=1e-6)
