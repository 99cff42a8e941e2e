"""Worker processes: started clean, watched, killed as a group, replaced.

Knows: how to start one, the protocol of `worker_main`, deadlines of setup, step and score, what a death means.
Does not know: what an episode does, policies, groups.
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
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import envsched_gnn
from envsched_gnn.errors import EnvironmentFailureError, EnvSchedError
from envsched_gnn.records import Environment, Status, Task, Timeouts

START_SECONDS = 60.0
"""A fresh interpreter that has not answered by then will not (ours; it takes about 0.1 s on an idle machine)."""
MAX_FRAME = 2**20
"""Bytes of a reply; a worker that announces more is killed (ours)."""
MAX_PROCESSES = 256
"""Processes and threads that a worker may add to those its user already has; root is bound by the audit hook instead (ours)."""
START_ATTEMPTS = 3
"""Workers in a row that may die before their first answer (ours)."""


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
        self._buffer = bytearray()
        self._request = 0
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

    def begin(self, job: Job, request: dict[str, Any]) -> Outcome | None:
        """Send a request. An Outcome only if it cannot be sent."""
        self._request += 1
        self._began = time.monotonic()
        self._limits = job.environment.timeouts
        self._range = job.task.reward_range or job.environment.reward_range
        self._stage = "setup" if self.answered else "start"
        self.deadline = self._began + (self._limits.setup if self.answered else START_SECONDS)
        message = {**request, "id": self._request}
        if self._held[0] is not job.environment:
            message["environment"] = dataclasses.asdict(job.environment)
        if self._held[1] is not job.task:
            message["task"] = dataclasses.asdict(dataclasses.replace(job.task, ground_truth=_needed_truth(job)))
        try:
            body = json.dumps(message).encode()
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
        """End the process, its group, and any descendant that left the group; remove its folder. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()
        self._process.wait()
        self.last_words = _last_line(Path(self._folder) / "stderr")
        _sweep(self._token)
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
        if "reward" in reply and not _within(reply["reward"], self._range):
            return self._lost("crashed", f"reward {str(reply['reward'])[:50]} is outside the task's reward_range {list(self._range)}")
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


class WorkerPool:
    """Workers for many jobs. Context manager; no process is left after `close`, also when an exception or Ctrl-C ends the block.

    Args:
        workers: processes; each runs one episode at a time.
        memory_mb: address-space limit of each, MiB.
    """

    def __init__(self, workers: int = 2, memory_mb: int = 2048) -> None:
        self._size, self._memory_mb = workers, memory_mb
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._failed_starts = 0
        self._closed = False
        self._finalizer = weakref.finalize(self, _kill_all, self._all)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker. Idempotent."""
        self._closed = True
        self._idle.clear()
        _kill_all(self._all)

    def lease(self) -> Worker:
        """A live worker for the caller alone, until `release`.

        Raises:
            EnvSchedError: the pool is closed, or workers do not start here.
        """
        if self._closed:
            raise EnvSchedError("the worker pool is closed. Open a new one.")
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
        worker = Worker(self._memory_mb)
        self._all.add(worker)
        return worker

    def release(self, worker: Worker, *, reusable: bool = True) -> None:
        """Give a worker back; one that is dead or not `reusable` is replaced at the next lease.

        Raises:
            EnvSchedError: START_ATTEMPTS workers in a row died before they were ready.
        """
        died = not worker.alive
        if worker.alive and reusable and not self._closed:
            self._idle.append(worker)
        else:
            worker.kill()
            self._all.discard(worker)
        self._failed_starts = self._failed_starts + 1 if died and not worker.answered else 0
        if self._failed_starts >= START_ATTEMPTS:
            raise EnvSchedError(
                f"{START_ATTEMPTS} worker processes in a row ended before they were ready (memory limit {self._memory_mb} MiB; "
                f"{worker.last_words or 'they left no message'}). Raise rollout.memory_mb, or repair the installation of envsched-gnn."
            )

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, int, Outcome]]:
        """Serve all requests of all jobs; yields (job, request, outcome) as they finish. A worker stays with its job while it lasts."""
        queue = _Queue(jobs)
        busy: dict[Worker, tuple[int, int]] = {}
        selector = selectors.DefaultSelector()
        try:
            while queue.waiting or busy:
                for worker, position, outcome in self._start(queue, busy, jobs, selector):
                    self.release(worker)
                    yield *position, outcome
                if not busy:
                    continue
                selector.select(max(min(worker.deadline for worker in busy) - time.monotonic(), 0))
                for worker in list(busy):
                    outcome_now = worker.advance()
                    if outcome_now is not None:
                        selector.unregister(worker)
                        position = busy.pop(worker)
                        queue.last[worker] = position[0]
                        self.release(worker)
                        yield *position, outcome_now
        finally:
            for worker in busy:
                self.release(worker, reusable=False)
            selector.close()

    def _start(
        self, queue: _Queue, busy: dict[Worker, tuple[int, int]], jobs: Sequence[Job], selector: selectors.BaseSelector
    ) -> Iterator[tuple[Worker, tuple[int, int], Outcome]]:
        """Give every free slot a request; yields those that could not even be sent."""
        while len(busy) < self._size and queue.waiting:
            worker = self.lease()
            job, number = queue.take(worker)
            outcome = worker.begin(jobs[job], jobs[job].requests[number])
            if outcome is not None:
                yield worker, (job, number), outcome
            else:
                busy[worker] = (job, number)
                selector.register(worker, selectors.EVENT_READ)


class _Queue:
    """Requests not yet served: a worker's last job first, then jobs nobody has begun, then help where work is left."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._left = [deque(range(len(job.requests))) for job in jobs]
        self._fresh = deque(job for job, left in enumerate(self._left) if left)
        self._open = deque(self._fresh)
        self.waiting = sum(len(left) for left in self._left)
        self.last: dict[Worker, int] = {}

    def take(self, worker: Worker) -> tuple[int, int]:
        """(job, request) for this worker."""
        job = self.last.get(worker, -1)
        if job < 0 or not self._left[job]:
            job = self._fresh.popleft() if self._fresh else self._next_open()
        self.waiting -= 1
        return job, self._left[job].popleft()

    def _next_open(self) -> int:
        while not self._left[self._open[0]]:
            self._open.popleft()
        return self._open[0]


def _kill_all(workers: set[Worker]) -> None:
    for worker in list(workers):
        worker.kill()
    workers.clear()


def _within(reward: object, span: tuple[float, float]) -> bool:
    return isinstance(reward, float) and span[0] - 1e-9 <= reward <= span[1] + 1e-9


def _needed_truth(job: Job) -> Any:
    """A python_class task is scored by its checks, BFCL by its possible answers."""
    return job.task.ground_truth if job.environment.env_type == "bfcl" else None


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
    """RLIMIT_NPROC counts all processes and threads of a user: those there are, and MAX_PROCESSES more."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*/task"):
        try:
            count += len(os.listdir(folder)) if folder.stat().st_uid == os.getuid() else 0
        except OSError:
            continue
    return count + MAX_PROCESSES


def _sweep(token: str) -> None:
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
