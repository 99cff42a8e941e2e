"""Limits that a worker process puts on itself before it runs environment code.

Knows: resource limits, how to deny processes and signals whoever runs this, how to die with the parent.
Does not know: episodes, the protocol, time limits.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
from typing import Any

MAX_FILE_BYTES = 64 * 2**20
"""Largest file that environment code may write (ours)."""
MAX_OPEN_FILES = 256
"""(ours)"""
FORBIDDEN = frozenset(
    {"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system", "os.killpg", "subprocess.Popen", "pty.spawn"}
)
"""Audit events of starting another process, or signalling others. Denied, and the rollout is lost (ours)."""

violations: list[str] = []
"""Forbidden events since it was last cleared."""


def limit(memory_mb: int, processes: int) -> None:
    """Limits that hold for this process and all it might start. RLIMIT_NPROC binds ordinary users; root is held by the audit hook."""
    size = memory_mb * 2**20
    for which, value in (
        (resource.RLIMIT_AS, size),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_NPROC, processes),
    ):
        _, hard = resource.getrlimit(which)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bound, bound))


def forbid_processes() -> None:
    """Deny fork, exec, spawn and signals to others, whoever runs this, and remember the attempt."""
    pid = os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN or (event == "os.kill" and arguments[0] != pid):
            violations.append(event)
            raise PermissionError(f"environment code may not start or signal processes ({event})")

    sys.addaudithook(hook)


def die_with_parent(lifeline: int) -> None:
    """SIGIO, whose default action is to end the process, arrives when the parent's end of the pipe is gone, even amid a hang."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        gone = os.read(lifeline, 1) == b""
    except BlockingIOError:
        gone = False
    if gone:
        os._exit(0)
