"""Checkpoints: one file a round, written so that a kill at any moment leaves a whole one behind.

Knows: the checksum, which checkpoint is the newest whole one.
Does not know: what a state holds.
"""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import Any

from envsched_gnn.errors import CheckpointError
from envsched_gnn.files import write_atomic

MAGIC = b"envsched-checkpoint-1\n"
KEEP = 2
"""The newest and the one before it."""


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state before round `step`, then drop all but the newest two."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:06d}.pt"
    write_atomic(path, MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    for old in _files(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint; only plain data and tensors, no code.

    Raises:
        CheckpointError: the file is half-written, damaged or no checkpoint.
    """
    import torch

    content = path.read_bytes()
    header, payload = content[: len(MAGIC) + 65], content[len(MAGIC) + 65 :]
    if header != MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n":
        raise CheckpointError(f"{path}: half-written or damaged ({len(content)} bytes); expected a checkpoint whose checksum holds.")
    try:
        return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); expected a checkpoint of this version. Delete it.") from None


def load_newest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint, or None; and one line for each damaged one that was passed over."""
    problems: list[str] = []
    for path in reversed(_files(folder)):
        try:
            return load(path), problems
        except CheckpointError as error:
            problems.append(str(error))
    return None, problems


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.glob("step-*.pt") if re.fullmatch(r"step-\d{6,}\.pt", path.name))
    return sorted(found, key=lambda path: int(path.stem.removeprefix("step-")))
