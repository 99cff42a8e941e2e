"""Identities, the environment index, the content hash."""

import dataclasses
import time
from pathlib import Path

import pytest

from envsched_gnn.errors import PoolError
from envsched_gnn.pool import Pool, read_manifest, write_manifest
from envsched_gnn.pool.show import summary, table, warnings
from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier


def _pool(*tasks: Task) -> Pool:
    environments = (Environment(env_id="a", reward_range=(-1.0, 1.0)), Environment(env_id="empty"), Environment(env_id="b"))
    return Pool(environments=environments, tasks=tasks or (_task("b", "1"), _task("a", "1"), _task("b", "2", reward_range=(0.0, 5.0))))


def _task(env_id: str, task_id: str, **fields: object) -> Task:
    return Task(env_id=env_id, task_id=task_id, prompt="p", **fields)


def test_rows_and_identities() -> None:
    pool = _pool()
    assert pool.keys == ("b/1", "a/1", "b/2")
    assert pool.index_of == {"b/1": 0, "a/1": 1, "b/2": 2}
    assert pool.env_index.tolist() == [2, 0, 2]
    assert pool.reward_ranges == ((0.0, 1.0), (-1.0, 1.0), (0.0, 5.0))
    assert pool.empty_environments == ("empty",)


def test_inconsistent_pools_are_refused() -> None:
    with pytest.raises(PoolError, match="task 'a/1' stands more than once"):
        _pool(_task("a", "1"), _task("a", "1"))
    with pytest.raises(PoolError, match="task '1' belongs to environment 'z', which is not in the pool"):
        _pool(_task("z", "1"))
    with pytest.raises(PoolError, match="no tasks"):
        Pool(environments=(Environment(env_id="a"),), tasks=())
    with pytest.raises(PoolError, match="environment 'a' stands more than once"):
        Pool(environments=(Environment(env_id="a"), Environment(env_id="a")), tasks=(_task("a", "1"),))


def test_hash_is_of_the_content_only() -> None:
    pool = _pool()
    assert len(pool.content_hash) == 64
    assert dataclasses.replace(pool, source="elsewhere").content_hash == pool.content_hash
    assert dataclasses.replace(pool, tasks=pool.tasks[::-1]).content_hash != pool.content_hash
    for changed in (
        _task("b", "1", info={"held_out": True}),
        _task("b", "1", initial_state={"x": 1}),
        _task("b", "1", verifier=Verifier(checks=(Check(code="c"),))),
        _task("b", "1", ground_truth=[]),
    ):
        assert dataclasses.replace(pool, tasks=(changed, *pool.tasks[1:])).content_hash != pool.content_hash


def test_hash_takes_whole_numbers_for_what_they_are(tmp_path: Path) -> None:
    whole = Pool(
        environments=(Environment(env_id="a", reward_range=(0, 1), timeouts=Timeouts(setup=1)),),
        tasks=(_task("a", "1", reward_range=(0, 2), verifier=Verifier(checks=(Check(weight=2),)), info={"n": 1}),),
    )
    write_manifest(whole, tmp_path)
    assert read_manifest(tmp_path).content_hash == whole.content_hash


def test_hash_names_the_record_that_is_no_json() -> None:
    with pytest.raises(PoolError, match=r"a/1: holds what JSON cannot \(set \{1\}\)"):
        _ = _pool(_task("a", "1", info={"x": {1}})).content_hash


def test_hash_of_10_000_tasks_takes_under_2_seconds() -> None:
    check = Check(description="d" * 80, code="def check_func(final_state):\n    return True\n" * 4)
    state = {f"entity_{i}": {str(k): {"name": "n" * 10, "status": "open"} for k in range(10)} for i in range(4)}
    tasks = tuple(_task("a", str(i), initial_state=state, verifier=Verifier(checks=(check,) * 8)) for i in range(10_000))
    pool = Pool(environments=(Environment(env_id="a"),), tasks=tasks)
    started = time.process_time()
    assert len(pool.content_hash) == 64
    assert time.process_time() - started < 2


def test_summary_of_a_small_pool() -> None:
    checked = _task("a", "1", verifier=Verifier(checks=(Check(),) * 3), ground_truth=[], info={"held_out": True})
    figures = summary(_pool(checked, Task(env_id="b", task_id="2", prompt=" "), _task("b", "3", verifier=Verifier(kind="own"))))
    assert {key: figures[key] for key in ("environments", "tasks", "held_out", "checks", "with_ground_truth", "tools")} == {
        "environments": 3,
        "tasks": 3,
        "held_out": 1,
        "checks": 3,
        "with_ground_truth": 1,
        "tools": 0,
    }
    assert figures["tasks_per_environment"] == {"min": 0, "median": 1, "max": 2}
    assert figures["reward_ranges"] == [[-1.0, 1.0], [0.0, 1.0]]
    assert warnings(figures) == [
        "1 environments have no tasks and are never chosen: empty.",
        "1 tasks have no checks and cannot be scored: b/2.",
        "1 tasks have an empty prompt: b/2.",
    ]
    assert dict(table(figures))["reward ranges"] == "[-1, 1], [0, 1]"
    assert dict(table(figures))["environments"] == "3 (3 python_class); 1 without tasks"
