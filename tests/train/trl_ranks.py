"""What each of two processes does in the tests of distributed training.

    accelerate launch --cpu --num_processes 2 -m tests.train.trl_ranks FOLDER TASK

TASK `train` trains, and again from the checkpoint in the midst of the second round; `disagree` gives the second process other rows; `fail`
lets the hook of the first raise, `die` kills the second in its second round. Each rank writes `rank-N.json`.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from tests.train import trl_helpers as tiny

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


def outcome(folder: Path, task: str) -> Any:
    """Of one task on this rank."""
    second = PartialState().process_index == 1
    try:
        match task:
            case "train":
                return [train(folder / "a"), train(folder / "b", str(folder / "a" / "checkpoint-3"))]
            case "disagree":
                return train(folder / "a", train_dataset=tiny.rows().select([*range(11, -1, -1)] if second else range(12)))
            case "fail":
                return train(folder / "a", on_round=refuse)
            case "die":
                return train(folder / "a", reward_funcs=mortal)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def refuse(selection: Any, groups: Any) -> None:
    """A hook that cannot write."""
    raise OSError(28, "No space left on device")


def mortal(completion_ids: list[list[int]], trainer_state: Any, **_: Any) -> list[float]:
    """The second rank dies in its second round."""
    if PartialState().process_index == 1 and trainer_state.global_step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return tiny.share_low(completion_ids)


if __name__ == "__main__":
    torch.set_num_threads(1)
    state = PartialState(cpu=True, timeout=timedelta(seconds=60))
    begin = time.monotonic()
    result = outcome(Path(sys.argv[1]), sys.argv[2])
    path = Path(sys.argv[1]) / f"rank-{state.process_index}.json"
    path.write_text(json.dumps({"result": result, "seconds": time.monotonic() - begin}))
