"""Environments as a policy meets them: reset, call tools, score, close; each episode runs in a worker process.

Knows: the `Environment` protocol, the turn limit, what of a task a policy may see, how a failure is told.
Does not know: policies, groups, how processes are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from envsched_gnn import records
from envsched_gnn.errors import EnvironmentFailureError
from envsched_gnn.pool.episode import policy_view
from envsched_gnn.records import Status, Task
from envsched_gnn.train.workers import Job, Worker, WorkerPool


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a policy sees after a tool call."""

    text: str
    """Printed return value, or the tool's error."""
    error: bool = False
    """Whether the call failed: unknown tool, bad arguments, or the tool raised. The episode goes on."""
    done: bool = False
    """Whether the turn limit is reached: further calls do nothing, and make the episode truncated."""


class Environment(Protocol):
    """An executable environment, one episode after another."""

    async def reset(self, task: Task) -> dict[str, Any]:
        """Start an episode; returns all that a policy may see before it acts: prompt, description, rules, tools."""
        ...

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observation:
        """One tool call."""
        ...

    async def next_turn(self) -> dict[str, Any] | None:
        """The policy has ended its turn: the view of the next one (prompt = what the user says, tools), or None where the task is over."""
        ...

    async def score(self) -> float:
        """Reward of the episode, in the task's reward range; ends it."""
        ...

    async def close(self) -> None:
        """Give up what is held."""
        ...


class WorkerEnvironment:
    """`Environment` in a worker process, for the kinds python_class and bfcl.

    A failure of the environment raises RolloutFailure with its status; the episode is over, and `reset` starts another.
    """

    def __init__(self, environment: records.Environment, workers: WorkerPool) -> None:
        self._environment = environment
        self._workers = workers
        self._worker: Worker | None = None
        self._job: Job | None = None
        self._calls = 0
        self._refused = False
        self._running = False

    @property
    def status(self) -> Status:
        """`truncated` once a call beyond the turn limit was refused, else `ok`."""
        return "truncated" if self._refused else "ok"

    async def reset(self, task: Task) -> dict[str, Any]:
        """Start an episode of `task` in a worker of its own; the worker is kept until `close`."""
        if task.env_id != self._environment.env_id:
            raise EnvironmentFailureError(f"{task.key} is no task of environment {self._environment.env_id!r}.")
        self._job = Job(environment=self._environment, task=task, requests=())
        self._calls = 0
        self._refused = False
        self._running = True
        await self._ask({"op": "reset"})
        return policy_view(self._environment, task)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observation:
        """One tool call; beyond `max_turns` it is not executed."""
        limit = self._environment.max_turns
        if self._calls >= limit:
            self._refused = True
            return Observation(text=f"The limit of {limit} calls is reached.", error=True, done=True)
        reply = await self._ask({"op": "call", "name": tool, "arguments": dict(arguments)})
        self._calls += 1
        return Observation(text=str(reply.get("text", "")), error=reply.get("error") is True, done=self._calls >= limit)

    async def next_turn(self) -> dict[str, Any] | None:
        """The view of the next turn of a multi-turn task: `prompt`, and all `tools` shown by now; None where there is none."""
        job, reply = self._current(), await self._ask({"op": "next_turn"})
        if reply.get("text") is None:
            return None
        now = {**job.task.info, "turns": [[str(reply["text"])]], "withheld_tools": reply["withheld"]}
        return policy_view(self._environment, replace(job.task, info=now))

    async def score(self) -> float:
        """Reward in the task's reward range."""
        reward = (await self._ask({"op": "score"}))["reward"]
        self._running = False
        return float(reward)

    async def close(self) -> None:
        """Give the worker back; one in the midst of an episode is ended."""
        if self._worker is not None:
            self._workers.release(self._worker, reusable=not self._running)
        self._worker = None
        self._running = False

    def _current(self) -> Job:
        if self._job is None or not self._running:
            raise EnvironmentFailureError(f"{self._environment.env_id}: no episode is running. Call reset(task) first.")
        return self._job

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request; a worker that failed, or whose answer nobody waits for any more, is given up."""
        job = self._current()
        worker = self._worker = self._worker or self._workers.lease()
        outcome = None
        try:
            outcome = worker.begin(job, request)
            while outcome is None:
                await _readable(worker.fileno(), worker.deadline - time.monotonic())
                outcome = worker.advance()
        finally:
            if outcome is None or outcome.status != "ok":
                self._running = False
                self._worker = None
                self._workers.release(worker, reusable=outcome is not None)
        return outcome.unwrap()


async def _readable(fd: int, seconds: float) -> None:
    """Return once `fd` can be read, or after `seconds`."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await ready.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(fd)


def play(turns: list[list[dict[str, Any]]], max_turns: int, *, inspect: bool = False) -> tuple[dict[str, Any], Status]:
    """A worker request that plays known calls in one message, cut at `max_turns` calls, and the status if it goes well.

    Args:
        turns: for each turn of the task, its calls `{"name", "arguments"}`.
        max_turns: calls after which the episode is truncated.
        inspect: also report every check.
    """
    room, cut = max_turns, []
    for turn in turns:
        cut.append(turn[:room])
        room -= len(cut[-1])
    status: Status = "truncated" if sum(map(len, turns)) > max_turns else "ok"
    return {"op": "play", "turns": cut, "inspect": inspect}, status


def play_each(plans: Sequence[list[dict[str, Any]]], max_turns: int) -> dict[str, Any]:
    """A worker request that plays an episode a plan in one message, each cut at `max_turns` calls. If one is lost, all are."""
    return {"op": "play_each", "episodes": [[plan[:max_turns]] for plan in plans]}
