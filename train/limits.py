"""Limits that a worker process puts on itself before it runs environment code.

Knows: resource limits, how to deny processes and signals whoever runs this, how to die with the parent.
Does not know: episodes, the protocol, time limits.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import struct
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


SYSTEM_CALLS = {"x86_64": (0xC000003E, 56, 62, (57, 58, 59, 322)), "aarch64": (0xC00000B7, 220, 129, (221, 281))}
"""By machine: its audit number, the numbers of clone and kill, and of fork, vfork, execve, execveat as far as it has them (Linux)."""
CLONE3 = 435
CLONE_THREAD = 0x10000


def limit(memory_mb: int, processes: int) -> None:
    """Limits that hold for this process and all it might start. RLIMIT_NPROC binds ordinary users only."""
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


def filter_system_calls() -> bool:
    """Have the kernel deny new processes, programs and signals to others, also to native code and to root. False where it cannot.

    A seccomp filter: a wrong architecture, fork, vfork, execve, execveat, kill of others, and clone without CLONE_THREAD give EPERM;
    clone3 gives ENOSYS, after which the C library falls back on clone, so that threads still work.
    """
    calls = SYSTEM_CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return False
    architecture, clone, kill, denied = calls
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, deny, unknown = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
    number, machine, first_argument = 0, 4, 16
    program = [(load, 0, 0, machine), (equal, 1, 0, architecture), (give, 0, 0, deny), (load, 0, 0, number)]
    for call in denied:
        program += [(equal, 0, 1, call), (give, 0, 0, deny)]
    program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, deny)]
    program += [(equal, 0, 1, CLONE3), (give, 0, 0, unknown)]
    program += [(equal, 0, 4, kill), (load, 0, 0, first_argument), (equal, 0, 1, os.getpid()), (give, 0, 0, allow), (give, 0, 0, deny)]
    program += [(equal, 1, 0, clone), (give, 0, 0, allow), (load, 0, 0, first_argument), (any_bit, 0, 1, CLONE_THREAD)]
    program += [(give, 0, 0, allow), (give, 0, 0, deny)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None)
    no_new_privileges, set_filter = 38, 22
    libc.prctl(no_new_privileges, 1, 0, 0, 0)
    return libc.prctl(set_filter, 2, header, 0, 0) == 0


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
