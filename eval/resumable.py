"""A run that is lines and checkpoints, as comparisons and the headline experiment make them.

Knows: what a checkpoint holds, how files are cut back to it when a run goes on.
Does not know: steps, policies, engines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from envsched_gnn.errors import CheckpointError
from envsched_gnn.files import write_atomic
from envsched_gnn.pool.pool import Pool
from envsched_gnn.train import checkpoint

Line = dict[str, Any]


class Stateful(Protocol):
    """A part of a run that a step changes."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore what `state_dict` gave."""
        ...


@dataclass(frozen=True, kw_only=True)
class Resumable:
    """What goes on with the same bits where it was stopped."""

    folder: Path
    pool: Pool
    parts: Mapping[str, Stateful]
    files: tuple[str, ...]
    """JSONL files whose lines have a `step`."""

    def save(self, step: int, charged: int) -> None:
        """Keep the state before `step`, and the rollouts charged so far."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        about = {"step": step, "charged": charged, "pool_hash": self.pool.content_hash}
        checkpoint.save(self.folder / "checkpoint", step, about | states)

    def restore(self) -> tuple[int, int]:
        """The step to go on with and the rollouts charged before it; files are cut back to it.

        Raises:
            CheckpointError: begun on another pool.
        """
        state, _ = checkpoint.load_newest(self.folder / "checkpoint")
        if state is not None:
            if state["pool_hash"] != self.pool.content_hash:
                raise CheckpointError(f"{self.folder}: begun on another pool than is there now. Give another folder, or restore the pool.")
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
        step, charged = (state["step"], state["charged"]) if state is not None else (0, 0)
        for name in self.files:
            cut(self.folder / name, step)
        return step, charged


def cut(path: Path, step: int) -> None:
    """Keep the lines of steps before `step`; the file is there afterwards."""
    write_atomic(path, b"".join(json.dumps(line).encode() + b"\n" for line in lines(path) if line["step"] < step))


def lines(path: Path) -> list[Line]:
    """The whole lines of a file; none if it is not there."""
    content = path.read_bytes() if path.is_file() else b""
    return [json.loads(line) for line in content.split(b"\n")[:-1]]
