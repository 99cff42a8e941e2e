"""BFCL multi-turn: reading without running, execution by the wheel's own code, rewards."""

import importlib.util
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import pytest

from envsched_gnn.errors import EnvironmentFailureError, PoolError
from envsched_gnn.pool.bfcl import gold_calls, read_bfcl
from envsched_gnn.pool.bfcl_episode import BfclEpisode
from envsched_gnn.pool.episode import ToolError, policy_view
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task

pytestmark = [
    pytest.mark.bfcl,
    pytest.mark.skipif(importlib.util.find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed"),
]


@lru_cache(maxsize=2)
def _pool(graded: bool = False) -> Pool:
    return read_bfcl(graded=graded)


def _pairs(graded: bool = False) -> Iterator[tuple[Environment, Task]]:
    pool = _pool(graded)
    environments = {environment.env_id: environment for environment in pool.environments}
    return ((environments[task.env_id], task) for task in pool.tasks)


def _pair(task_id: str, graded: bool = False) -> tuple[Environment, Task]:
    return next(pair for pair in _pairs(graded) if pair[1].task_id == task_id)


def _play(episode: BfclEpisode, keep: float = 1.0, seed: int = 0) -> BfclEpisode:
    """The gold calls, each made with probability `keep`, through all turns."""
    chance = random.Random(seed)
    for turn, calls in enumerate(gold_calls(episode.task, episode.environment)):
        if turn:
            assert episode.next_turn() == episode.task.info["turns"][turn]
        for call in calls:
            if chance.random() < keep:
                try:
                    episode.call(call["name"], call["arguments"])
                except ToolError:
                    assert keep < 1
    assert episode.next_turn() is None
    return episode


def test_the_pool() -> None:
    pool = _pool()
    assert (len(pool.environments), len(pool.tasks)) == (20, 800)
    assert Counter(task.info["category"] for task in pool.tasks) == dict.fromkeys(("base", "miss_func", "miss_param", "long_context"), 200)
    assert {environment.env_id for environment in pool.environments} >= {"TradingBot", "TicketAPI+TravelAPI", "GorillaFileSystem+MathAPI"}
    assert {environment.env_type for environment in pool.environments} == {"bfcl"}
    assert pool.empty_environments == ()
    assert all(len(task.ground_truth) == len(task.info["turns"]) for task in pool.tasks)
    assert len(json.dumps([environment.tools for environment in pool.environments])) > 100_000


def test_tools_are_json_schemas() -> None:
    trading = next(environment for environment in _pool().environments if environment.env_id == "TradingBot")
    assert len(trading.tools) == 20
    order = next(tool["function"] for tool in trading.tools if tool["function"]["name"] == "place_order")
    assert order["parameters"]["type"] == "object"
    assert {name: value["type"] for name, value in order["parameters"]["properties"].items()} == {
        "order_type": "string",
        "symbol": "string",
        "price": "number",
        "amount": "integer",
    }
    text = json.dumps([environment.tools for environment in _pool().environments])
    assert '"type": "dict"' not in text
    assert '"type": "float"' not in text


def test_operations_that_change_state() -> None:
    changing = {o["name"] for environment in _pool().environments for o in environment.operations if o["type"] == "state_change"}
    assert changing >= {"cd", "mv", "touch", "close_ticket", "mention", "place_order", "book_flight", "startEngine", "send_message"}
    assert not changing & {"ls", "pwd", "mean", "get_ticket", "get_stock_info", "get_order_details", "get_watchlist", "display_log"}


def test_reading_runs_nothing_of_the_wheel() -> None:
    code = (
        "import sys; from envsched_gnn.pool import Pool; assert len(Pool.load('bfcl').tasks) == 800; "
        "assert not [name for name in sys.modules if name.split('.')[0] in ('bfcl_eval', 'torch')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_missing_wheel_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(PoolError, match=r"bfcl-eval is not installed; .*pip install --no-deps bfcl-eval==2026\.3\.23"):
        read_bfcl()


def test_gold_scores_1_and_nothing_scores_0_on_all_800_tasks() -> None:
    for environment, task in _pairs():
        gold, idle = _play(BfclEpisode(environment, task)), BfclEpisode(environment, task)
        assert (gold.score(), idle.score()) == (1.0, 0.0), task.key
        while idle.next_turn():
            pass
        assert not any(idle.passed()), task.key
        gold.close()
        idle.close()
    assert _instances() == []


def _instances() -> list[str]:
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    return [name for name in vars(multi_turn_utils) if name.startswith("envsched")]


def test_score_agrees_with_the_wheels_own_checker() -> None:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    before, verdicts = _all_instances(), Counter()
    for number, (environment, task) in enumerate(list(_pairs())[::10]):
        episode = _play(BfclEpisode(environment, task), keep=0.9, seed=number)
        entry = {"id": task.task_id, "initial_config": task.initial_state, "involved_classes": task.info["classes"]}
        calls = [[[call] for call in turn] for turn in episode._calls]
        verdict = multi_turn_checker(calls, task.ground_truth, entry, task.info["category"], f"model{number}")["valid"]
        assert episode.score() == float(verdict), task.key
        verdicts[verdict] += 1
        episode.close()
    _all_instances(remove_but=before)
    assert len(verdicts) == 2
    assert min(verdicts.values()) >= 10


def _all_instances(remove_but: set[str] | None = None) -> set[str]:
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    names = {name for name in vars(multi_turn_utils) if name.endswith("_instance")}
    for name in names - remove_but if remove_but is not None else ():
        del vars(multi_turn_utils)[name]
    return names


def test_graded_reward_is_the_share_of_turns_right() -> None:
    environment, task = _pair("multi_turn_base_0", graded=True)
    assert len(task.ground_truth) == 4
    episode, calls = BfclEpisode(environment, task), gold_calls(task, environment)
    rewards = [episode.score()]
    for turn in calls:
        for call in turn:
            episode.call(call["name"], call["arguments"])
        rewards.append(episode.score())
        episode.next_turn()
    assert rewards == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_graded_rewards_vary() -> None:
    rewards = {_play(BfclEpisode(*pair), keep=0.9, seed=i).score() for i, pair in enumerate(list(_pairs(graded=True))[::10])}
    assert {0.0, 1.0} < rewards
    assert len(rewards) > 6


def test_turns_without_gold_calls_do_not_count() -> None:
    environment, task = _pair("multi_turn_miss_func_0", graded=True)
    assert [len(turn) for turn in task.ground_truth] == [3, 2, 0, 1, 4]
    assert len(_play(BfclEpisode(environment, task)).passed()) == 4


def test_an_all_or_nothing_episode_must_reach_its_last_turn() -> None:
    environment, task = _pair("multi_turn_base_0")
    episode = BfclEpisode(environment, task)
    for turn in gold_calls(task, environment):
        for call in turn:
            episode.call(call["name"], call["arguments"])
    assert episode.score() == 0.0


def test_late_tools_are_hidden_until_their_turn() -> None:
    environment, task = _pair("multi_turn_miss_func_0")
    view = policy_view(environment, task)
    assert task.info["withheld_tools"] == ["sort"]
    assert "sort" not in {tool["function"]["name"] for tool in view["tools"]}
    assert view["prompt"] == task.info["turns"][0][0]
    assert "previous_report.pdf" not in view["prompt"]
    assert "previous_report.pdf" in task.prompt
    episode = BfclEpisode(environment, task)
    hidden = []
    while episode.next_turn():
        hidden.append(sorted(episode.withheld))
    assert hidden == [["sort"], ["sort"], [], []]


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("format_disk", {}, "Unknown tool 'format_disk'"),
        ("_load_scenario", {"scenario": {}}, "Unknown tool '_load_scenario'"),
        ("cd", {"folder": "nowhere", "x": 1}, "unexpected keyword"),
        ("cd", {"folder=__import__('os')": 1}, "named values"),
        ("cd", ["document"], "named values, not list"),
    ],
)
def test_a_failed_call_is_an_observation(tool: str, arguments: object, said: str) -> None:
    episode = BfclEpisode(*_pair("multi_turn_base_0"))
    with pytest.raises(ToolError, match=said):
        episode.call(tool, arguments)


def test_episodes_do_not_share_state_and_leave_none() -> None:
    pair = _pair("multi_turn_base_0")
    first, second = BfclEpisode(*pair), BfclEpisode(*pair)
    before = second.state()
    first.call("mkdir", {"dir_name": "new"})
    assert second.state() == before
    assert str(first.state()) != str(before)
    assert set(before) == {"TwitterAPI", "GorillaFileSystem"}
    assert len(_instances()) == 4
    del first
    second.close()
    second.close()
    assert _instances() == []


def test_a_state_that_the_classes_cannot_take() -> None:
    environment, task = _pair("multi_turn_base_0")
    broken = Task(**{**vars(task), "initial_state": {"GorillaFileSystem": 3}})
    with pytest.raises(EnvironmentFailureError, match="multi_turn_base_0: "):
        BfclEpisode(environment, broken)
    assert _instances() == []


def test_an_episode_without_the_wheel_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = _pair("multi_turn_base_0")
    for name in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(EnvironmentFailureError, match=r"pip install --no-deps bfcl-eval"):
        BfclEpisode(*pair)
