"""`envsched train`: rounds that end in an update of the policy, evaluations between them, a clean stop and a clean resume.

Knows: when evaluations and checkpoints are due, what Ctrl-C means, what is told when something fails.
Does not know: how a policy generates or learns (pocket, trl), how picks are made, how progress is shown.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from envsched_gnn.config import Config
from envsched_gnn.errors import ConfigError, EngineError, EnvSchedError
from envsched_gnn.policy_facts import SEVERAL_TRIPS
from envsched_gnn.pool.pool import Pool
from envsched_gnn.train.evaluation import Evaluations, Play
from envsched_gnn.train.folder import EVALUATIONS
from envsched_gnn.train.loop import Engine, Loop, Progress, Silent, restore
from envsched_gnn.train.run import Opened, opened, warn_of_lost_ledger


class Learner(Engine, Protocol):
    """An engine whose policy learns from the rounds it plays, and can be evaluated between them."""

    def evaluate(self, rows: Sequence[int], samples: int) -> list[list[float | None]]:
        """Rewards [rows][samples] of tasks of the pool; nothing is learned, and the next round is as if there had been no evaluation."""
        ...


Build = Callable[[Pool], AbstractContextManager[Learner]]


def train(config: Config, *, given: str = "", progress: Progress | None = None) -> Path | None:
    """Train, or go on with, the run that `config` describes, and return its folder `run.folder/run.name`.

    Args:
        given: the configuration as the user wrote it, kept as `config.toml`.

    Returns:
        The folder; None in the processes of a distributed run other than the first.

    Raises:
        ConfigError: the folder holds a run with other settings or of `envsched run`, or is in use.
        CheckpointError: it holds a run of another pool, or the disk is full.
        EnvSchedError: something failed in a round; what was finished before is kept.
        KeyboardInterrupt: after Ctrl-C, when all is saved.
    """
    progress = progress or Silent()
    match config.model.kind:
        case "pocket":
            from envsched_gnn.train.pocket.engine import PocketEngine

            if os.environ.get("WORLD_SIZE", "1") != "1":
                raise ConfigError("model.kind = 'pocket': runs in one process. Start it without torchrun or accelerate launch.")

            def build(pool: Pool) -> PocketEngine:
                progress.stage("warming the pocket model up")
                return PocketEngine(pool, config.model, config.train, config.rollout, config.run.seed)

            return play_rounds(config, build, given=given, progress=progress)
        case "language_model":
            if config.run.policy in SEVERAL_TRIPS:
                raise ConfigError(
                    f"run.policy = {config.run.policy!r} with model.kind = 'language_model': it rolls out several times a step, TRL's "
                    "trainer once. Take another policy, or the pocket model."
                )
            from envsched_gnn.train.trl.session import train_language_model

            return train_language_model(config, given=given, progress=progress)


def play_rounds(config: Config, build: Build, *, given: str, progress: Progress) -> Path:
    """The rounds of an engine that plays and learns; see `train`."""
    with opened(config, "train", given, progress) as it, explained(it.folder), Interrupt() as interrupt, build(it.pool) as engine:
        evaluations = evaluations_of(it, config, progress)
        step = restore(it.folder, it.scheduler, engine, progress)
        evaluations.cut(step)
        warn_of_lost_ledger(it.ledger, step, progress)

        def saves(done: int) -> bool:
            return checkpoint_due(config, evaluations, done) or interrupt.asked

        loop = Loop(folder=it.folder, pool=it.pool, ledger=it.ledger, scheduler=it.scheduler, engine=engine, progress=progress, saves=saves)
        for done in range(step, config.run.steps + 1):
            evaluate_if_missing(evaluations, done, engine.evaluate, progress)
            if done < config.run.steps:
                interrupt.hold = True
                loop.round(done)
                interrupt.hold = loop.seconds_save is None
            if interrupt.asked and not interrupt.hold:
                raise KeyboardInterrupt
        return it.folder


def evaluations_of(it: Opened, config: Config, progress: Progress) -> Evaluations:
    """The evaluations of a run; tells if its pool has nothing to evaluate on."""
    evaluations = Evaluations(it.folder / EVALUATIONS, it.pool, config.evaluate, config.run.steps)
    if config.evaluate.tasks and not evaluations.possible:
        progress.stage(
            f"warning: {it.pool.source}: no task is held out, so nothing is evaluated. Mark tasks with info.held_out, "
            "or set pool.toolworld.held_out_tasks and held_out_environments"
        )
    return evaluations


def checkpoint_due(config: Config, evaluations: Evaluations, done: int) -> bool:
    """After every `train.checkpoint_every` rounds, before an evaluation, so that nothing is lost in it, and after the last round."""
    return done % config.train.checkpoint_every == 0 or done == config.run.steps or evaluations.due(done)


def evaluate_if_missing(evaluations: Evaluations, done: int, play: Play, progress: Progress) -> None:
    """The evaluation after `done` rounds, where it is due and not there."""
    if evaluations.missing(done):
        progress.stage(f"evaluating after {done} rounds")
        progress.evaluated(evaluations.run(done, play))


class Interrupt:
    """What Ctrl-C does: it ends the run at once, or, while `hold` is set, when the round is done and saved; a second one at once.

    A context manager, of the main thread; elsewhere Ctrl-C stays as it is.
    """

    def __init__(self) -> None:
        self.hold = False
        """Whether a round is going, or is not saved yet."""
        self.asked = False
        """Whether the run should end as soon as all is saved."""
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.asked or not self.hold:
            raise KeyboardInterrupt
        self.asked = True
        with suppress(OSError):  # no print: the signal may have come in the midst of one
            os.write(2, b"\nstopping when this round is done and saved; Ctrl-C again stops at once\n")


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Any failure in the block becomes one sentence; the traceback goes to `error.txt` in the run folder.

    Raises:
        EnvSchedError: as raised in the block, or in place of any other exception.
    """
    try:
        yield
    except EngineError as error:
        _keep_traceback(folder, error)
        raise
    except EnvSchedError:
        raise
    except Exception as error:
        path = _keep_traceback(folder, error)
        first = next(iter(str(error).splitlines()), "")
        cure = "Cure its cause"
        if isinstance(error, torch.OutOfMemoryError):
            cure = "Lower train.micro_batch or vllm.memory_share, or set train.gradient_checkpointing (envsched doctor -c adds memory up)"
        raise EnvSchedError(
            f"{folder}: the run has failed ({type(error).__name__}: {first}); what was finished is kept, the traceback stands in {path}. "
            f"{cure}, then give the same command again to go on from the last checkpoint."
        ) from error


def _keep_traceback(folder: Path, error: Exception) -> Path:
    path = folder / "error.txt"
    with suppress(OSError):
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="replace")
    return path
