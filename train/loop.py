"""A round of a run, whatever engine plays it: select, roll out, observe, save.

Knows: the order of a round, what is saved when, the figures of a round.
Does not know: how picks are made, how rollouts are executed, how a run begins, how a report looks.

A round is a function of the checkpoint before it. A selection is written before its rollouts start and each group as it finishes; the
scheduler observes the groups as read back from the ledger, in rank order, once all are there, and the engine learns from them last. A
resumed round therefore repeats the same selections, asks its engine for the groups that the ledger lacks, and goes on with the same bits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from envsched_gnn.errors import CheckpointError, ConfigError
from envsched_gnn.files import without_nan
from envsched_gnn.history import group_statistics
from envsched_gnn.ledger import Ledger
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import REWARDED, RolloutGroup, Selection
from envsched_gnn.schedule.metrics import reward_figures
from envsched_gnn.schedule.policies import AnyPolicy, play_round
from envsched_gnn.stopwatch import Stopwatch
from envsched_gnn.train import checkpoint

Line = dict[str, Any]


class Progress(Protocol):
    """Who is told how a run goes."""

    def stage(self, text: str) -> None:
        """A stage before or between rounds has begun."""

    def group(self, done: int, total: int) -> None:
        """Another group of this round has finished."""

    def round(self, line: Line) -> None:
        """A round has finished; `line` is its line of metrics.jsonl."""

    def evaluated(self, line: Line) -> None:
        """An evaluation has finished; `line` is its line of evaluations.jsonl."""


class Silent:
    """Tells nobody."""

    def stage(self, text: str) -> None:
        pass

    def group(self, done: int, total: int) -> None:
        pass

    def round(self, line: Line) -> None:
        pass

    def evaluated(self, line: Line) -> None:
        pass


class Engine(Protocol):
    """Who plays the rollouts of a selection, and may learn from them."""

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds of stages of the round just played and learned from, which do not overlap; what is left of it is told as `rollout`."""
        ...

    def play(self, selection: Selection, finished: Iterable[RolloutGroup] = ()) -> Iterator[RolloutGroup]:
        """Groups as they finish, but those in `finished`, of `selection.num_rollouts` rollouts or the engine's own number."""
        ...

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """Learn from groups of the round that was played, pilots in front of the group of their task; see `lesson`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next round depends on: plain data and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ...


def restore(folder: Path, scheduler: AnyPolicy, engine: Engine, progress: Progress) -> int:
    """Load the newest whole checkpoint, cut metrics.jsonl back to it, and return the round to go on with.

    Raises:
        ConfigError: metrics.jsonl holds less than the checkpoint says.
    """
    state, problems = checkpoint.load_newest(folder / "checkpoint")
    for problem in problems:
        progress.stage(f"passed over: {problem}")
    if state is None:
        (folder / "metrics.jsonl").write_bytes(b"")
        return 0
    scheduler.load_state_dict(state["scheduler"])
    engine.load_state_dict(state["engine"])
    cut_metrics(folder / "metrics.jsonl", state["metrics_bytes"], folder / "checkpoint")
    progress.stage(f"resuming at round {state['step']}")
    return int(state["step"])


def cut_metrics(metrics: Path, size: int, checkpoints: Path) -> None:
    """Leave out the rounds after a checkpoint, at which metrics.jsonl had `size` bytes; they will be played again.

    Raises:
        ConfigError: it is missing, or holds less.
    """
    if not metrics.is_file() or metrics.stat().st_size < size:
        raise ConfigError(
            f"{metrics}: missing, or shorter than its checkpoint says. Restore it, or delete the folder {checkpoints} to replay the ledger."
        )
    os.truncate(metrics, size)


def append(path: Path, line: Line) -> int:
    """Add a line to a JSONL file, on disk when this returns; the size of the file after it."""
    with path.open("ab") as file:
        file.write(json.dumps(line, sort_keys=False, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def always(done: int) -> bool:
    """A checkpoint after every round."""
    return True


@dataclass(kw_only=True)
class Loop:
    """The parts of a run and the order in which a round uses them."""

    folder: Path
    pool: Pool
    ledger: Ledger
    scheduler: AnyPolicy
    engine: Engine
    progress: Progress
    saves: Callable[[int], bool] = always
    """Whether a checkpoint is due once so many rounds are done."""
    seconds_save: float | None = None
    """What the latest checkpoint took, if the round before wrote one."""

    def round(self, step: int) -> None:
        """One round, saved when it returns if a checkpoint is due."""
        watch = Stopwatch()
        played = play_round(self.scheduler, self, step, watch)
        with watch("rollout"):
            self.engine.learn(played.train)
        line = {"step": step, **figures(self.pool, played.selection, played.groups), **self.scheduler.metrics()}
        seconds, parts = watch.seconds, dict(self.engine.timings)
        seconds["rollout"] = max(seconds["rollout"] - sum(parts.values()), 0.0)
        line |= {f"seconds_{stage}": round(value, 6) for stage, value in (seconds | parts).items()}
        line = without_nan(line | {"seconds_save": self.seconds_save})
        self._save(step, line)
        self.progress.round(line)

    def rollout(self, selection: Selection) -> list[RolloutGroup]:
        """Roll out the groups of a selection that the ledger lacks, and write each as it finishes; all of them as the ledger has them."""
        self.ledger.write_selection(selection)
        finished = self._groups(selection)
        self.progress.group(len(finished), len(selection.picks))
        for done, group in enumerate(self.engine.play(selection, finished), start=len(finished) + 1):
            self.ledger.write_group(group)
            self.progress.group(done, len(selection.picks))
        return self._groups(selection)

    def _groups(self, selection: Selection) -> list[RolloutGroup]:
        asked = set(selection.group_ids)
        return [group for group in self.ledger.groups(selection.step) if group.group_id in asked]

    def _save(self, step: int, line: Line) -> None:
        begin, self.seconds_save = time.perf_counter(), None
        try:
            size = append(self.folder / "metrics.jsonl", line)
            if not self.saves(step + 1):
                return
            state = {"step": step + 1, "metrics_bytes": size, "scheduler": self.scheduler.state_dict(), "engine": self.engine.state_dict()}
            checkpoint.save(self.folder / "checkpoint", step + 1, state)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder}: the checkpoint after round {step + 1} cannot be written ({error.strerror}); finished rollouts and the "
                "checkpoint before it are kept. Free disk space, then give the same command again."
            ) from error
        self.seconds_save = round(time.perf_counter() - begin, 6)


def figures(pool: Pool, selection: Selection, groups: Sequence[RolloutGroup]) -> Line:
    """The figures of a round; NaN where no group has two valid rewards. Rewards are mapped to [0, 1]."""
    rows = [pool.index_of[group.key] for group in groups]
    low, high = ([pool.reward_ranges[row][end] for row in rows] for end in (0, 1))
    statistics = group_statistics([group.rewards for group in groups], low, high)
    observed = statistics.observed
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    environments = {pick.env_id for pick in selection.picks}
    offered = {tool["function"]["name"] for e in pool.environments if e.env_id in environments for tool in e.tools}
    return {
        "picks": len(selection.picks),
        "groups": int(observed.sum()),
        **reward_figures(statistics.variance[observed].tolist(), statistics.mean[observed].tolist()),
        "environments": len(environments),
        "tools": len(offered),
        "rollouts": len(rollouts),
        "failed_rollouts": sum(rollout.status not in REWARDED for rollout in rollouts),
        "tokens": sum(rollout.tokens for rollout in rollouts),
        "relaxations": len(selection.relaxations),
    }
