"""Environments as a policy meets them: tool errors are observations, failures have a status, turns are limited."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from envsched_gnn.errors import EnvironmentFailureError
from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier
from envsched_gnn.train.environments import Observation, WorkerEnvironment, play, play_each
from envsched_gnn.train.workers import RolloutFailure, WorkerPool

SOURCE = """
import os, time
class Counter:
    def __init__(self, config):
        self.n = 0
    def add(self, k):
        if k < 0:
            raise ValueError("k must not be negative")
        self.n += k
        return {"n": self.n}
    def leave(self):
        os._exit(1)
    def hang(self):
        time.sleep(60)
    def _secret(self):
        self.n = 99
"""
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "leave", "hang"))
COUNTER = Environment(
    env_id="counter", name="Counter", description="A counter.", source=SOURCE, tools=TOOLS, max_turns=3, timeouts=Timeouts(step=0.5)
)
TASK = Task(
    env_id="counter",
    task_id="four",
    prompt="Make it 4.",
    initial_state={"n": 1},
    verifier=Verifier(
        checks=(Check(code="def check_func(s):\n    return s['n'] == 4 and initial_state['n'] == 1", description="secret check"),)
    ),
    ground_truth=[{"name": "add", "arguments": {"k": 3}}],
    reward_range=(-1.0, 1.0),
)


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    with WorkerPool(2, memory_mb=400) as pool:
        yield pool


def test_an_episode(workers: WorkerPool) -> None:
    async def episode() -> list[object]:
        environment = WorkerEnvironment(COUNTER, workers)
        view = await environment.reset(TASK)
        seen = [view, await environment.call("add", {"k": -1}), await environment.call("add", {"k": 3})]
        seen += [await environment.next_turn(), await environment.score(), environment.status]
        await environment.close()
        return seen

    view, error, value, turn, reward, status = asyncio.run(episode())
    assert view == {"prompt": "Make it 4.", "description": "A counter.", "rules": [], "tools": list(TOOLS)}
    assert error == Observation(text="ValueError: k must not be negative", error=True)
    assert value == Observation(text="{'n': 4}")
    assert (turn, reward, status) == (None, 1.0, "ok")


def test_unknown_tools_private_methods_and_bad_arguments_are_observations(workers: WorkerPool) -> None:
    async def episode() -> list[Observation]:
        environment = WorkerEnvironment(COUNTER, workers)
        await environment.reset(TASK)
        calls = [("fly", {}), ("_secret", {}), ("add", {"q": 1})]
        seen = [await environment.call(name, arguments) for name, arguments in calls]
        await environment.close()
        return seen

    observations = asyncio.run(episode())
    assert [observation.error for observation in observations] == [True, True, True]
    assert observations[0].text == "Unknown tool 'fly'. Available: add, hang, leave."
    assert observations[2].text.startswith("TypeError: ")


def test_the_turn_limit_truncates_and_still_scores(workers: WorkerPool) -> None:
    async def episode() -> tuple[list[bool], str, float]:
        environment = WorkerEnvironment(COUNTER, workers)
        await environment.reset(TASK)
        done = [(await environment.call("add", {"k": 1})).done for _ in range(4)]
        status, reward = environment.status, await environment.score()
        await environment.close()
        return done, status, reward

    assert asyncio.run(episode()) == ([False, False, True, True], "truncated", 1.0)


@pytest.mark.parametrize(("tool", "status"), [("leave", "crashed"), ("hang", "timeout")])
def test_a_failure_ends_the_episode_and_the_next_one_is_sound(workers: WorkerPool, tool: str, status: str) -> None:
    async def episodes() -> float:
        environment = WorkerEnvironment(COUNTER, workers)
        await environment.reset(TASK)
        with pytest.raises(RolloutFailure) as failure:
            await environment.call(tool, {})
        assert failure.value.status == status
        with pytest.raises(EnvironmentFailureError, match="no episode is running"):
            await environment.score()
        await environment.reset(TASK)
        await environment.call("add", {"k": 3})
        reward = await environment.score()
        await environment.close()
        return reward

    assert asyncio.run(episodes()) == 1.0


def test_episodes_run_side_by_side(workers: WorkerPool) -> None:
    async def one(k: int) -> float:
        environment = WorkerEnvironment(COUNTER, workers)
        await environment.reset(TASK)
        await environment.call("add", {"k": k})
        reward = await environment.score()
        await environment.close()
        return reward

    async def both() -> list[float]:
        return await asyncio.gather(one(3), one(1), one(3))

    assert asyncio.run(both()) == [1.0, -1.0, 1.0]


def test_many_hanging_episodes_hold_up_nobody(workers: WorkerPool) -> None:
    slow = replace(COUNTER, timeouts=Timeouts(step=2.0))

    async def hang() -> str:
        environment = WorkerEnvironment(slow, workers)
        await environment.reset(TASK)
        try:
            await environment.call("hang", {})
        except RolloutFailure as failure:
            return failure.status
        return "ok"

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(hang() for _ in range(12)))

    began = time.monotonic()
    assert asyncio.run(all_of_them()) == ["timeout"] * 12
    assert time.monotonic() - began < 15  # one after the other: over 24


def test_a_cancelled_call_gives_its_worker_up(workers: WorkerPool) -> None:
    async def episode() -> float:
        environment = WorkerEnvironment(COUNTER, workers)
        await environment.reset(TASK)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(environment.call("hang", {}), 0.1)
        await environment.reset(TASK)
        await environment.call("add", {"k": 3})
        reward = await environment.score()
        await environment.close()
        return reward

    assert asyncio.run(episode()) == 1.0


def test_a_task_of_another_environment_is_refused(workers: WorkerPool) -> None:
    stranger = Task(env_id="other", task_id="t", prompt="")
    with pytest.raises(EnvironmentFailureError, match=r"other/t is no task of environment 'counter'"):
        asyncio.run(WorkerEnvironment(COUNTER, workers).reset(stranger))


def test_known_calls_are_cut_at_the_turn_limit() -> None:
    a, b, c = ({"name": name, "arguments": {}} for name in "abc")
    assert play([[a, b], [c]], 3) == ({"op": "play", "turns": [[a, b], [c]], "inspect": False}, "ok")
    assert play([[a, b], [c]], 1) == ({"op": "play", "turns": [[a], []], "inspect": False}, "truncated")
    assert play([[]], 0) == ({"op": "play", "turns": [[]], "inspect": False}, "ok")
    assert play_each([[a, b, c], []], 2) == {"op": "play_each", "episodes": [[[a, b]], [[]]]}


@pytest.mark.bfcl
def test_a_task_of_several_turns_in_a_worker(workers: WorkerPool) -> None:
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed")
    from envsched_gnn.pool.bfcl import gold_calls, read_bfcl

    pool = read_bfcl(graded=True)
    task = pool.tasks[pool.index_of["GorillaFileSystem+TwitterAPI/multi_turn_miss_func_0"]]
    world = next(environment for environment in pool.environments if environment.env_id == task.env_id)
    gold = gold_calls(task, world)

    async def episode() -> tuple[list[dict[str, object]], float]:
        environment = WorkerEnvironment(world, workers)
        views = [await environment.reset(task)]
        for turn in gold:
            for call in turn:
                assert not (await environment.call(call["name"], call["arguments"])).error
            view = await environment.next_turn()
            views += [view] if view is not None else []
        reward = await environment.score()
        await environment.close()
        return views, reward

    views, reward = asyncio.run(episode())
    assert reward == 1.0
    assert [view["prompt"] for view in views] == ["\n".join(turn) for turn in task.info["turns"]]
    (late,) = task.info["withheld_tools"]
    shown = [late in {tool["function"]["name"] for tool in view["tools"]} for view in views]
    released = int(next(iter(task.info["released_tools"])))
    assert shown == [turn >= released for turn in range(len(views))]
    assert 0 < released < len(views)
