"""Tasks set aside to teach: which they are, and that nothing else changes."""

from dataclasses import replace

import pytest

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.taught import with_taught
from envsched_gnn.records import Environment, Task
from envsched_gnn.train.evaluation import held_out


def pool_of(*sizes: int) -> Pool:
    environments = tuple(Environment(env_id=f"e{number}") for number in range(len(sizes)))
    tasks = tuple(Task(env_id=f"e{e}", task_id=f"t{t}", prompt="") for e, size in enumerate(sizes) for t in range(size))
    return Pool(environments=environments, tasks=tasks)


def taught(pool: Pool) -> list[str]:
    return [task.key for task in pool.tasks if task.taught]


@pytest.mark.parametrize(("share", "counts"), [(0.4, [4, 2, 0]), (0.1, [1, 0, 0]), (0.99, [10, 5, 1])])
def test_each_environment_gives_its_share(share, counts):
    pool = with_taught(pool_of(10, 5, 1), share)
    assert [sum(key.startswith(f"e{e}/") for key in taught(pool)) for e in range(3)] == counts


def test_which_ones_follows_from_identities_alone():
    pool = pool_of(10, 6)
    names = taught(with_taught(pool, 0.5))
    assert names == ["e0/t1", "e0/t2", "e0/t4", "e0/t7", "e0/t9", "e1/t2", "e1/t4", "e1/t5"]
    shuffled = replace(pool, tasks=pool.tasks[::-1])
    assert sorted(taught(with_taught(shuffled, 0.5))) == sorted(names)
    other = replace(pool, tasks=tuple(replace(task, prompt="other") for task in pool.tasks[:10]))
    assert taught(with_taught(other, 0.5)) == [name for name in names if name.startswith("e0")]
    assert set(taught(with_taught(pool, 0.3))) < set(names)


def test_a_share_of_nothing_changes_nothing():
    pool = pool_of(3)
    assert with_taught(pool, 0.0) is pool


def test_taught_tasks_are_held_out_of_training_and_of_evaluation():
    world = ToolWorldConfig(environments=4, tasks=10, held_out_tasks=0.2, held_out_environments=0.25)
    pool = load_pool(PoolConfig(path="toolworld", taught_share=0.4, toolworld=world))
    assert len(taught(pool)) == 16
    assert all(task.held_out for task in pool.tasks if task.taught)
    chosen = held_out(pool, 1000)
    assert not any(pool.tasks[row].taught for row in (*chosen.tasks, *chosen.environments))
    assert (len(chosen.tasks), len(chosen.environments)) == (4, 6)


def test_the_rest_of_the_pool_stays_as_it_was():
    world = ToolWorldConfig(environments=2, tasks=6)
    plain, marked = (load_pool(PoolConfig(path="toolworld", taught_share=share, toolworld=world)) for share in (0.0, 0.5))
    assert marked.environments == plain.environments
    for before, after in zip(plain.tasks, marked.tasks, strict=True):
        extra = {"taught": True, "held_out": True} if after.taught else {}
        assert after == replace(before, info={**before.info, **extra})
    assert marked.content_hash != plain.content_hash


def test_odd_identities():
    tasks = tuple(Task(env_id="e", task_id=name, prompt="") for name in ("\ud800", "", "é", "a/b"))
    assert len(taught(with_taught(Pool(environments=(Environment(env_id="e"),), tasks=tasks), 0.5))) == 2
