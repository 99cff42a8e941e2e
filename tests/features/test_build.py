"""Feature vectors of pools, real and hostile."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsched_gnn.features.abstract import AbstractRecord
from envsched_gnn.features.build import Features, build_features, record_vectors
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Environment, Task, Verifier
from tests.features.shop import LIBRARY_ENVIRONMENT, POOL, SHOP_ENVIRONMENT, check, task


def _norms(features: Features) -> np.ndarray:
    return np.sqrt(np.asarray(features.within.multiply(features.within).sum(axis=1)).ravel())


def _pool(*tasks: Task) -> Pool:
    return Pool(environments=(SHOP_ENVIRONMENT, LIBRARY_ENVIRONMENT), tasks=tasks, source="tests")


def test_unique_records_in_order_of_first_appearance() -> None:
    features = build_features(POOL)
    assert features.record_index.tolist() == [0, 0, 1, 0, 2]
    assert [record.ops for record in features.records] == [("search", "list", "update"), ("search", "create"), ("search", "list", "delete")]
    assert features.cross_vectors.shape[0] == 3


def test_vectors_are_unit_and_not_negative() -> None:
    features = build_features(POOL)
    np.testing.assert_allclose(_norms(features), 1.0)
    np.testing.assert_allclose(np.linalg.norm(features.cross_vectors, axis=1), 1.0)
    assert features.within.min() >= 0
    assert features.cross_vectors.min() >= 0


def test_record_vectors_by_hand() -> None:
    """Two records of the same op; gates of one only. Blocks: ops (1 column), gates (1), reward (2)."""
    records = (
        AbstractRecord(ops=("update",), gates=("temporal",), reward=("checks>=1",)),
        AbstractRecord(ops=("update",), reward=("depth>=1",)),
    )
    vectors = record_vectors(records, np.array([0, 1, 1]))
    # three blocks against two, one of them shared: 1 / sqrt(3 * 2)
    assert vectors[0] @ vectors[1] == pytest.approx(0.4082483)
    assert vectors.shape == (2, 4)


def test_idf_counts_tasks_not_records() -> None:
    """ops a = (list, update), b = (list): df counts 1 and 3 of 3 tasks, idf(update) = ln(4/2) + 1, idf(list) = 1."""
    records = (AbstractRecord(ops=("list", "update")), AbstractRecord(ops=("list",)))
    vectors = record_vectors(records, np.array([0, 1, 1]))
    # a = [1, 1.6931472, 1.6931472] / 2.5948978, b = [1, 0, 0]
    assert vectors[0] @ vectors[1] == pytest.approx(0.3853716, abs=1e-6)


def test_given_records_replace_static_ones() -> None:
    record = AbstractRecord(ops=("notify",))
    features = build_features(POOL, records={"shop/ship": record})
    assert features.records[features.record_index[0]] == record
    assert features.config["records"] == "given"


def test_ground_truth_changes_nothing() -> None:
    gold = tuple(dataclasses.replace(some, ground_truth=[{"name": "x", "arguments": {"y": some.task_id}}]) for some in POOL.tasks)
    first, second = build_features(POOL), build_features(_pool(*gold))
    assert (first.within != second.within).nnz == 0
    np.testing.assert_array_equal(first.cross_vectors, second.cross_vectors)


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(5)))
def test_order_of_tasks_only_permutes(order: list[int]) -> None:
    first, second = build_features(POOL), build_features(_pool(*(POOL.tasks[row] for row in order)))
    np.testing.assert_array_equal(second.within.toarray(), first.within.toarray()[order])
    np.testing.assert_array_equal(second.cross_vectors[second.record_index], first.cross_vectors[first.record_index][order])


def test_hostile_texts() -> None:
    deep: list = []
    for _ in range(2000):
        deep = [deep]
    cyclic: dict = {}
    cyclic["self"] = cyclic
    tasks = (
        task("shop", "empty", ""),
        task("shop", "long", "word " * 200_000, check('final_state["orders"]["O1"]["status"] == "shipped"')),
        task("shop", "surrogate", "broken \udc80 text", Check(description="\udcff", code="return \udcff")),
        task("shop", "many", "Check all.", *(check(f'final_state["orders"]["O{n}"]["status"] == "open"') for n in range(445))),
        task("shop", "list", "State is a list.", state=["a", {"b": 1}]),
        task("shop", "text", "State is text.", state="just text"),
        task("shop", "deep", "State is deep.", state={"x": deep}),
        task("shop", "cyclic", "State is cyclic.", state={"x": cyclic}),
        task("shop", "keys", "Keys of mixed types.", state={"x": {"y": {1: 2, "a": 3}}}),
        Task(env_id="library", task_id="bare", prompt="", verifier=Verifier(kind="own")),
    )
    features = build_features(_pool(*tasks))
    norms = _norms(features)
    np.testing.assert_allclose(norms[:-1], 1.0)
    assert norms[-1] == 0.0
    assert np.isfinite(features.within.data).all()
    assert "checks>=256" in features.records[features.record_index[3]].reward


def test_one_task_and_nothing_known() -> None:
    features = build_features(Pool(environments=(Environment(env_id="e"),), tasks=(Task(env_id="e", task_id="t", prompt=""),)))
    assert features.within.shape == (1, 0)
    assert features.cross_vectors.shape == (1, 0)
    assert features.record_index.tolist() == [0]
