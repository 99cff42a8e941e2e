"""The scripted policy: deterministic, imitates references, learns only from groups with differences."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsched_gnn.errors import CheckpointError, PoolError
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Rollout, RolloutGroup, Task
from envsched_gnn.train.policies.references import gold
from envsched_gnn.train.policies.scripted import ScriptedPolicy, corrupt, kind_of, read_only_calls


def tool(name: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties, "required": list(types)}}}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


GOLD = [call("get_user", user_id="U1"), call("update_user", user_id="U1", age=3, active=True), call("link_user", ids=["U1", "U2"])]
OPERATIONS = ({"name": "get_user", "type": "query"}, {"name": "find_all", "type": "query"}, {"name": "update_user", "type": "state_change"})
SHOP = Environment(
    env_id="shop",
    tools=(tool("get_user", user_id="string"), tool("find_all", limit="integer"), tool("update_user", user_id="string")),
    operations=OPERATIONS,
)
BANK = Environment(env_id="bank", tools=SHOP.tools, operations=OPERATIONS)


def pool() -> Pool:
    tasks = [
        Task(env_id="shop", task_id="a", prompt="Change U1.", ground_truth=GOLD),
        Task(env_id="shop", task_id="b", prompt="Look at user U7 please.", ground_truth=None),
        Task(env_id="bank", task_id="c", prompt="Change.", ground_truth=GOLD[:1]),
        Task(env_id="bank", task_id="d", prompt="Pay.", ground_truth=[call("pay_bill", n=1)]),
    ]
    return Pool(environments=(SHOP, BANK), tasks=tuple(tasks))


def group(key: str, rewards: list[float | None], step: int = 0) -> RolloutGroup:
    env_id, task_id = key.split("/")
    rollouts = tuple(Rollout(reward=r, status="ok" if r is not None else "crashed") for r in rewards)
    return RolloutGroup(group_id=f"{step}:{key}", env_id=env_id, task_id=task_id, step=step, rollouts=rollouts)


def test_full_skill_replays_the_reference_and_none_never_makes_a_right_call() -> None:
    task = pool().tasks[0]
    assert ScriptedPolicy(pool(), skill_start=1.0).act(task, "0:shop/a", 0) == [GOLD]
    for k in range(50):
        (calls,) = ScriptedPolicy(pool(), skill_start=0.0).act(task, "0:shop/a", k)
        assert all(made not in GOLD for made in calls)


def test_episodes_depend_on_seed_group_and_rollout_only() -> None:
    task = pool().tasks[0]
    first, again = ScriptedPolicy(pool(), seed=3), ScriptedPolicy(pool(), seed=3)
    wanted = [first.act(task, f"{step}:shop/a", k) for step in range(5) for k in range(8)]
    shuffled = {(step, k): again.act(task, f"{step}:shop/a", k) for k in reversed(range(8)) for step in reversed(range(5))}
    assert [shuffled[step, k] for step in range(5) for k in range(8)] == wanted
    assert [ScriptedPolicy(pool(), seed=4).act(task, f"{step}:shop/a", k) for step in range(5) for k in range(8)] != wanted
    assert len({json.dumps(turns) for turns in wanted}) > 5


def test_without_a_reference_it_reads_and_stops() -> None:
    policy, task = ScriptedPolicy(pool()), pool().tasks[1]
    episodes = [policy.act(task, f"{step}:shop/b", 0) for step in range(20)]
    calls = [made for turns in episodes for turn in turns for made in turn]
    assert {made["name"] for made in calls} == {"get_user", "find_all"}
    assert {len(turns[0]) for turns in episodes} == {1, 2}
    assert call("get_user", user_id="U7") in calls
    assert call("find_all", limit=1) in calls


def test_reading_tools_are_known_by_their_first_word_where_operations_are_not_declared() -> None:
    bare = Environment(env_id="e", tools=(tool("get_x"), tool("deleteAll"), tool("set_x")))
    calls = read_only_calls(bare, Task(env_id="e", task_id="t", prompt=""), random.Random(0))
    assert calls == [call("get_x")]
    assert read_only_calls(Environment(env_id="e"), Task(env_id="e", task_id="t", prompt=""), random.Random(0)) == []


def test_skill_at_the_start_with_its_difficulties() -> None:
    policy, tasks = ScriptedPolicy(pool(), seed=0, skill_start=0.35, skill_gain=0.1), pool().tasks
    assert policy.skill(tasks[0], "get_user") == pytest.approx(0.8582757702768058, abs=1e-12)
    assert policy.skill(tasks[0], "getUser") == policy.skill(tasks[0], "get_user")
    assert policy.skill(tasks[0], "update_user") != policy.skill(tasks[0], "get_user")


def test_practice_comes_from_groups_with_differences_and_is_shared_by_environment_and_kind_of_tool() -> None:
    policy, (a, _, c, d) = ScriptedPolicy(pool(), skill_gain=0.3), pool().tasks
    logits = {name: _logit(policy.skill(task, what)) for name, task, what in _probes(a, c, d)}
    policy.learn([group("shop/a", [0.5, 0.5, 0.5]), group("shop/b", [0.0, 1.0]), group("bank/d", [None, 1.0])])
    assert {name: _logit(policy.skill(task, what)) for name, task, what in _probes(a, c, d)} == logits
    assert policy.version == 1
    policy.learn([group("shop/a", [0.5, None, 0.25])])
    gained = {name: _logit(policy.skill(task, what)) - logits[name] for name, task, what in _probes(a, c, d)}
    assert gained == pytest.approx({"own": 0.3 * (1 + 1 / 3), "kind": 0.3 / 3, "environment": 0.3, "neither": 0.0}, abs=1e-9)


def test_the_order_of_groups_does_not_matter() -> None:
    groups = [group("shop/a", [0.0, 1.0], step) for step in range(7)] + [group("bank/c", [0.0, 1.0], step) for step in range(5)]
    one, other = ScriptedPolicy(pool()), ScriptedPolicy(pool())
    one.learn(groups)
    other.learn(groups[::-1])
    assert one.state_dict() == other.state_dict()


def test_the_state_survives_json_exactly() -> None:
    policy, fresh = ScriptedPolicy(pool()), ScriptedPolicy(pool())
    for step in range(3):
        policy.learn([group("shop/a", [0.0, 1.0], step)])
    state = policy.state_dict()
    assert state == {"version": 3, "environments": {"shop": 3}, "tools": {"get": 1.0, "link": 1.0, "update": 1.0}}
    fresh.load_state_dict(json.loads(json.dumps(state)))
    assert fresh.state_dict() == state
    assert fresh.act(pool().tasks[0], "9:shop/a", 2) == policy.act(pool().tasks[0], "9:shop/a", 2)
    with pytest.raises(CheckpointError, match="expected version, environments and tools"):
        fresh.load_state_dict({"version": 1})


def test_equal_graded_rewards_with_float_noise_teach_nothing() -> None:
    policy = ScriptedPolicy(pool())
    policy.learn([group("shop/a", [0.1 + 0.2, 0.3, 0.3])])
    assert policy.state_dict()["environments"] == {}


@given(
    value=st.one_of(
        st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=5), st.lists(st.integers(), max_size=3), st.none()
    ),
    words=st.lists(st.text(max_size=3), max_size=3),
    seed=st.integers(0, 99),
)
def test_a_corrupted_call_differs_in_one_argument(value: Any, words: list[str], seed: int) -> None:
    made = corrupt(call("f", a=value), words, random.Random(seed))
    assert made["name"] == "f"
    assert list(made["arguments"]) == ["a"]
    assert made["arguments"]["a"] != value or type(made["arguments"]["a"]) is not type(value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("get_user", "get"), ("updateUser", "update"), ("mkdir", "mkdir"), ("_add", "add"), ("", ""), ("7", "7")],
)
def test_kind_of_tool(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_malformed_ground_truth_names_the_task() -> None:
    bad = Pool(environments=(SHOP,), tasks=(Task(env_id="shop", task_id="x", prompt="", ground_truth=["get_user()"]),))
    with pytest.raises(PoolError, match=r"shop/x: ground_truth .* expected a list of"):
        ScriptedPolicy(bad)


def _probes(a: Task, c: Task, d: Task) -> list[tuple[str, Task, str]]:
    return [("own", a, "get_user"), ("kind", c, "get_user"), ("environment", a, "pay_bill"), ("neither", d, "pay_bill")]


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


@pytest.mark.parametrize("answer", ["42", 42, {"total": 3}, "", [], None])
def test_an_answer_is_no_trajectory(answer: object) -> None:
    assert gold(SHOP, Task(env_id="shop", task_id="x", prompt="", ground_truth=answer)) is None
