"""Execution semantics of a `python_class` environment."""

import json
import sys

import pytest

from envsched_gnn.errors import EnvironmentFailureError
from envsched_gnn.pool.episode import Episode, ToolError, policy_view
from envsched_gnn.records import Check, Environment, Task, Verifier

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass, field

SHARED = []

@dataclass
class Item:
    name: str
    tags: list[str] = field(default_factory=list)

class Shop:
    def __init__(self, config):
        self.items = {}
        self.log = []
        self.__dict__["__hidden__"] = 1

    def rename(self, item_id, name):
        self.items[item_id]["name"] = name
        self.log.append(Item(name))
        SHARED.append(name)
        return {"success": True, "count": len(SHARED)}

    def put(self, item_id, value):
        self.items[item_id] = value
        return self.items

    def fail(self):
        raise KeyError("no such thing")

    def leave(self):
        raise SystemExit(3)

    def eat(self):
        raise MemoryError

    def _secret(self):
        return 1

    def unlisted(self):
        return 1
"""


def _tools(*names: str) -> tuple[dict, ...]:
    return tuple({"type": "function", "function": {"name": name, "description": "", "parameters": {}}} for name in names)


SHOP = Environment(
    env_id="shop",
    name="Shop",
    description="A shop.",
    source=SOURCE,
    rules=("Names are unique.",),
    tools=_tools("rename", "put", "fail", "leave", "eat", "_secret", "items"),
)


def _check(body: str, weight: float = 1.0) -> Check:
    return Check(description="VERIFIER TEXT", code=f"def check_func(final_state):\n    {body}\n", weight=weight)


def _task(*checks: Check, **fields: object) -> Task:
    fields = {"initial_state": {"items": {"a": {"name": "old"}}}, **fields}
    return Task(env_id="shop", task_id="t", prompt="Rename a.", verifier=Verifier(checks=checks), ground_truth=[{"name": "GOLD"}], **fields)


RENAMED = _check("return final_state['items']['a']['name'] == 'new'")
CHANGED = _check("return final_state['items'] != initial_state['items']")


def test_state_is_the_configured_one_without_dunder_names() -> None:
    episode = Episode(SHOP, _task())
    assert episode.state() == {"items": {"a": {"name": "old"}}, "log": []}


def test_every_episode_starts_anew() -> None:
    task = _task(RENAMED)
    first, second = Episode(SHOP, task), Episode(SHOP, task)
    assert first.call("rename", {"item_id": "a", "name": "new"}) == {"success": True, "count": 1}
    assert (first.score(), second.score()) == (1.0, 0.0)
    assert Episode(SHOP, task).call("rename", {"item_id": "a", "name": "x"})["count"] == 1
    assert task.initial_state == {"items": {"a": {"name": "old"}}}
    assert not [name for name in sys.modules if name.startswith("envsched_environment_")]


def test_arguments_are_not_shared_with_the_caller() -> None:
    arguments = {"item_id": "a", "value": {"name": "mine"}}
    episode = Episode(SHOP, _task())
    episode.call("put", arguments)
    episode.call("rename", {"item_id": "a", "name": "theirs"})
    assert arguments == {"item_id": "a", "value": {"name": "mine"}}


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("nothing", {}, "Unknown tool 'nothing'"),
        ("unlisted", {}, "Unknown tool 'unlisted'"),
        ("_secret", {}, "Unknown tool '_secret'"),
        ("items", {}, "Unknown tool 'items'"),
        ("__init__", {"config": {}}, "Unknown tool '__init__'"),
        ("rename", {"item_id": "a"}, "TypeError"),
        ("rename", ["a", "new"], "named values, not list"),
        ("rename", {1: "a"}, "named values"),
        ("rename", None, "named values, not NoneType"),
        ("rename", {"item_id": "zz", "name": "n"}, "KeyError: 'zz'"),
        ("fail", {}, "KeyError: 'no such thing'"),
    ],
)
def test_a_failed_call_is_an_observation(tool: str, arguments: object, said: str) -> None:
    episode = Episode(SHOP, _task(CHANGED))
    with pytest.raises(ToolError, match=said.replace("(", "\\(")):
        episode.call(tool, arguments)
    assert episode.score() == 0.0


@pytest.mark.parametrize(("tool", "error"), [("leave", SystemExit), ("eat", MemoryError)])
def test_what_ends_the_process_is_no_observation(tool: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        Episode(SHOP, _task()).call(tool, {})


@pytest.mark.parametrize(
    "body",
    ["return 1", "return 'yes'", "return None", "return 1 / 0", "return missing", "raise SystemExit", "import nowhere", "return [True]"],
)
def test_a_check_that_raises_or_returns_no_bool_fails(body: str) -> None:
    assert Episode(SHOP, _task(_check(body), _check("return True"))).passed() == [False, True]


@pytest.mark.parametrize("code", ["", "def other(final_state): return True", "def check_func(:", "check_func = 3"])
def test_a_malformed_check_fails(code: str) -> None:
    assert Episode(SHOP, _task(Check(code=code))).passed() == [False]


def test_reward_is_the_weighted_share_rounded() -> None:
    checks = (_check("return True", 2.0), _check("return False"), _check("return False", 4.0))
    assert Episode(SHOP, _task(*checks)).score() == 0.2857
    assert Episode(SHOP, _task(*checks, reward_range=(-1.0, 3.0))).score() == pytest.approx(-1 + 4 * 0.2857, abs=1e-12)


def test_binary_reward_needs_all_checks() -> None:
    task = _task(RENAMED, _check("return True"), info={"reward": "binary"})
    episode = Episode(SHOP, task)
    assert episode.score() == 0.0
    episode.call("rename", {"item_id": "a", "name": "new"})
    assert episode.score() == 1.0


def test_445_checks() -> None:
    assert Episode(SHOP, _task(*[_check(f"return {i} < 44") for i in range(445)])).score() == 0.0989


def test_a_task_without_checks_cannot_be_scored() -> None:
    for task in (_task(), _task(_check("return True", 0.0))):
        with pytest.raises(EnvironmentFailureError, match="shop/t: no checks"):
            Episode(SHOP, task).score()


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("class A(:", "A", "does not run .SyntaxError"),
        ("1 / 0", "A", "does not run .ZeroDivisionError"),
        ("class A: pass", "B", "no class 'B'"),
        ("A = 3", "A", "no class 'A'"),
        ("class A:\n    def __init__(self, a, b): pass", "A", "cannot be instantiated"),
        ("class A:\n    __slots__ = ()", "A", "'items' cannot be set"),
    ],
)
def test_a_broken_environment_says_so(source: str, name: str, said: str) -> None:
    with pytest.raises(EnvironmentFailureError, match=said):
        Episode(Environment(env_id="bad", name=name, source=source), _task())


@pytest.mark.parametrize("init", ["self, config", "self, *, config=None", "self"])
def test_constructors_of_every_form(init: str) -> None:
    source = f"class A:\n    def __init__({init}): self.size = 3"
    episode = Episode(Environment(env_id="a", name="A", source=source), _task())
    assert episode.state() == {"size": 3, "items": {"a": {"name": "old"}}}


def test_constructor_falls_back_to_an_empty_state() -> None:
    source = "class A:\n    def __init__(self, config): self.n = {0: 7}[len(config)]"
    assert Episode(Environment(env_id="a", name="A", source=source), _task()).state()["n"] == 7


def test_initial_state_must_be_an_object() -> None:
    assert Episode(SHOP, _task(initial_state=None)).state() == {"items": {}, "log": []}
    with pytest.raises(EnvironmentFailureError, match="initial_state is list"):
        Episode(SHOP, _task(initial_state=[1]))


def test_policy_sees_nothing_of_verifier_source_or_ground_truth() -> None:
    task = _task(RENAMED, info={"withheld_tools": ["put"], "note": "INFO"})
    view = policy_view(SHOP, task)
    assert set(view) == {"prompt", "description", "rules", "tools"}
    text = json.dumps(view)
    for hidden in ("VERIFIER TEXT", "check_func", "GOLD", "SHARED", "old", "INFO", "put"):
        assert hidden not in text
    assert (view["prompt"], view["description"], view["rules"]) == ("Rename a.", "A shop.", ["Names are unique."])
    view["tools"][0]["function"]["name"] = "changed"
    assert SHOP.tools[0]["function"]["name"] == "rename"
