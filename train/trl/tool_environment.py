"""An episode as a trainer's tool loop plays it: tool methods, a budget of errors, a status, a reward.

Knows: when an episode is over and what it is worth; that calls of many rollouts start together; how many episodes may work at a time.
Does not know: how an episode is executed, how tools are described, trainers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envsched_gnn import records
from envsched_gnn.errors import EnvironmentFailureError, EnvSchedError, PoolError, message
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Status, Task
from envsched_gnn.train.environments import Observation, WorkerEnvironment
from envsched_gnn.train.trl.tool_methods import END_TURN, Schema, name_of
from envsched_gnn.train.workers import RolloutFailure, WorkerPool

ACTIVE = 64
"""Episodes that may work at a time (ours): room for four tasks whose 8 rollouts all hang beside as many sound ones, and few enough that
time limits measure the environments and not the machine."""
OVER = "The episode is over; nothing more can be done."


@dataclass(kw_only=True)
class Floor:
    """What all environments of a pool share."""

    pool: Pool
    workers: WorkerPool
    tool_error_budget: int
    fatal: EnvSchedError | None = None
    """No fault of an environment: worker processes do not start."""
    followed: list[tuple[ToolEnvironment, list[dict[str, Any]]]] = field(default_factory=list)
    """The rollouts of the round, each with its messages so far, which the trainer's tool loop goes on writing."""

    _slots: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(default_factory=dict)

    @property
    def slots(self) -> asyncio.Semaphore:
        """Room for ACTIVE episodes in the running event loop: each trainer has one of its own."""
        return self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(ACTIVE))

    def begin(self) -> None:
        """Start every call that a policy has asked for and that has not begun yet."""
        for environment, messages in self.followed:
            environment._begin(messages)


class ToolEnvironment:
    """One rollout after another of one environment, as TRL wants it: `reset`, and in subclasses a public async method for each tool.

    A failed tool call is an observation, until the budget is used up: then the state is scored and the episode is over. A crash or timeout
    ends the episode without a reward.
    """

    _floor: Floor
    _environment: records.Environment
    _names: frozenset[str]
    """Tools that can be called."""
    _several_turns: bool
    """Whether END_TURN is one of them."""

    def __init__(self, shown: tuple[Schema, ...]) -> None:
        self._shown = shown
        self._unclosed: list[WorkerEnvironment] = []
        self._begun: object = None
        self._status: Status = "cancelled"
        self._detail = "no episode was begun"

    @property
    def status(self) -> Status:
        """How the episode went so far."""
        return self._status

    @property
    def detail(self) -> str:
        """What failed, for people; empty for status ok."""
        return self._detail

    def reset(self, task_id: str, **row: Any) -> None:  # TRL hands over every column
        """Begin an episode of the task `env_id/task_id`; its process starts with the first call.

        Raises:
            PoolError: no such task in this environment.
        """
        index = self._floor.pool.index_of.get(task_id)
        task = None if index is None else self._floor.pool.tasks[index]
        if task is None or task.env_id != self._environment.env_id:
            cure = "Build the data set with dataset_of, from the same pool."
            raise PoolError(message(f"environment {self._environment.env_id!r}", f"task_id {task_id!r}", "a task of it", cure))
        self._task: Task = task
        self._status, self._detail = "ok", ""
        self._reward: float | None = None
        self._errors = 0
        self._over = self._started = False
        self._visible = set(map(name_of, self._shown))
        self._ready: list[tuple[str, Any, asyncio.Future[str]]] = []
        self._lock = asyncio.Lock()
        self._episode = WorkerEnvironment(self._environment, self._floor.workers)
        self._unclosed.append(self._episode)

    def _begin(self, messages: list[dict[str, Any]]) -> None:
        """Start the calls of the newest message, in order."""
        newest = messages[-1]
        calls = newest.get("tool_calls") if newest["role"] == "assistant" else None
        if not calls or newest is self._begun:
            return
        self._begun = newest
        self._ready = []
        for call in calls:
            function = call.get("function") or {}
            name, arguments = str(function.get("name")), function.get("arguments")
            self._ready.append((name, arguments, asyncio.ensure_future(self._call(name, arguments))))

    async def _answer(self, name: str, arguments: dict[str, Any]) -> str:
        """What the trainer gets for a call: the result of the one that has begun already, else of one that begins now."""
        self._floor.begin()
        for position, (begun, given, result) in enumerate(self._ready):
            if begun == name and given == arguments:
                del self._ready[position]
                return await result
        return await self._call(name, arguments)

    async def _call(self, name: str, arguments: Any) -> str:
        """One call after the other; whatever happens is text for the policy."""
        async with self._lock:
            if self._over:
                return OVER
            try:
                async with self._floor.slots:
                    return await self._account(await self._observe(name, arguments))
            except EnvSchedError as error:
                self._fail(error)
                return OVER

    async def _observe(self, name: str, arguments: Any) -> Observation:
        if name not in self._names or not isinstance(arguments, Mapping):
            return Observation(text=f"{name} is no tool, or its arguments are no object.", error=True)
        if not self._started:
            await self._start()
        if name != END_TURN or not self._several_turns:
            return await self._episode.call(name, arguments)
        view = await self._episode.next_turn()
        return Observation(text="The user has nothing more to ask." if view is None else self._next_turn(view))

    async def _start(self) -> None:
        for episode in self._unclosed[:-1]:
            await episode.close()
        self._unclosed = self._unclosed[-1:]
        await self._episode.reset(self._task)
        self._started = True

    def _next_turn(self, view: dict[str, Any]) -> str:
        """What the user says next, and the tools that come with it."""
        late = [tool for tool in view["tools"] if name_of(tool) not in self._visible]
        self._visible.update(map(name_of, late))
        return str(view["prompt"]) + "".join(f"\nNew tool: {json.dumps(tool)}" for tool in late)

    async def _account(self, seen: Observation) -> str:
        """The text of an observation; if it is the last one, the state is scored and the episode is over."""
        self._errors += seen.error
        if self._episode.status == "truncated":
            self._status, self._detail = "truncated", seen.text
        elif self._errors >= self._floor.tool_error_budget:
            self._status, self._detail = "tool_budget", f"{self._errors} tool errors; the last: {seen.text[:300]}"
        if self._status == "ok":
            return seen.text
        await self._finish()
        return f"{seen.text}\n{OVER}"

    async def _finish(self) -> None:
        """Score the state, and give the worker back."""
        if not self._started:
            await self._start()
        self._reward = await self._episode.score()
        await self._episode.close()
        self._over = True

    def _fail(self, error: EnvSchedError) -> None:
        if not isinstance(error, EnvironmentFailureError):
            self._floor.fatal = error
        self._status = error.status if isinstance(error, RolloutFailure) else "crashed"
        self._detail = str(error)
        self._over = True

    def _truncate(self, detail: str) -> None:
        """A limit of tokens or turns has cut the policy short."""
        if self._status == "ok":
            self._status, self._detail = "truncated", detail

    async def _score(self) -> float | None:
        """Reward of the episode in the task's range; None where it failed or was truncated: how it would have ended is unknown (ours)."""
        async with self._lock:
            try:
                async with self._floor.slots:
                    if not self._over:
                        await self._finish()
            except EnvSchedError as error:
                self._fail(error)
        return self._reward if self._status in ("ok", "tool_budget") else None
