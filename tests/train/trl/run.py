"""A run that another process can kill: two passes over each round, two micro-batches an update, a checkpoint after every update.

    python -m tests.train.trl.run FOLDER [WHEN NUMBER]

WHEN: `update` kills before update NUMBER, `round` when round NUMBER has reported, `save` in the midst of checkpoint NUMBER.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from envsched_gnn.ledger import Ledger
from envsched_gnn.train.trl.trainer_state import newest_checkpoint
from tests.train.trl import helpers as tiny

SETTINGS = {"num_iterations": 2, "gradient_accumulation_steps": 2, "max_steps": 8, "save_strategy": "steps", "save_steps": 1}
"""Four rounds of two updates, so every other checkpoint lies within a round."""


def die() -> None:
    """As the kernel's out-of-memory killer would have it."""
    os.kill(os.getpid(), signal.SIGKILL)


class Killer(TrainerCallback):
    """Kills before an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.update:
            die()


class Fragile(tiny.ScheduledGRPO):
    """Dies when half of a checkpoint is written."""

    fatal_save = -1

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.state.global_step == self.fatal_save:
            die()


def run(folder: Path, when: str = "", number: int = -1, **changes: Any) -> Any:
    """Train in `folder` from its newest checkpoint on; returns the trainer."""
    ledger = Ledger(folder / "ledger.sqlite")
    keep = tiny.keep_in(ledger)

    def on_round(selection: Any, groups: Any) -> None:
        keep(selection, groups)
        if when == "round" and selection.step == number:
            die()

    callbacks = [Killer(number)] if when == "update" else []
    settings = SETTINGS | {"per_device_train_batch_size": 8, "save_total_limit": 3} | changes
    trainer = tiny.trainer(folder, Fragile, on_round=on_round, callbacks=callbacks, **settings)
    trainer.fatal_save = number if when == "save" else -1
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
    ledger.close()
    return trainer


if __name__ == "__main__":
    run(Path(sys.argv[1]), *(sys.argv[2:3]), *map(int, sys.argv[3:4]))
