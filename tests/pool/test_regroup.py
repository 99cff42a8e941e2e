"""Environments split by a value that their tasks carry."""

from dataclasses import replace

import pytest

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.errors import PoolError
from envsched_gnn.pool import Pool, load_pool
from envsched_gnn.pool.regroup import regroup
from envsched_gnn.records import Environment, Task


def _task(task_id: str, role: object, env_id: str = "desk") -> Task:
    return Task(env_id=env_id, task_id=task_id, prompt=task_id, info={"agent": {"role": role}})


POOL = Pool(
    environments=(Environment(env_id="desk", name="Desk", max_turns=7), Environment(env_id="idle"), Environment(env_id="shop")),
    tasks=(_task("a", "clerk"), _task("b", "guest"), _task("c", "clerk", "shop"), _task("d", "clerk")),
    source="here",
)


def test_every_value_becomes_an_environment_and_the_order_of_tasks_stays() -> None:
    pool = regroup(POOL, "info.agent.role")
    assert pool.keys == ("desk.clerk/a", "desk.guest/b", "shop.clerk/c", "desk.clerk/d")
    assert [environment.env_id for environment in pool.environments] == ["desk.clerk", "desk.guest", "idle", "shop.clerk"]
    assert pool.environment_of["desk.guest"] == replace(POOL.environments[0], env_id="desk.guest")
    assert (pool.env_index.tolist(), pool.source) == ([0, 1, 3, 0], "here")
    assert pool.content_hash != POOL.content_hash


def test_no_rule_is_no_change() -> None:
    assert regroup(POOL, "") is POOL


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("info.scenario", "task 'desk/a', info.scenario: nothing; expected a text, whole number or boolean. Add it to every task"),
        ("info.agent", "task 'desk/a', info.agent: {'role': 'clerk'}; expected"),
        ("info.agent.role.name", "task 'desk/a', info.agent.role.name: nothing"),
        ("prompt.a", "pool.environment_rule: 'prompt.a'; expected a path below info or initial_state. For example info.scenario."),
        ("info", "expected a path below info"),
        ("info..role", "expected a path below info"),
    ],
)
def test_a_rule_that_does_not_fit_names_the_first_task(rule: str, said: str) -> None:
    with pytest.raises(PoolError) as error:
        regroup(POOL, rule)
    assert said in str(error.value)


def test_the_first_task_that_lacks_the_value_is_named() -> None:
    tasks = (_task("a", "clerk"), _task("b", 1.5))
    with pytest.raises(PoolError, match=r"task 'desk/b', info\.agent\.role: 1\.5"):
        regroup(Pool(environments=(Environment(env_id="desk"),), tasks=tasks), "info.agent.role")


def test_two_names_that_become_one_are_refused() -> None:
    environments = (Environment(env_id="a"), Environment(env_id="a.b"))
    tasks = tuple(Task(env_id=e, task_id=role, prompt="", info={"role": role}) for e, role in (("a", "b.c"), ("a.b", "c")))
    with pytest.raises(PoolError, match=r"environment 'a\.b\.c' stands more than once"):
        regroup(Pool(environments=environments, tasks=tasks), "info.role")


def test_the_setting_reaches_the_pool() -> None:
    world = ToolWorldConfig(environments=2, tasks=6, held_out_tasks=0.5)
    pool = load_pool(PoolConfig(toolworld=world, environment_rule="info.held_out"))
    whole = load_pool(PoolConfig(toolworld=world))
    assert len(pool.environments) == 4
    assert {environment.env_id for environment in pool.environments} == {
        f"{environment.env_id}.{value}" for environment in whole.environments for value in (True, False)
    }
    assert [task.env_id.endswith(".True") for task in pool.tasks] == [task.held_out for task in whole.tasks]
