"""Whole files: written so that a reader, or a kill at any moment, finds the old content or the new, never a part.

Knows: temporary files, what makes a rename durable, which numbers JSON lacks, where a user's cache is.
Does not know: what stands in a file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


def cache_folder() -> Path:
    """Where what can be made again is kept: `$XDG_CACHE_HOME/envsched_gnn`, `~/.cache/envsched_gnn` where that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envsched_gnn"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path` that takes its place when the block ends; if the block raises, nothing has changed.

    A link stays and its target is replaced. What is no file, as a pipe or a terminal, cannot be replaced and is written to.

    Raises:
        OSError: the folder is missing or cannot be written, or the disk is full.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file in one step."""
    with replacing(path) as file:
        file.write(content)


def without_nan(value: Any) -> Any:
    """The same plain value with None for NaN and infinity, which JSON lacks; tuples become lists."""
    match value:
        case dict():
            return {key: without_nan(entry) for key, entry in value.items()}
        case list() | tuple():
            return [without_nan(entry) for entry in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
