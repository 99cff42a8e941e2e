"""The program of a worker process: runs episodes of environments that it does not trust, one request at a time.

Knows: the protocol (a 4-byte length and a JSON object, both ways), its own limits, how an episode is played.
Does not know: time limits (the parent keeps them, told by a `stage` frame before every stage), groups, rewards of other episodes.

Standard input and output of the process are /dev/null: what environment code prints reaches nobody. The parent believes
nothing that arrives here unchecked. Python itself is no sandbox: this contains accidents and crude attacks, and a worker
that is suspect is killed with all its descendants, but code that must not read files needs a container around the run.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import os
import random
import signal
import socket
import struct
import sys
import time
from typing import Any

from envsched_gnn.errors import EnvironmentFailureError
from envsched_gnn.pool.episode import Episode, ToolError, check_fault
from envsched_gnn.pool.references import first_identifier, resolve
from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier
from envsched_gnn.train.limits import die_with_parent, filter_system_calls, forbid_processes, limit, violations

MAX_TEXT = 65_536
"""Characters of an observation or a detail; the rest is cut off (ours)."""
RECURSION_LIMIT = 1000
"""Python's own default."""
THREAD_GRACE = 0.2
"""Seconds that threads of an episode have to end after its score (ours)."""
TOLD_EVERY = 0.02
"""Seconds within which calls of an episode share one start of their clock (ours): a message each would cost more than the calls."""


class Halt(Exception):  # noqa: N818
    """The episode cannot go on; `clean` says whether this process may serve another one."""

    def __init__(self, status: str, detail: str, clean: bool = False) -> None:
        super().__init__(detail)
        self.status, self.clean = status, clean


class Channel:
    """Framed JSON to the parent. A forked copy of this process must never answer in its name."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._pid = os.getpid()

    def receive(self) -> dict[str, Any] | None:
        """The next request; None when the parent has hung up."""
        header = self._exactly(4)
        body = self._exactly(struct.unpack("!I", header)[0]) if header else None
        return json.loads(body) if body else None

    def _exactly(self, size: int) -> bytes | None:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = self._socket.recv(min(size - len(chunks), 2**20))
            if not chunk:
                return None
            chunks += chunk
        return bytes(chunks)

    def send(self, message: dict[str, Any]) -> None:
        """One frame."""
        if os.getpid() != self._pid:
            os._exit(1)
        body = json.dumps(message).encode()
        self._socket.sendall(struct.pack("!I", len(body)) + body)


class Player:
    """The environment and task at hand, and the episode in progress."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._environment = Environment(env_id="")
        self._task = Task(env_id="", task_id="", prompt="")
        self._episode: Any = None
        self._request = 0
        self._seconds = {"setup": 0.0, "step": 0.0, "score": 0.0}
        self._began = ("idle", 0.0)
        self._told = 0.0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serve one request; every failure of the environment becomes a `failed` reply."""
        self._request, self._told = request["id"], 0.0
        violations.clear()
        try:
            self._hold(request)
            reply = self._serve(request)
            if violations:
                raise Halt("crashed", f"environment code may not start or signal processes ({violations[0]})")
            return reply
        except MemoryError:
            halt = Halt("out_of_memory", "the memory limit was reached")
        except Halt as error:
            halt = error
        except EnvironmentFailureError as error:
            halt = Halt("crashed", str(error), clean=not violations and not self._threads())
        except BaseException as error:
            halt = Halt("crashed", f"{type(error).__name__}: {_text(error)}")
        self._episode = None
        return {"failed": halt.status, "detail": _text(halt), "clean": halt.clean}

    def _hold(self, request: dict[str, Any]) -> None:
        if "environment" in request:
            self._environment = environment_from(request["environment"])
        if "task" in request:
            self._task = task_from(request["task"])

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "play":
                return self._play(request["turns"], request.get("inspect", False))
            case "play_each":
                return {"plays": [self._play(turns, inspect=False) for turns in request["episodes"]]}
            case "reset":
                self._reset()
                return {}
            case "call":
                text, error, _ = self._call(request["name"], request["arguments"], want_text=True)
                return {"text": text, "error": error}
            case "next_turn":
                self._stage("step")
                return next_turn(self._episode)
            case "score":
                return self._finish()
            case other:
                raise AssertionError(other)

    def _play(self, turns: list[list[dict[str, Any]]], inspect: bool) -> dict[str, Any]:
        """A whole episode in one message: every call of every turn, then the score."""
        self._reset()
        errors: list[str] = []
        found: list[str] = []
        for number, turn in enumerate(turns):
            if number:
                next_turn(self._episode)
            for call in turn:
                text, failed, identifier = self._call(call["name"], resolve(call["arguments"], found), want_text=inspect)
                found.append(identifier)
                if failed and len(errors) < 20:
                    errors.append(text[:500])
        checks = self._inspect() if inspect else []
        return {**self._finish(), "calls": len(found), "errors": errors, "checks": checks, "found": found}

    def _reset(self) -> None:
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._stage("setup")
        clean_up()
        self._episode = None
        self._episode = new_episode(self._environment, self._task)
        self._stage("step")

    def _call(self, name: str, arguments: Any, want_text: bool) -> tuple[str, bool, str]:
        """(observation, whether it is an error, the identifier that a reference to this call stands for)."""
        self._stage("step")
        try:
            value = self._episode.call(name, arguments)
            return (_text(value) if want_text else ""), False, first_identifier(value)
        except ToolError as error:
            return _text(error), True, ""
        except MemoryError:
            raise
        except Exception as error:
            return f"{type(error).__name__}: the result cannot be printed", True, ""

    def _finish(self) -> dict[str, Any]:
        self._stage("score")
        if self._episode is None:
            raise Halt("crashed", "scored before it was reset")
        reward = self._episode.score()
        self._stage("idle")
        self._episode = None
        if self._threads():
            raise Halt("crashed", "environment code left a thread running")
        return {"reward": float(reward), "seconds": dict(self._seconds)}

    def _inspect(self) -> list[dict[str, Any]]:
        """Each check with `passed`, and `fault` where it is broken."""
        if not isinstance(self._episode, Episode):
            return []
        self._stage("score")
        passed = self._episode.passed()
        state, initial = self._episode.state(), copy.deepcopy(self._task.initial_state or {})
        faults = [
            "" if ok else check_fault(check.code, state, initial) for check, ok in zip(self._task.verifier.checks, passed, strict=True)
        ]
        checks = [{"passed": ok, "fault": fault} for ok, fault in zip(passed, faults, strict=True)]
        self._began = ("idle", 0.0)  # the score alone is timed
        return checks

    def _stage(self, stage: str) -> None:
        """Close the books of the last stage, and tell the parent to start the clock of this one."""
        now = time.monotonic()
        last, began = self._began
        if last in self._seconds:
            self._seconds[last] += now - began
        self._began = (stage, now)
        if stage != "idle" and (stage != last or now - self._told >= TOLD_EVERY):
            self._told = now
            self._channel.send({"id": self._request, "stage": stage})

    def _threads(self) -> bool:
        """Whether threads of the environment outlive the episode, after a moment of grace."""
        end = time.monotonic() + THREAD_GRACE
        while len(sys._current_frames()) > 1:
            if time.monotonic() > end:
                return True
            time.sleep(0.01)
        return False


def clean_up() -> None:
    """Undo what an earlier episode may have left in this process, as far as it is cheap; and let chance begin anew."""
    signal.alarm(0)
    sys.setrecursionlimit(RECURSION_LIMIT)
    os.chdir(os.environ.get("HOME", "/"))
    random.seed(0)


def new_episode(environment: Environment, task: Task) -> Any:
    """The episode of the environment's kind."""
    match environment.env_type:
        case "python_class":
            return Episode(environment, task)
        case "bfcl":
            from envsched_gnn.pool.bfcl_episode import BfclEpisode

            return BfclEpisode(environment, task)
        case other:
            raise EnvironmentFailureError(f"{environment.env_id}: env_type {other!r} cannot be executed here; known: python_class, bfcl.")


def next_turn(episode: Any) -> dict[str, Any]:
    """What the user says next (None: the task is over) and the tools not shown yet. A python_class task has one turn."""
    if not hasattr(episode, "next_turn"):
        return {"text": None, "withheld": []}
    messages = episode.next_turn()
    return {"text": None if messages is None else "\n".join(messages), "withheld": sorted(episode.withheld)}


def environment_from(table: dict[str, Any]) -> Environment:
    """The record back from its plain table."""
    low, high = table["reward_range"]
    return Environment(
        **{
            **table,
            "tools": tuple(table["tools"]),
            "rules": tuple(table["rules"]),
            "operations": tuple(table["operations"]),
            "reward_range": (low, high),
            "timeouts": Timeouts(**table["timeouts"]),
        }
    )


def task_from(table: dict[str, Any]) -> Task:
    """The record back from its plain table."""
    verifier = table["verifier"]
    checks = tuple(Check(**check) for check in verifier["checks"])
    span = table["reward_range"]
    return Task(
        **{
            **table,
            "verifier": Verifier(kind=verifier["kind"], checks=checks),
            "reward_range": None if span is None else (span[0], span[1]),
        }
    )


def _text(value: Any) -> str:
    """Printed form, bounded."""
    return str(value)[:MAX_TEXT]


def main() -> None:
    """Serve requests until the parent hangs up. Arguments: socket fd, lifeline fd, memory in MiB, process limit."""
    fd, lifeline, memory_mb, processes = (int(argument) for argument in sys.argv[1:5])
    del sys.argv[1:]
    faulthandler.enable()
    die_with_parent(lifeline)
    limit(memory_mb, processes)
    forbid_processes()
    filter_system_calls()
    channel = Channel(fd)
    player = Player(channel)
    channel.send({"id": 0, "ready": True})
    while (request := channel.receive()) is not None:
        channel.send({"id": request["id"], "done": player.answer(request)})
    os._exit(0)


if __name__ == "__main__":
    main()
