"""The simulated learner's formulas: rewards, growth, structure."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from envsched_gnn.config_simulate import SimulateConfig
from envsched_gnn.errors import CheckpointError
from envsched_gnn.eval.simulate.learner import Learner, deviation
from envsched_gnn.eval.simulate.pool import cross_vectors, graph_of, pool_of
from envsched_gnn.eval.simulate.rewards import distribution, draw, informative_chance
from envsched_gnn.eval.simulate.world import World, make_world
from envsched_gnn.graph.similarity import pair_similarity

SMALL = SimulateConfig(environments=2, tasks=2, patterns=3, impossible=0.0, trivial=0.0, held_out_tasks=0.0, drift=0.0)
WIDE = SimulateConfig(environments=200, tasks=20, impossible=0.0, trivial=0.0)


def test_distribution_of_rewards_by_hand() -> None:
    """p = 1/2, 2 checks, half of the rollouts all or nothing: f(0) = .5 .5 + .5 .25, f(1) = .5 .5, f(2) = f(0)."""
    f = distribution(np.array([0.5, 0.25]), np.array([2, 1]), 0.5)
    assert f.tolist() == [[0.375, 0.25, 0.375], [0.75, 0.25, 0.0]]


def test_chance_of_variance_by_hand() -> None:
    """1 - .375^2 - .25^2 - .375^2; 1 - .75^2 - .25^2; dead tasks never."""
    chance = informative_chance(np.array([0.5, 0.25, 0.0, 1.0]), np.array([2, 1, 8, 3]), 0.5, 2)
    assert chance.tolist() == [0.65625, 0.375, 0.0, 0.0]


@pytest.mark.parametrize(("p", "n", "together"), [(0.3, 3, 0.4), (0.9, 1, 0.5), (0.05, 8, 1.0), (0.6, 5, 0.0)])
def test_draws_have_that_mean_and_that_chance_of_variance(p: float, n: int, together: float) -> None:
    rng, count = np.random.default_rng(0), 4000
    groups = np.array([draw(rng, p, n, together, 4) for _ in range(count)])
    chance = float(informative_chance(np.array([p]), np.array([n]), together, 4)[0])
    found = float((groups.min(1) < groups.max(1)).mean())
    assert found == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / count))
    spread = math.sqrt(p * (1 - p) * (together + (1 - together) / n))
    assert groups.mean() == pytest.approx(p, abs=4 * spread / math.sqrt(4 * count))
    assert set(np.unique(groups * n).round(9)) <= set(range(n + 1))


def test_what_grpo_gets_out_of_a_group_is_the_deviation_of_its_rewards() -> None:
    """The gradient of 1/K sum_k A_k (mean log-probability of a rollout's decisions), by automatic differentiation, at any logit."""
    passed = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 0]], dtype=torch.float64)
    rewards = passed.mean(1)
    advantage = (rewards - rewards.mean()) / rewards.std(correction=0)
    for start in (-2.0, 0.3, 1.5):
        z = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        log_probability = passed * torch.nn.functional.logsigmoid(z) + (1 - passed) * torch.nn.functional.logsigmoid(-z)
        (advantage * log_probability.mean(1)).mean().backward()
        assert float(z.grad) == pytest.approx(deviation(rewards.tolist()), abs=1e-12)


def four_tasks() -> World:
    """Task 1 shares one of two skills and all operations with task 0, task 2 one operation, task 3 nothing."""
    return replace(
        make_world(SMALL),
        skills=np.array([[0, 1], [1, 2], [4, 5], [6, 7]]),
        pattern=np.array([0, 0, 1, 2]),
        operations=np.array([[0, 1, 2], [2, 3, 4], [5, 6, 7]]),
        start=np.array([0.0, math.log(3), -math.log(3), 0.0]),
    )


def test_success_by_hand() -> None:
    world = replace(four_tasks(), dead=np.array([0, 0, 0, 1]))
    assert Learner(world).success() == pytest.approx([0.5, 0.75, 0.25, 1.0], abs=1e-15)
    assert Learner(replace(world, dead=np.array([-1, 0, 0, 1]))).success()[0] == 0.0
    assert Learner(world).live.tolist() == [True, True, True, False]


def test_growth_by_hand() -> None:
    """s = 1/2 of (1, 0): 1 * (.02 + .002 + .1) for the task; .02/2 + .002; .002/3; nothing. Of (1, 0, 0, 0), 2s = sqrt(3)/2."""
    learner = Learner(four_tasks())
    before = learner.logits()
    learner.learn([(0, [1.0, 0.0])])
    growth = np.array([0.122, 0.012, 0.002 / 3, 0.0])
    assert learner.logits() - before == pytest.approx(growth, abs=1e-12)
    learner.learn([(0, [1.0, 0.0, 0.0, 0.0]), (0, [0.5, 0.5])])
    assert learner.logits() - before == pytest.approx(growth * (1 + math.sqrt(3) / 2), abs=1e-12)
    assert learner.version == 2


def test_groups_without_variance_teach_nothing() -> None:
    learner = Learner(four_tasks())
    before = learner.logits()
    learner.learn([(0, [1.0] * 8), (1, [0.0] * 8), (2, [1 / 3] * 7), (3, [0.7])])
    assert np.array_equal(learner.logits(), before)
    assert deviation([0.1 + 0.2] * 3) == 0.0


def test_drift_has_the_deviation_that_it_says_and_moves_what_shares_skills_together() -> None:
    """Independent tasks move by drift sqrt(rounds); the two operations and skills of one task are of half the variance each."""
    learner = Learner(make_world(replace(WIDE, operations=3000, patterns=1000, drift=0.1)), seed=3)
    before = learner.logits()
    for _ in range(25):
        learner.learn([])
    assert float((learner.logits() - before).std()) == pytest.approx(0.5, rel=0.1)
    twins = replace(four_tasks(), config=replace(SMALL, drift=0.1), skills=np.array([[0, 1]] * 4), pattern=np.array([0] * 4))
    learner = Learner(twins)
    learner.learn([])
    moved = learner.logits() - twins.start
    assert abs(moved[0]) > 1e-6
    assert moved == pytest.approx([moved[0]] * 4)


def test_a_state_goes_on_with_the_same_bits_and_fits_its_own_world_only() -> None:
    world = replace(four_tasks(), config=replace(SMALL, drift=0.1))
    one, other = Learner(world, seed=5), Learner(world, seed=5)
    one.learn([(0, [1.0, 0.0])])
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        learner.learn([(2, [0.0, 0.5, 1.0])])
    assert np.array_equal(one.logits(), other.logits())
    with pytest.raises(CheckpointError, match=r"'own': 4\b.*expected a version and .*'own': 6"):
        Learner(make_world(replace(SMALL, tasks=3))).load_state_dict(one.state_dict())


def intraclass(values: np.ndarray, group: np.ndarray) -> float:
    """Share of variance between groups, (between - within) / (between + (n - 1) within) of mean squares; 0 where groups say nothing."""
    size = np.bincount(group)
    mean = np.bincount(group, weights=values) / size
    n = (size.sum() - (size**2).sum() / size.sum()) / (len(size) - 1)
    between = (size * (mean - values.mean()) ** 2).sum() / (len(size) - 1)
    within = ((values - mean[group]) ** 2).sum() / (len(values) - len(size))
    return float((between - within) / (between + (n - 1) * within))


def test_structure_1_has_the_variance_components_that_it_says() -> None:
    """By pattern 0.3; by environment 0.3 * E[common skills] / 2 = 0.15, as two tasks draw two of four skills each."""
    world = make_world(WIDE)
    logits = Learner(world).logits()
    assert intraclass(logits, world.environment) == pytest.approx(0.15, abs=0.06)
    assert intraclass(logits, world.pattern) == pytest.approx(0.3, abs=0.15)
    assert logits.std() == pytest.approx(2.0, abs=0.3)


def test_structure_0_leaves_difficulties_and_removes_what_environment_and_pattern_say() -> None:
    """The intraclass correlation of noise has standard deviation sqrt(2 / (n (n - 1) (groups - 1))): .0051 and .0023 here."""
    with_structure, without = make_world(WIDE), make_world(replace(WIDE, structure=0.0))
    success = Learner(without).success()
    assert np.array_equal(np.sort(success), np.sort(Learner(with_structure).success()))
    assert abs(intraclass(success, without.environment)) < 4 * 0.0051
    assert abs(intraclass(success, without.pattern)) < 4 * 0.0023
    half = make_world(replace(WIDE, structure=0.5))
    assert (half.behaves_as != np.arange(4000)).mean() == pytest.approx(0.5, abs=0.001)


def test_what_is_shown_does_not_depend_on_structure() -> None:
    worlds = [make_world(replace(WIDE, environments=5, structure=structure)) for structure in (1.0, 0.0)]
    graphs = [graph_of(world, pool_of(world)) for world in worlds]
    for name in ("within_similarity", "cross_vectors", "record_index", "held_out"):
        assert torch.equal(graphs[0]["task"][name], graphs[1]["task"][name])
    assert pool_of(worlds[0]) == pool_of(worlds[1])


def test_dead_tasks_cluster_as_much_as_they_are_told_to() -> None:
    config = replace(WIDE, impossible=0.2, trivial=0.1, cluster_pattern=0.0)
    whole = make_world(replace(config, cluster_environment=1.0)).dead.reshape(200, 20)
    assert (whole == whole[:, :1]).all()
    assert [(whole[:, 0] == kind).sum() for kind in (-1, 0, 1)] == [40, 140, 20]
    scattered = make_world(replace(config, cluster_environment=0.0))
    assert abs(intraclass((scattered.dead < 0).astype(float), scattered.environment)) < 4 * 0.0051
    assert (scattered.dead < 0).mean() == pytest.approx(0.2, abs=4 * 0.0064)


def test_similarities_by_hand() -> None:
    """Without noise: .15 + .5 of common skills, at most two; a third for each common operation."""
    world = replace(four_tasks(), config=replace(SMALL, similarity_noise=0.0), skills=np.array([[0, 1], [1, 2], [4, 5], [5, 4]]))
    everyone = torch.arange(4)
    similarity = pair_similarity(graph_of(world, pool_of(world)), everyone, everyone)
    expected = [[0.0, 0.4, 1 / 3, 0.0], [0.4, 0.0, 1 / 3, 0.0], [1 / 3, 1 / 3, 0.0, 0.65], [0.0, 0.0, 0.65, 0.0]]
    assert similarity.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]
    assert np.linalg.norm(cross_vectors(make_world(SMALL)), axis=1) == pytest.approx(1.0)


def test_prompts_name_the_skills_that_are_shown() -> None:
    world = replace(four_tasks(), config=replace(SMALL, similarity_noise=0.0))
    prompts = [task.prompt for task in pool_of(world).tasks]
    assert prompts[0] == "skill0 skill1 operation0 operation1 operation2"
    assert prompts[3] == "skill6 skill7 operation5 operation6 operation7"
    noisy = [task.prompt for task in pool_of(replace(world, config=replace(SMALL, similarity_noise=1.0))).tasks]
    assert noisy != prompts


def test_held_out_tasks_and_environments() -> None:
    held_out = make_world(replace(WIDE, held_out_tasks=0.1, held_out_environments=0.05)).held_out.reshape(200, 20).sum(1)
    assert sorted(set(held_out)) == [2, 20]
    assert (held_out == 20).sum() == 10
    assert make_world(replace(SMALL, held_out_tasks=0.99, held_out_environments=0.99)).held_out.sum() == 3


def test_the_world_follows_from_its_seed() -> None:
    first, again, other = (make_world(replace(SMALL, seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first.start, again.start)
    assert not np.array_equal(first.start, other.start)
    assert make_world(replace(SMALL, reward="binary")).checks.tolist() == [1] * 4
