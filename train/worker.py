"""One worker process: started clean, watched, killed as a group.

Knows: how to start one, the protocol of `worker_main`, deadlines of setup, step and score, what a death means.
Does not know: what an episode does, other workers, groups.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import envsched_gnn
from envsched_gnn.errors import EnvironmentFailureError
from envsched_gnn.records import Environment, Status, Task, Timeouts
from envsched_gnn.train.replies import sound

START_SECONDS = 60.0
"""A fresh interpreter that has not answered by then will not (ours; it takes about 0.1 s on an idle machine)."""
MAX_FRAME = 2**20
"""Bytes of a reply; a worker that announces more is killed (ours)."""
MAX_PROCESSES = 256
"""Processes and threads that a worker may add to those its user already has; root is bound by the system call filter alone (ours)."""


class RolloutFailure(EnvironmentFailureError):  # noqa: N818
    """An episode was lost. `status` is timeout, crashed or out_of_memory."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status: Status = status


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a request."""

    status: Status
    """`ok`, or how the episode was lost."""
    reply: dict[str, Any] = field(default_factory=dict)
    """The worker's answer if ok; its form is checked, its content is only as good as the environment."""
    detail: str = ""
    seconds: float = 0.0

    def unwrap(self) -> dict[str, Any]:
        """The reply, or RolloutFailure."""
        if self.status != "ok":
            raise RolloutFailure(self.status, self.detail)
        return self.reply


@dataclass(frozen=True, kw_only=True)
class Job:
    """Requests about one task that can be served in any order, by any worker."""

    environment: Environment
    task: Task
    requests: Sequence[dict[str, Any]]


class Worker:
    """One process. Not thread-safe: one request at a time."""

    def __init__(self, memory_mb: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="envsched-worker-")
        self._token = secrets.token_hex(16)
        self._socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        try:
            with open(Path(self._folder) / "stderr", "wb") as stderr:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-s", "-m", "envsched_gnn.train.worker_main"]
                    + [str(value) for value in (theirs.fileno(), lifeline, memory_mb, _process_limit())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env=_clean_environment(self._folder, self._token),
                    cwd=self._folder,
                    pass_fds=(theirs.fileno(), lifeline),
                    start_new_session=True,
                )
        finally:
            theirs.close()
            os.close(lifeline)
        self._owner = os.getpid()
        self._buffer = bytearray()
        self._request = 0
        self._op, self._episodes = "", 0
        self._held: tuple[Environment | None, Task | None] = (None, None)
        self._stage = "start"
        self._began = 0.0
        self.deadline = math.inf
        self._limits, self._range = Timeouts(), (0.0, 1.0)
        self.alive = True
        self.answered = False
        """Whether it has ever been ready."""
        self.last_words = ""
        """Once it is dead: the last line that it wrote to standard error."""

    @property
    def pid(self) -> int:
        """Process id, also the id of its session."""
        return self._process.pid

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def quiet(self) -> bool:
        """Whether it lives and waits for a request: nothing is left of an earlier episode."""
        try:
            self._socket.settimeout(0)
            return self._socket.recv(1, socket.MSG_PEEK) is None
        except BlockingIOError:
            return self.alive and not self._buffer and self._process.poll() is None
        except OSError:
            return False

    def begin(self, job: Job, request: dict[str, Any]) -> Outcome | None:
        """Send a request. An Outcome only if it cannot be sent."""
        self._request += 1
        self._op, self._episodes = request["op"], len(request.get("episodes", ()))
        self._began = time.monotonic()
        self._limits = job.environment.timeouts
        self._range = job.task.reward_range_in(job.environment)
        self._stage = "setup" if self.answered else "start"
        self.deadline = self._began + (self._limits.setup if self.answered else START_SECONDS)
        message = {**request, "id": self._request}
        if self._held[0] is not job.environment:
            message["environment"] = job.environment
        if self._held[1] is not job.task:
            truth = job.task.ground_truth if job.environment.env_type == "bfcl" else None  # the rest is scored by checks
            message["task"] = dataclasses.replace(job.task, ground_truth=truth)
        try:
            body = json.dumps(message, default=_table).encode()
        except (TypeError, ValueError, RecursionError) as error:
            return self._outcome("crashed", f"{job.task.key}: environment, task or call is not plain JSON ({error})")
        self._held = (job.environment, job.task)
        try:
            self._socket.settimeout(START_SECONDS)
            self._socket.sendall(struct.pack("!I", len(body)) + body)
        except OSError:
            return self._died()
        return None

    def advance(self) -> Outcome | None:
        """Take in what the worker has sent, and judge its clock. None while it is busy."""
        try:
            self._socket.settimeout(0)
            chunk = self._socket.recv(2**18)
            if not chunk:
                return self._died()
            self._buffer += chunk
        except BlockingIOError:
            if time.monotonic() < self.deadline:
                return None
            return self._lost("timeout", f"{self._stage} took longer than {self._limit():g} s")
        except OSError:
            return self._died()
        while (frame := self._frame()) is not None:
            outcome = self._take(frame)
            if outcome is not None:
                return outcome
        return self._lost("crashed", f"the worker announced a reply of over {MAX_FRAME} bytes") if self._oversized() else None

    def ask(self, job: Job, request: dict[str, Any]) -> Outcome:
        """One request, waited for. Blocks: call it from a thread if others must go on."""
        outcome = self.begin(job, request)
        with selectors.DefaultSelector() as selector:
            if outcome is None:
                selector.register(self, selectors.EVENT_READ)
            while outcome is None:
                selector.select(max(self.deadline - time.monotonic(), 0))
                outcome = self.advance()
        return outcome

    def kill(self) -> None:
        """End the process, its group, and any descendant that left the group; remove its folder. Idempotent; a forked copy does nothing."""
        if not self.alive or os.getpid() != self._owner:
            return
        self.alive = False
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()
        self._process.wait()
        self.last_words = _last_line(Path(self._folder) / "stderr")
        sweep(self._token)
        self._socket.close()
        os.close(self._lifeline)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _frame(self) -> bytes | None:
        if len(self._buffer) < 4 or self._oversized():
            return None
        end = 4 + struct.unpack_from("!I", self._buffer)[0]
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[4:end])
        del self._buffer[:end]
        return frame

    def _oversized(self) -> bool:
        return len(self._buffer) >= 4 and struct.unpack_from("!I", self._buffer)[0] > MAX_FRAME

    def _take(self, frame: bytes) -> Outcome | None:
        """Believe nothing: the right form, for the request at hand."""
        try:
            message = json.loads(frame)
        except (ValueError, RecursionError):
            message = None
        if message == {"id": 0, "ready": True} and not self.answered:
            self.answered = True
            return None
        if not isinstance(message, dict) or message.get("id") != self._request:
            return self._lost("crashed", "the worker sent something that is no reply: environment code wrote to its channel")
        if message.get("stage") in ("setup", "step", "score"):
            self._stage = message["stage"]
            self.deadline = time.monotonic() + self._limit()
            return None
        reply = message.get("done")
        if not isinstance(reply, dict):
            return self._lost("crashed", "the worker sent something that is no reply: environment code wrote to its channel")
        return self._judge(reply)

    def _judge(self, reply: dict[str, Any]) -> Outcome:
        if "failed" in reply:
            status: Status = "out_of_memory" if reply["failed"] == "out_of_memory" else "crashed"
            detail = str(reply.get("detail", ""))[:500]
            return self._outcome(status, detail) if reply.get("clean") is True else self._lost(status, detail)
        if not sound(self._op, reply, self._episodes):
            return self._lost("crashed", "the worker sent something that is no reply: environment code wrote to its channel")
        for play in reply["plays"] if self._op == "play_each" else [reply]:
            if "reward" in play and not self._range[0] - 1e-9 <= play["reward"] <= self._range[1] + 1e-9:
                return self._lost("crashed", f"reward {play['reward']} is outside the task's reward_range {list(self._range)}")
        self.deadline = math.inf
        return Outcome(status="ok", reply=reply, seconds=time.monotonic() - self._began)

    def _limit(self) -> float:
        return START_SECONDS if self._stage == "start" else getattr(self._limits, self._stage)

    def _died(self) -> Outcome:
        """The channel closed: the process ended, or environment code closed it and lives on."""
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return self._lost("crashed", f"environment code closed the worker's channel during {self._stage}")
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return self._lost("crashed", f"the process {ending} during {self._stage}")

    def _lost(self, status: Status, detail: str) -> Outcome:
        outcome = self._outcome(status, detail)
        self.kill()
        return outcome

    def _outcome(self, status: Status, detail: str) -> Outcome:
        self.deadline = math.inf
        return Outcome(status=status, detail=detail, seconds=time.monotonic() - self._began)


def _table(record: Any) -> dict[str, Any]:
    """A record's fields by name, uncopied; anything else is no plain JSON."""
    if not dataclasses.is_dataclass(record):
        raise TypeError(f"{type(record).__name__} is no plain JSON")
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _clean_environment(folder: str, token: str) -> dict[str, str]:
    """All that environment code can see of ours: no tokens, no home, one thread a library, a fixed hash seed and time zone."""
    clean = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HOME": folder,
        "TMPDIR": folder,
        "PYTHONPATH": str(Path(envsched_gnn.__file__).parent.parent),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "ENVSCHED_WORKER": token,
    }
    if "LD_LIBRARY_PATH" in os.environ:
        clean["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return clean


def _process_limit() -> int:
    """RLIMIT_NPROC counts all of a user's processes and threads: those there are, and MAX_PROCESSES more. No limit without /proc."""
    if not Path("/proc").is_dir():
        return 2**31 - 1
    count = 0
    for folder in Path("/proc").glob("[0-9]*/task"):
        try:
            count += len(os.listdir(folder)) if folder.stat().st_uid == os.getuid() else 0
        except OSError:
            continue
    return count + MAX_PROCESSES


def sweep(token: str) -> None:
    """Kill what still carries a worker's token in its environment: descendants that left its session. Linux only."""
    mark = f"ENVSCHED_WORKER={token}".encode()
    for _ in range(20):
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not found:
            return
        time.sleep(0.01)


def _last_line(path: Path) -> str:
    return _read(path)[-2000:].decode("utf-8", "replace").strip().rpartition("\n")[2][:300]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
