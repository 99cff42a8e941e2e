"""Scheduling inside TRL's GRPOTrainer and RLOOTrainer.

Knows: when a trainer generates, which rows it trains on, ranks, what a checkpoint of a round holds.
Does not know: how tasks are chosen (schedule), what environments do, how advantages and losses are computed (TRL).

A *round* is one generation batch: one Selection, however many updates and passes are made from it. Rounds are counted, not optimiser steps.
The scheduler of rank 0 decides when the trainer is about to generate, so it has seen the rewards of the round before; the data loader only
ticks. Raw rewards are fed back where all ranks' rewards are first together.

A round that has reported when a checkpoint is written is in the scheduler's state. If updates from it are still due, its rollouts are in
the checkpoint too, and the resumed run goes on with them; where they are missing (another number of processes), these updates are left out.
A round that was interrupted before it reported is repeated with the same selection. So no round is lost, and none is counted twice.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object, send_to_device
from torch.utils.data import Sampler

from envsched_gnn.errors import CheckpointError, ConfigError, EnvSchedError
from envsched_gnn.records import RolloutGroup, Selection
from envsched_gnn.schedule import Scheduler
from envsched_gnn.train.trl import feedback, trainer_state
from envsched_gnn.train.trl.preflight import check_settings, check_tasks, rows_by_task
from envsched_gnn.train.trl.ranks import everywhere, from_main

log = logging.getLogger(__name__)

OnRound = Callable[[Selection, tuple[RolloutGroup, ...]], object]

if TYPE_CHECKING:

    class Trainer:
        """The part of TRL's trainers that is used or overridden here; `tests/train/trl/test_mixin.py` holds it against the real ones."""

        _step: int
        _buffered_inputs: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def _get_train_sampler(self, dataset: Any = None) -> Any: ...
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]: ...
        def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor: ...
        def _save_checkpoint(self, model: Any, trial: Any) -> None: ...
        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...
else:
    Trainer = object


class Clock(Sampler):
    """Ticks for the data loader: the first row over and over, as often as asked. Which rows are trained on is decided elsewhere."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[int]:
        return itertools.repeat(0, self._length)

    def __len__(self) -> int:
        return self._length


@dataclass(kw_only=True)
class Round:
    """The round being generated."""

    selection: Selection
    slots: tuple[str, ...]
    """Task of each group of the generation batch."""
    policy_version: int
    """Optimiser updates before it."""
    masked: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """[rows of all ranks], once the rewards are there."""


class EnvSchedMixin(Trainer):
    """`class Scheduled(EnvSchedMixin, GRPOTrainer)`: GRPO (or RLOO) on the tasks that a scheduler proposes.

    Args:
        scheduler: only the one of rank 0 is asked.
        on_round: called on rank 0 with the selection and its groups when a round has reported; an error it raises ends the run.
        shadow: the trainer keeps its own order, and the scheduler predicts and learns (`EnvSched.shadow`).
        Everything else is the trainer's own. `train_dataset` is a `datasets.Dataset` with a column `task_id` (`ENV_ID/TASK_ID`) and a
        row for every task that may be proposed; `max_steps` has to be set.

    Attributes:
        envsched_selection, envsched_groups: of the latest round, on every rank; raw rewards, in rank order.
        envsched_rounds: number of the next round, from 0, or from where the scheduler has got to with another trainer.
        envsched_inputs: rows of the data set that this rank generates for now; TRL hands a `rollout_func` only their prompts.

    Raises:
        ConfigError: the settings, the data set and the scheduler do not fit together.
    """

    envsched_selection: Selection
    envsched_groups: tuple[RolloutGroup, ...]
    envsched_rounds: int
    envsched_inputs: list[dict[str, Any]]

    def __init__(self, *args: Any, scheduler: Scheduler, on_round: OnRound | None = None, shadow: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._envsched_start(scheduler, on_round, shadow)

    def _envsched_start(self, scheduler: Scheduler, on_round: OnRound | None, shadow: bool) -> None:
        tasks = check_settings(self, shadow)
        self._envsched_rows = rows_by_task(self.train_dataset)
        first = from_main(self.accelerator, lambda: check_tasks(scheduler, self._envsched_rows, tasks, shadow))
        digest = hashlib.sha256("\n".join(self._envsched_rows).encode("utf-8", "surrogatepass")).hexdigest()
        if len(set(gather_object([digest]))) > 1:
            raise ConfigError(
                "train_dataset: its column task_id differs between processes. Give every process the same rows in the same order."
            )
        self._envsched_scheduler, self._envsched_on_round, self._envsched_shadow = scheduler, on_round, shadow
        self._envsched_round: Round | None = None
        self.envsched_selection, self.envsched_groups, self.envsched_rounds = Selection(step=first, picks=()), (), first

    # ---- a round ----

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """A clock that outlasts the run: no pool is too small or too large for an epoch."""
        if self._envsched_shadow:
            return super()._get_train_sampler(dataset)
        return Clock(self.args.max_steps * self.args.gradient_accumulation_steps * self.args.generation_batch_size)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """In training, one round: propose, generate and report, mask what failed. Evaluation passes through."""
        self.envsched_inputs = inputs
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        slots = self._envsched_propose(inputs)
        now = self._envsched_round = Round(selection=self.envsched_selection, slots=slots, policy_version=self.state.global_step)
        try:
            if not self._envsched_shadow:
                self.envsched_inputs = inputs = self._envsched_take(slots, len(inputs))
            batch = super()._generate_and_score_completions(inputs)
        except BaseException:
            if self.accelerator.is_main_process:
                self._envsched_scheduler.cancel(now.selection.group_ids)
            raise
        finally:
            self._envsched_round = None
        if not now.masked.any():
            return batch
        return feedback.mask_rows(batch, self._envsched_share(now.masked, len(inputs)), self.accelerator.gather)

    def _envsched_share(self, rows: Any, count: int) -> Any:
        """This rank's rows of a generation batch."""
        begin = self.accelerator.process_index * count
        return rows[begin : begin + count]

    def _envsched_propose(self, inputs: list[dict[str, Any]]) -> tuple[str, ...]:
        """Ask the scheduler of rank 0; returns the task of each group.

        Where quarantine leaves fewer tasks than groups, tasks are repeated; the rollouts of a repeated task report as one group.
        """
        size, step, scheduler = self.args.generation_batch_size // self.num_generations, self.envsched_rounds, self._envsched_scheduler
        if self._envsched_shadow:
            slots = tuple(gather_object([row["task_id"] for row in inputs])[:: self.num_generations])
            self.envsched_selection = from_main(self.accelerator, lambda: scheduler.shadow(step, list(dict.fromkeys(slots))))  # type: ignore[attr-defined]
            return slots
        self.envsched_selection = from_main(self.accelerator, lambda: scheduler.select(step, size))
        keys = self.envsched_selection.task_ids
        if not keys:
            raise EnvSchedError(f"round {step}: no task is eligible, expected {size}: all are in quarantine or in flight. Audit the pool.")
        if len(keys) < size:
            log.warning("round %d: %d eligible tasks for %d groups; some are repeated", step, len(keys), size)
        return tuple(itertools.islice(itertools.cycle(keys), size))

    def _envsched_take(self, slots: tuple[str, ...], count: int) -> list[dict[str, Any]]:
        """This rank's rows of the data set."""
        missing = [key for key in slots if key not in self._envsched_rows]
        if missing:
            raise EnvSchedError(f"selected task {missing[0]!r} has no row in train_dataset. Add a row with this task_id.")
        keys = [key for key in slots for _ in range(self.num_generations)]
        return [dict(self.train_dataset[self._envsched_rows[key]]) for key in self._envsched_share(keys, count)]

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        """Raw rewards of all ranks, [rows, functions]; those of a round are reported, and masked rollouts get NaN, which TRL leaves out."""
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        now = self._envsched_round
        if now is None:
            return rewards
        mine = feedback.reports_of(
            inputs, getattr(self, "environments", None), completion_ids_list, self.max_completion_length, self.eos_token_ids
        )
        reports = gather_object(mine)
        feedback.check_layout(now.slots, reports, self.num_generations)
        raw = feedback.combined(rewards, self.reward_weights)
        rollouts = [feedback.rollout_of(value, report, now.policy_version) for value, report in zip(raw, reports, strict=True)]
        now.masked = feedback.masked(rollouts)
        self.envsched_groups = feedback.groups_of(now.selection, now.slots, rollouts)
        from_main(self.accelerator, self._envsched_learn)
        self.envsched_rounds += 1
        return rewards.masked_fill(now.masked.to(rewards.device).unsqueeze(1), math.nan)

    def _envsched_learn(self) -> None:
        """On rank 0: the scheduler observes, its figures go to the trainer's logger."""
        self._envsched_scheduler.observe(self.envsched_groups)
        for name, value in self._envsched_scheduler.metrics().items():
            if math.isfinite(value):
                self._metrics["train"][name].append(value)
        if self._envsched_on_round is not None:
            self._envsched_on_round(self.envsched_selection, self.envsched_groups)

    # ---- checkpoints ----

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """The scheduler's state, then the trainer's own files.

        Raises:
            CheckpointError: it could not be written; what was written of it is gone, earlier checkpoints are as they were.
        """
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        try:
            from_main(
                self.accelerator,
                lambda: trainer_state.save_scheduler(
                    folder, self.envsched_rounds, self._envsched_scheduler.state_dict(), self.accelerator.num_processes
                ),
            )
            everywhere(self.accelerator, lambda: self._envsched_save_rollouts(folder))
            super()._save_checkpoint(model, trial)
        except Exception as error:
            if self.accelerator.is_main_process:
                shutil.rmtree(folder, ignore_errors=True)
            raise CheckpointError(
                f"{folder}: could not be written ({error}); earlier checkpoints are whole. Free disk space and resume from the newest."
            ) from error

    def _envsched_save_rollouts(self, folder: Path) -> None:
        """Keep the rollouts of a round that still has updates to give."""
        if self._step % (self.args.steps_per_generation * self.num_iterations):
            trainer_state.save_rollouts(folder, self._envsched_place, self._step, self._buffered_inputs)

    @property
    def _envsched_place(self) -> tuple[int, int]:
        """(this rank, number of ranks)."""
        return self.accelerator.process_index, self.accelerator.num_processes

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The trainer's own state, then the scheduler's.

        Raises:
            CheckpointError: the checkpoint holds no scheduler state, or a damaged one.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.envsched_rounds = from_main(self.accelerator, lambda: self._envsched_load(Path(checkpoint)))
            self._envsched_load_rollouts(Path(checkpoint))

    def _envsched_load(self, folder: Path) -> int:
        state = trainer_state.load_scheduler(folder)
        self._envsched_scheduler.load_state_dict(state["scheduler"])
        return int(state["rounds"])

    def _envsched_load_rollouts(self, folder: Path) -> None:
        """Go on in the midst of a round, if every rank has its rollouts; else with a new round, whatever this trainer did before."""
        self._step, self._buffered_inputs = 0, None
        kept = trainer_state.load_rollouts(folder, self._envsched_place)
        if all(gather_object([kept is not None])) and kept is not None:
            self._step, self._buffered_inputs = kept[0], send_to_device(kept[1], self.accelerator.device)
        elif trainer_state.has_rollouts(folder):
            log.warning("%s: rollouts of another number of processes; what updates were due from them is left out", folder)


def attach(trainer: Any, scheduler: Scheduler, *, on_round: OnRound | None = None, shadow: bool = False) -> Any:
    """Give a trainer that has not trained yet, also one of your own class, what `EnvSchedMixin` gives; returns the trainer.

    Raises:
        ConfigError: it is no trainer of TRL's kind, has a scheduler, or has trained; or see `EnvSchedMixin`.
    """
    kind = type(trainer)
    if isinstance(trainer, EnvSchedMixin):
        raise ConfigError(f"attach: this {kind.__name__} has a scheduler already. Make a new trainer for another one.")
    if not hasattr(kind, "_generate_and_score_completions"):
        raise ConfigError(f"attach: {kind.__name__} has no _generate_and_score_completions; expected TRL's GRPOTrainer or RLOOTrainer.")
    if trainer._step or trainer.state.global_step:
        raise ConfigError(f"attach: this trainer has made {trainer.state.global_step} updates. Attach the scheduler before train().")
    trainer.__class__ = type(f"EnvSched{kind.__name__}", (EnvSchedMixin, kind), {})
    try:
        trainer._envsched_start(scheduler, on_round, shadow)
    except BaseException:
        trainer.__class__ = kind
        raise
    return trainer
