"""Diagnose: structure that is there is found, structure that is not there is not, and little data is said to be little."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import binom

from envsched_gnn.errors import HistoryError
from envsched_gnn.eval.diagnose import words
from envsched_gnn.eval.diagnose.diagnose import diagnose
from envsched_gnn.eval.diagnose.permutation import (
    against_chance,
    exchanged,
    exchanged_inside,
    flipped,
    holm,
    intraclass_correlation,
    less_environment,
    neighbour_correlation,
)
from envsched_gnn.eval.diagnose.similarity import neighbourhood
from envsched_gnn.graph.build import assemble_graph
from tests.eval.ledgers import recorded_of

DATA_SETS = 200
PLAUSIBLE = int(binom.ppf(0.999, DATA_SETS, 0.05))
"""Of 200 tests of a true null at p = 0.05, so many reject with a chance of 0.999 at most."""


# ---- statistics in numbers ----


def test_neighbour_correlation_in_numbers() -> None:
    """Residuals -2, -1, 3; neighbours 1, 0, 1; means of the others 1, 0.5, -1.5: beyond them -2, -2.5, 0.5."""
    weights = sparse.csr_matrix(np.array([[0, 1, 0], [1, 0, 0], [0, 1, 0]], dtype=float))
    found = neighbour_correlation("within", weights, np.zeros(3, dtype=int), np.array([[-2.0], [-1.0], [3.0]]))
    assert found.tolist() == pytest.approx([8 / math.sqrt(14 * 31 / 6)])


def test_across_environments_the_mean_is_that_of_the_others() -> None:
    """Labels 1, -1 | 2, -2, task 0 -> 2, 1 -> 3, 2 -> 0, 3 has none: means of the other environment are 0, so beyond is 2, -2, 1."""
    weights = sparse.csr_matrix(np.array([[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=float))
    found = neighbour_correlation("cross", weights, np.array([0, 0, 1, 1]), np.array([[1.0], [-1.0], [2.0], [-2.0]]))
    own, beyond = np.array([1.0, -1.0, 2.0]), np.array([2.0, -2.0, 1.0])
    assert found.tolist() == pytest.approx([np.corrcoef(own, beyond)[0, 1]])


def test_intraclass_correlation_in_numbers() -> None:
    """1, 3 | 5, 7: B = 16, W = 2, n_0 = 2, so (16 - 2) / (16 + 2)."""
    assert intraclass_correlation(np.array([0, 0, 1, 1]), np.array([[1.0], [3.0], [5.0], [7.0]])).tolist() == pytest.approx([14 / 18])


def test_holm_in_numbers() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.5, 0.9])).tolist() == [1.0, 1.0]


def test_p_counts_the_labels_as_they_are_among_the_draws() -> None:
    found = against_chance(lambda y: y[0], np.array([1.0]), iter([np.array([[0.0, 2.0]]), np.array([[1.0]])]))
    assert (found.effect, found.chance, found.p) == (1.0, 1.0, 0.75)
    assert found.detectable == pytest.approx(2.487 * math.sqrt(2 / 3))
    assert against_chance(lambda y: y[0], np.array([1.0]), iter([np.zeros((1, 99))])).p == 0.01


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 5))
def test_what_each_draw_keeps(env_list: list[int], seed: int) -> None:
    env = np.unique(env_list, return_inverse=True)[1]
    labels = np.arange(len(env)) * 1.5
    inside, signs = (np.hstack(list(draw(labels, env, 130, seed))) for draw in (exchanged_inside, flipped))
    assert inside.shape == signs.shape == (len(env), 130)
    centred = labels - labels.mean()
    assert (np.abs(signs) == np.abs(centred)[:, None]).all()
    for e in np.unique(env):
        assert (np.sort(inside[env == e], axis=0) == labels[env == e][:, None]).all()
        differs = (env == e) & (centred != 0)
        assert len(np.unique(signs[differs] * centred[differs][:, None] > 0, axis=0)) <= 1


def test_ties_go_to_random_tasks_and_the_nearest_are_kept() -> None:
    env = np.repeat(np.arange(3), 3)
    similarity = np.full((9, 9), 0.5)
    similarity[0, 8] = similarity[8, 0] = 0.9
    near = neighbourhood("cross", lambda r, c: similarity[np.ix_(r, c)], env, np.zeros((9, 1)), 2, np.array([0, 1, 2, 3, 4, 9, 5, 6, 7]))
    assert near.weights[[0]].indices.tolist() == [8, 5] or sorted(near.weights[[0]].indices.tolist()) == [5, 8]
    assert near.weights[[0]].toarray()[0, [5, 8]].tolist() == pytest.approx([0.5 / 1.4, 0.9 / 1.4], abs=1e-6)
    assert np.asarray(near.weights.sum(1)).ravel().tolist() == pytest.approx([1.0] * 9)
    assert math.isnan(near.mantel[0])


# ---- made pools ----


def made(seed: int, environments: int, tasks: int, records: int = 6):
    """A graph whose within clusters (3 an environment, equal in size) and records are drawn independently of each other."""
    rng = np.random.default_rng(seed)
    env = np.repeat(np.arange(environments), tasks)
    cluster = np.concatenate([rng.permutation(np.arange(tasks) % 3) for _ in range(environments)])
    record = rng.integers(records, size=len(env))
    graph = assemble_graph(
        env_ids=[f"e{e}" for e in range(environments)],
        env_index=torch.from_numpy(env),
        task_ids=[f"t{row}" for row in range(len(env))],
        within_vectors=torch.from_numpy(np.eye(3)[cluster]),
        cross_vectors=torch.eye(records),
        record_index=torch.from_numpy(record),
        within_k=2,
        cross_k=4,
    )
    return rng, graph, env, cluster, record


def centred_effects(rng: np.random.Generator, environments: int) -> np.ndarray:
    """Of three clusters in each environment, with mean 0: an environment as a whole does not differ."""
    return np.array([rng.permutation([-1.0, 0.0, 1.0]) for _ in range(environments)])


def structured(kind: str, seed: int) -> dict[str, float]:
    """p of each relation where variance has structure of one kind alone, as large as its noise."""
    rng, graph, env, cluster, record = made(seed, 20, 12)
    match kind:
        case "within":
            signal = centred_effects(rng, 20)[env, cluster]
        case "cross":
            signal = np.array([-1.5, -0.9, -0.3, 0.3, 0.9, 1.5])[record]
        case "environment":
            signal = rng.normal(size=20)[env]
    variance = np.clip(0.1 + 0.03 * (signal + rng.normal(size=len(env))), 0, 0.25)
    rows = diagnose(recorded_of(graph, np.arange(len(env)), variance), permutations=199, seed=seed)["relations"]
    return {row["relation"]: row["p"] for row in rows if row["target"] == "variance"}


@pytest.mark.parametrize("kind", ["within", "cross", "environment"])
def test_structure_in_one_relation_is_found_there_and_not_elsewhere(kind: str) -> None:
    found = [structured(kind, seed) for seed in range(8)]
    assert [p[kind] for p in found] == [1 / 200] * 8
    others = [value for p in found for relation, value in p.items() if relation != kind]
    assert sum(value <= 0.05 for value in others) <= binom.ppf(0.999, 16, 0.05)


def null_p_values(seed: int, environments: int, tasks: int, nested: bool) -> dict[str, float]:
    """p of each test of labels without structure, skewed as variances are; `nested`: clusters within environments that share records."""
    rng, graph, env, cluster, _ = made(seed, environments, tasks, records=10)
    labels = np.where(rng.random(len(env)) < 0.6, 0.0, rng.exponential(0.05, len(env)))
    if nested:
        graph["task"].record_index = torch.from_numpy(3 * (env % 3) + cluster)
        labels = labels + rng.exponential(0.1, (environments, 3))[env, cluster]
    y, p = labels, {}
    similarity = {"within": np.eye(3)[cluster], "cross": np.eye(10)[graph["task"].record_index.numpy()]}
    for relation, vectors in similarity.items():
        near = neighbourhood(
            relation, lambda r, c, v=vectors: v[r] @ v[c].T, env, y[:, None], 2 if relation == "within" else 4, rng.permutation(len(env))
        )
        used = less_environment(y, env) if relation == "within" else y - y.mean()
        draws = exchanged_inside(used, env, 99, seed) if relation == "within" else flipped(used, env, 99, seed)

        def statistic(labels: np.ndarray, relation=relation, weights=near.weights) -> np.ndarray:
            return neighbour_correlation(relation, weights, env, labels)

        p[relation] = against_chance(statistic, used, draws).p
        if relation == "cross":
            p["cross, labels exchanged freely"] = against_chance(statistic, used, exchanged(used, 99, seed)).p
    p["environment"] = against_chance(lambda labels: intraclass_correlation(env, labels), y, exchanged(y, 99, seed)).p
    return p


def test_without_structure_each_test_rejects_as_often_as_it_says() -> None:
    found = [null_p_values(seed, 10, 6, nested=False) for seed in range(DATA_SETS)]
    rejected = {name: sum(p[name] <= 0.05 for p in found) for name in found[0]}
    assert all(0 < rejected[name] <= PLAUSIBLE for name in ("within", "cross", "environment")), rejected


def test_alike_tasks_inside_environments_are_no_cross_relation() -> None:
    """Tasks of a cluster share label and record; other environments have these records, too, with labels of their own.

    Exchanging labels freely takes each task for a witness of its own, and finds a cross relation far too often: the reason for the signs.
    """
    found = [null_p_values(seed, 12, 24, nested=True) for seed in range(DATA_SETS // 2)]
    rejected = {name: sum(p[name] <= 0.05 for p in found) for name in found[0]}
    plausible = binom.ppf(0.999, DATA_SETS // 2, 0.05)
    assert rejected["cross"] <= plausible, rejected
    assert rejected["cross, labels exchanged freely"] > plausible, rejected


# ---- little data, no data ----


def test_few_environments_and_small_ones_say_what_is_needed() -> None:
    rng, graph, *_ = made(0, 5, 12)
    result = diagnose(recorded_of(graph, np.arange(60), rng.random(60) * 0.25), permutations=99)
    cross = next(row for row in result["relations"] if row["relation"] == "cross")
    assert (cross["verdict"], cross["p"]) == ("too few observations", None)
    assert cross["reason"] == "needs observed tasks in at least 8 environments; there are 5"
    rng, graph, *_ = made(0, 15, 12)
    two_each = np.flatnonzero(np.arange(180) % 12 < 2)
    result = diagnose(recorded_of(graph, two_each, rng.random(30) * 0.25), permutations=99)
    within = next(row for row in result["relations"] if row["relation"] == "within")
    assert within["reason"] == "needs environments with at least 3 observed tasks; the largest has 2"
    assert result["verdicts"]["within"] == "too few observations"
    assert "within: too few observations to tell" in words.conclusions(result)[0]


def test_a_weak_test_says_how_many_tasks_it_takes() -> None:
    rng, graph, *_ = made(4, 8, 3)
    row = diagnose(recorded_of(graph, np.arange(24), rng.random(24) * 0.25), permutations=99)["relations"][-2]
    assert row["relation"] == "environment"
    assert row["detectable"] > 0.3
    assert row["verdict"] == "too few observations"
    assert (
        row["reason"]
        == f"needs about {math.ceil(24 * (row['detectable'] / 0.3) ** 2)} such tasks to see a correlation of 0.3; there are 24"
    )


def test_no_variance_anywhere_is_said() -> None:
    _, graph, *_ = made(0, 10, 6)
    result = diagnose(recorded_of(graph, np.arange(60), np.zeros(60)), permutations=99)
    assert {row["verdict"] for row in result["relations"]} == {"nothing to explain"}
    assert {row["p"] for row in result["relations"]} == {None}
    assert words.head(result)[-1].startswith("no two tasks differ: every group has the same variance.")


def test_too_few_tasks_at_all() -> None:
    _, graph, *_ = made(0, 10, 6)
    with pytest.raises(HistoryError, match="19 observed tasks; expected at least 20"):
        diagnose(recorded_of(graph, np.arange(19), np.zeros(19)), permutations=99)


def test_noise_names_the_setting() -> None:
    rng, graph, *_ = made(1, 20, 12)
    result = diagnose(recorded_of(graph, np.arange(240), rng.random(240) * 0.25), permutations=99)
    assert result["verdicts"] == {"within": "no evidence", "cross": "no evidence", "environment": "no evidence"}
    assert "run.policy = 'envsched'" in words.conclusions(result)[1]
    assert "graph.within_neighbors = 0" in words.conclusions(result)[0]
    assert "graph.cross_neighbors = 0" in words.conclusions(result)[1]
    assert next(words.cells(row)[-1] for row in result["relations"]) == "no evidence"


def test_how_much_there_is_to_save() -> None:
    _, graph, *_ = made(0, 10, 6)
    variance = [0.25] * 15 + [0.0] * 45
    result = diagnose(recorded_of(graph, np.arange(60), variance), permutations=99)
    assert result["wasted"] == 0.75
    assert "without variance: 75% of the groups: what a scheduler could spend better, at most" in words.head(result)
    scheduled = diagnose(recorded_of(graph, np.arange(60), variance, uniform=False), permutations=99)
    assert "without variance: 75% of the groups" in words.head(scheduled)
