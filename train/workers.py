"""Worker processes for many episodes: leased, shared out, replaced.

Knows: which worker serves which request, replacement of the dead, the end of all of them.
Does not know: the protocol, what an episode does, policies.
"""

from __future__ import annotations

import selectors
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

from envsched_gnn.errors import EnvSchedError
from envsched_gnn.train.worker import Job, Outcome, RolloutFailure, Worker

__all__ = ["Job", "Outcome", "RolloutFailure", "Worker", "WorkerPool"]

START_ATTEMPTS = 3
"""Workers in a row that may die before their first answer (ours)."""


class WorkerPool:
    """Workers for many jobs. Context manager; no process is left after `close`, also when an exception or Ctrl-C ends the block.

    Args:
        workers: processes that `run` uses; each plays one episode at a time.
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
        """A live worker for the caller alone, until `release`. As many are started as are on lease at a time, also beyond `workers`.

        Raises:
            EnvSchedError: the pool is closed.
        """
        if self._closed:
            raise EnvSchedError("the worker pool is closed. Open a new one.")
        while self._idle:
            worker = self._idle.pop()
            if worker.quiet():
                return worker
            worker.kill()
            self._all.discard(worker)
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
