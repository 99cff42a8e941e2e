"""The scheduler's part of a trainer's checkpoint: a folder `envsched` inside `checkpoint-N`.

Knows: the files, which checkpoint of an output folder is the newest whole one.
Does not know: schedulers, trainers, when a checkpoint is due.

It holds the scheduler and the number of rounds that have reported. A checkpoint between two updates of one round also holds
`rank-P-of-W`, the rollouts that rank P still has to train on. Both are written before the trainer's own files, whose last,
`trainer_state.json`, makes the checkpoint whole.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from envsched_gnn.errors import CheckpointError
from envsched_gnn.train import checkpoint

FOLDER = "envsched"
WHOLE = "trainer_state.json"


def save_scheduler(folder: Path, rounds: int, state: dict[str, Any], processes: int) -> None:
    """Write the scheduler's state; a checkpoint of an earlier try that is being replaced is no longer whole.

    Raises:
        OSError, RuntimeError: it could not be written.
    """
    (folder / WHOLE).unlink(missing_ok=True)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    checkpoint.save(folder / FOLDER, rounds, {"rounds": rounds, "processes": processes, "scheduler": state})


def load_scheduler(folder: Path) -> dict[str, Any]:
    """`{"rounds", "processes", "scheduler"}` of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    state, problems = checkpoint.load_newest(folder / FOLDER)
    if state is None:
        found = problems[0] if problems else "it was written without a scheduler"
        raise CheckpointError(
            f"{folder}: holds no scheduler state: {found}; expected a checkpoint of this trainer. "
            "Resume from another one, or load its weights as the model and start a new run."
        )
    return state


def save_rollouts(folder: Path, place: tuple[int, int], step: int, inputs: list[dict[str, Any]]) -> None:
    """Keep what the rank `place = (rank, ranks)` still has to train on: micro-step and buffered batches of its trainer.

    Raises:
        OSError, RuntimeError: it could not be written.
    """
    checkpoint.save(_rollouts(folder, place), step, {"step": step, "inputs": inputs})


def load_rollouts(folder: Path, place: tuple[int, int]) -> tuple[int, list[dict[str, Any]]] | None:
    """(micro-step, batches), or None where this rank has none."""
    state, _ = checkpoint.load_newest(_rollouts(folder, place))
    return None if state is None else (state["step"], state["inputs"])


def has_rollouts(folder: Path) -> bool:
    """Whether any rank had rollouts left to train on."""
    return any((folder / FOLDER).glob("rank-*"))


def _rollouts(folder: Path, place: tuple[int, int]) -> Path:
    return folder / FOLDER / "rank-{}-of-{}".format(*place)


def newest_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint of a trainer with scheduler that was written to the end; None if there is none.

    A kill in the midst of a save leaves a newer, half-written folder, which `transformers` would resume from.
    """
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    folders.sort(key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True)
    return next((folder for folder in folders if _is_whole(folder)), None)


def _is_whole(folder: Path) -> bool:
    try:
        json.loads((folder / WHOLE).read_text(encoding="utf-8"))
        processes = load_scheduler(folder)["processes"]
    except (OSError, ValueError, CheckpointError):
        return False
    return len(list(folder.glob("rng_state*.pth"))) in (0, processes)
