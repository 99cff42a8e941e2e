"""Work that one process, or every process, of a distributed run does, with errors that all of them see.

Knows: collectives of objects.
Does not know: what the work is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list, gather_object

from envsched_gnn.errors import EnvSchedError

T = TypeVar("T")


def everywhere(accelerator: Any, work: Callable[[], object]) -> None:
    """Do `work` on every rank; an error of one is raised on all, so that none waits for another that has given up.

    Raises:
        EnvSchedError: another rank failed; its error, in words. A rank's own error is raised as it is.
    """
    error: Exception | None = None
    try:
        work()
    except Exception as caught:
        error = caught
    found = gather_object([None if error is None else f"rank {accelerator.process_index}: {type(error).__name__}: {error}"])
    if error is not None:
        raise error
    failed = [text for text in found if text is not None]
    if failed:
        raise EnvSchedError(failed[0])


def from_main(accelerator: Any, work: Callable[[], T]) -> T:
    """What `work` returns on rank 0, on every rank; an error as in `everywhere`."""
    box: list[Any] = [None]

    def on_main() -> None:
        if accelerator.is_main_process:
            box[0] = work()

    everywhere(accelerator, on_main)
    broadcast_object_list(box, from_process=0)
    return box[0]
