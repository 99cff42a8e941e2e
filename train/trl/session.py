"""Training a language model with TRL's trainer in a run folder: what is kept of each round, and when it saves, evaluates and stops.

Knows: the callbacks of a trainer, its checkpoints, which rank writes.
Does not know: how a trainer is built or learns (build, mixin), how picks are made, how an evaluation is played.

The trainer decides what a resumed run repeats: rounds after its newest whole checkpoint are played again, and take the place of what
ledger, metrics and evaluations held of them.
"""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging as transformers_logging

from envsched_gnn.config import Config
from envsched_gnn.errors import ConfigError
from envsched_gnn.files import without_nan
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import RolloutGroup, Selection
from envsched_gnn.train.evaluation import Evaluations, held_out
from envsched_gnn.train.loop import Line, Progress, append, cut_metrics, figures
from envsched_gnn.train.run import Opened, folder_of, opened, warn_of_lost_ledger
from envsched_gnn.train.session import Interrupt, checkpoint_due, evaluate_if_missing, evaluations_of, explained
from envsched_gnn.train.trl.build import CHECKPOINTS, build_trainer
from envsched_gnn.train.trl.evaluation import evaluate
from envsched_gnn.train.trl.ranks import from_main
from envsched_gnn.train.trl.trainer_state import load_scheduler, newest_checkpoint
from envsched_gnn.train.workers import WorkerPool

ENGINE = "engine/seconds_"
"""What a co-located engine's own figures of a round begin with, in the trainer's log."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the first process holds: the run folder and what is written there."""

    it: Opened
    evaluations: Evaluations
    progress: Progress


def train_language_model(config: Config, *, given: str, progress: Progress) -> Path | None:
    """Train or go on; see `session.train`. Every process of a distributed run calls it."""
    with ExitStack() as stack:
        kept = None
        if os.environ.get("RANK", "0") == "0":
            it = stack.enter_context(opened(config, "train", given, progress))
            kept = Kept(it=it, evaluations=evaluations_of(it, config, progress), progress=progress)
        stack.enter_context(explained(folder_of(config)))
        stack.enter_context(_quiet())
        interrupt = stack.enter_context(Interrupt())
        workers = stack.enter_context(WorkerPool(config.rollout.workers, config.rollout.memory_mb))
        progress.stage("building the trainer")
        session = Session(config, kept, kept.it.pool if kept else load_pool(config.pool), interrupt)
        session.build(workers)
        session.train()
        return kept.it.folder if kept else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars of transformers and what trainers say of rollouts without reward, which the ledger tells better."""
    rewards = logging.getLogger("trl.trainer.grpo_trainer")
    level, bars = rewards.level, transformers_logging.is_progress_bar_enabled()
    rewards.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)  # trl 1.16 reads the old name
        try:
            yield
        finally:
            rewards.setLevel(level)
            if bars:
                transformers_logging.enable_progress_bar()


class Session(TrainerCallback):
    """A trainer's callback, on every rank; decisions are the first rank's."""

    def __init__(self, config: Config, kept: Kept | None, pool: Pool, interrupt: Interrupt) -> None:
        self.config, self.kept, self.pool, self.interrupt = config, kept, pool, interrupt
        self.trainer: Any = None
        self.stopping = False
        """Ctrl-C was pressed, and the round that was going has ended."""
        self._round: Round | None = None
        self._saving_since: float | None = None
        self._seconds_save: float | None = None

    def build(self, workers: WorkerPool) -> None:
        """Put the trainer together; see `build_trainer` for the errors."""
        scheduler: Any = self.kept.it.scheduler if self.kept else None  # other ranks never ask theirs
        self._seconds = _timed(scheduler, "select", "observe") if scheduler else {}
        self.trainer = build_trainer(self.config, self.pool, scheduler, folder_of(self.config), workers=workers, on_round=self.on_round)
        self.trainer.remove_callback(PrinterCallback)  # stdout is for results
        self.trainer.add_callback(self)

    def train(self) -> None:
        """All rounds from the newest checkpoint on.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; all is saved.
        """
        newest, rounds = self._main(self._resume)
        if rounds < self.config.run.steps:
            self.trainer.train(resume_from_checkpoint=newest)
        elif self._main(lambda kept: kept.evaluations.missing(rounds)):
            self.trainer._load_from_checkpoint(newest)
            self._evaluate(rounds)
        if self.stopping:
            raise KeyboardInterrupt

    def _main(self, work: Callable[[Kept], Any]) -> Any:
        """What `work` returns on the first rank, on every rank."""
        return from_main(self.trainer.accelerator, lambda: work(self.kept) if self.kept else None)

    def _resume(self, kept: Kept) -> tuple[str | None, int]:
        """The newest whole checkpoint and its rounds; what the run folder holds of later rounds is cut."""
        folder, checkpoints = kept.it.folder, kept.it.folder / CHECKPOINTS
        newest = newest_checkpoint(checkpoints)
        rounds = int(load_scheduler(newest)["rounds"]) if newest else 0
        if newest:
            cut_metrics(folder / "metrics.jsonl", _size_of(folder / "metrics.jsonl", rounds, checkpoints), checkpoints)
            kept.progress.stage(f"resuming at round {rounds}")
        else:
            (folder / "metrics.jsonl").write_bytes(b"")
        kept.evaluations.cut(rounds)
        warn_of_lost_ledger(kept.it.ledger, rounds, kept.progress)
        return (str(newest) if newest else None), rounds

    # ---- a round ----

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A round begins with the first of its updates."""
        if state.global_step % self.config.train.num_iterations == 0:
            self.interrupt.hold = True
            self._round = Round(begin=time.perf_counter())

    def on_round(self, selection: Selection, groups: tuple[RolloutGroup, ...]) -> None:
        """On the first rank, once rewards are there: into the ledger before any update."""
        assert self.kept is not None
        assert self._round is not None
        self.kept.it.ledger.write_round(selection, groups)
        self.kept.progress.group(len(groups), len(selection.picks))
        self._round.selection, self._round.groups = selection, groups
        self._round.scheduler = self.kept.it.scheduler.metrics()
        self._round.rolled_out = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A round ends with the last of its updates: its line is due, and perhaps a checkpoint."""
        done, rest = divmod(state.global_step, self.config.train.num_iterations)
        control.should_save = False
        if rest:
            return
        control.should_log = True
        control.should_save = self._main(lambda kept: self.interrupt.asked or checkpoint_due(self.config, kept.evaluations, done))
        if self._round is not None:
            self._round.end = time.perf_counter()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Line | None = None, **_: Any) -> None:
        """The trainer's own figures, after each update, complete the line of a round; comes after `on_step_end` and before a checkpoint."""
        now, self._saving_since = self._round, time.perf_counter()
        if self.kept is None or now is None:
            return
        now.logs.update(logs or {})
        if now.end is None:
            return
        line = now.line(self.pool, self._seconds) | {"seconds_save": self._seconds_save}
        append(self.kept.it.folder / "metrics.jsonl", line)
        self._round, self._seconds_save = None, None
        self._seconds.update(dict.fromkeys(self._seconds, 0.0))
        self.kept.progress.round(line)

    # ---- between rounds ----

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Weights and scheduler are loaded: the evaluation before the first round, or one that a stop has left out."""
        self._evaluate(state.global_step // self.config.train.num_iterations)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A checkpoint is written: neither an evaluation nor a stop has anything to lose."""
        if self._saving_since is not None:
            self._seconds_save = round(time.perf_counter() - self._saving_since, 6)
        self.interrupt.hold = False
        self.stopping = self._main(lambda kept: self.interrupt.asked)
        control.should_training_stop |= self.stopping
        if not self.stopping:
            self._evaluate(state.global_step // self.config.train.num_iterations)

    def _evaluate(self, done: int) -> None:
        if not self._main(lambda kept: kept.evaluations.missing(done)):
            return

        def play(rows: Sequence[int], samples: int) -> list[list[float | None]]:
            return evaluate(self.trainer, self.pool, rows, samples)

        if self.kept:
            evaluate_if_missing(self.kept.evaluations, done, play, self.kept.progress)
        else:
            out = held_out(self.pool, self.config.evaluate.tasks)
            play([*out.tasks, *out.environments], self.config.evaluate.samples)


@dataclass(kw_only=True)
class Round:
    """A round as it goes; moments in seconds of one clock."""

    begin: float
    rolled_out: float = math.nan
    end: float | None = None
    selection: Selection = field(default_factory=lambda: Selection(step=0, picks=()))
    groups: tuple[RolloutGroup, ...] = ()
    scheduler: dict[str, float] = field(default_factory=dict)
    """Its metrics once it had observed the round."""
    logs: Line = field(default_factory=dict)
    """The trainer's figures: of the rollouts, and of the latest update."""

    def line(self, pool: Pool, own: dict[str, float]) -> Line:
        """Its line of metrics.jsonl. `own`: seconds of the scheduler's stages; like an engine's, they fall within the rollouts."""
        assert self.end is not None
        parts = own | {name.removeprefix(ENGINE): float(value) for name, value in self.logs.items() if name.startswith(ENGINE)}
        rollout = max(self.rolled_out - self.begin - sum(parts.values()), 0.0)
        seconds = {"rollout": rollout, **parts, "update": self.end - self.rolled_out}
        trainer = {f"trainer/{name}": value for name, value in self.logs.items() if _is_number(value) and not name.startswith("envsched/")}
        return without_nan(
            {
                "step": self.selection.step,
                **figures(pool, self.selection, self.groups),
                **self.scheduler,
                **{f"seconds_{stage}": round(value, 6) for stage, value in seconds.items()},
                **trainer,
            }
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _timed(owner: Any, *names: str) -> dict[str, float]:
    """Seconds that methods of `owner` take from now on, added up by name."""
    seconds = dict.fromkeys(names, 0.0)

    def wrap(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                seconds[name] += time.perf_counter() - begin

        return timed

    for name in names:
        setattr(owner, name, wrap(name, getattr(owner, name)))
    return seconds


def _size_of(metrics: Path, rounds: int, checkpoints: Path) -> int:
    """Bytes of the first `rounds` lines.

    Raises:
        ConfigError: there are fewer.
    """
    lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.is_file() else []
    if len(lines) < rounds:
        raise ConfigError(
            f"{metrics}: holds {len(lines)} rounds, its checkpoint {rounds}. Restore it, or delete {checkpoints} to begin at round 0."
        )
    return sum(len(line) + 1 for line in lines[:rounds])
