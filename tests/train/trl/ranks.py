"""What each of two processes does in the tests of distributed training.

    accelerate launch --cpu --num_processes 2 -m tests.train.trl.ranks FOLDER TASK

TASK `train` trains, and again from the checkpoint in the midst of the second round. TASK `break` gives the second process other rows, then
lets the hook of the first raise, then kills the second in its second round. Each rank writes what came of it to `rank-N.json`.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from tests.train.trl import helpers as tiny

SETTINGS = {
    "num_iterations": 2,
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 6,
    "num_generations": 4,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 3,
    "ddp_timeout": 60,
}
"""Rounds of 24 rollouts of 6 tasks, 12 rollouts a rank, in micro-batches of 6."""


def rewards(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """As `share_low`; the last rollout of rank 1 never has a reward."""
    values: list[float | None] = [*tiny.share_low(completion_ids)]
    return [*values[:-1], None] if PartialState().process_index == 1 and len(values) == 12 else values


def train(folder: Path, resume: str | None = None, **changes: Any) -> dict[str, Any]:
    """Train; what this rank saw of every round."""
    seen: list[Any] = []

    class Noting(tiny.ScheduledGRPO):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            now = [asdict(self.envsched_selection), [asdict(group) for group in self.envsched_groups]]
            mine = [row["task_id"] for row in self.envsched_inputs]
            seen.append({"round": now, "mine": mine, "advantages": batch["advantages"].tolist()})
            return batch

    told: list[int] = []
    trainer = tiny.trainer(
        folder,
        Noting,
        changes.pop("reward_funcs", rewards),
        on_round=changes.pop("on_round", lambda selection, groups: told.append(selection.step)),
        **SETTINGS | changes,
    )
    trainer.train(resume_from_checkpoint=resume)
    total = sum(parameter.double().abs().sum().item() for parameter in trainer.model.parameters())
    return {"seen": seen, "told": told, "weights": total, "asked": trainer._envsched_scheduler.metrics()["envsched/rounds"]}


def broken(folder: Path) -> Iterator[str]:
    """The errors of this rank, one after the other."""
    other = tiny.rows().select(range(11, -1, -1))
    for changes in (
        {"train_dataset": other if PartialState().process_index == 1 else tiny.rows()},
        {"on_round": refuse},
        {"reward_funcs": mortal},
    ):
        try:
            train(folder, **changes)
            yield "no error"
        except Exception as error:
            yield f"{type(error).__name__}: {error}"


def refuse(selection: Any, groups: Any) -> None:
    """A hook that cannot write."""
    raise OSError(28, "No space left on device")


def mortal(completion_ids: list[list[int]], trainer_state: Any, **_: Any) -> list[float]:
    """The second rank dies in its second round."""
    if PartialState().process_index == 1 and trainer_state.global_step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return tiny.share_low(completion_ids)


def main(folder: Path, task: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    rank = PartialState(cpu=True, timeout=timedelta(seconds=60)).process_index
    results = []
    for result in [train(folder / "a"), train(folder / "b", str(folder / "a" / "checkpoint-3"))] if task == "train" else broken(folder):
        results.append(result)
        (folder / f"rank-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
