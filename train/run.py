"""The run loop: select, roll out, observe, round by round, in a folder that can be resumed after a kill at any moment.

Knows: the order of a round, what is saved when, the figures of a round.
Does not know: how picks are made, how rollouts are executed, how a report looks.

A round is a function of the checkpoint before it. Its selection is written before its rollouts start and each group as it finishes; the
scheduler observes the groups as read back from the ledger, in rank order, once all are there. A resumed round therefore repeats the same
selection, rolls out only the groups that the ledger lacks, and goes on with the same bits.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch

from envsched_gnn.config import Config, Preset
from envsched_gnn.errors import ConfigError, GraphError
from envsched_gnn.files import without_nan
from envsched_gnn.graph.build import build_graph
from envsched_gnn.graph.io import load_graph, save_graph
from envsched_gnn.history import group_statistics
from envsched_gnn.ledger import Ledger
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import REWARDED, RolloutGroup, Selection
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.metrics import reward_figures
from envsched_gnn.schedule.uniform import Uniform
from envsched_gnn.train import checkpoint
from envsched_gnn.train.engine import ScriptedEngine
from envsched_gnn.train.folder import complete, locked, prepare

Line = dict[str, Any]


class Progress(Protocol):
    """Who is told how a run goes."""

    def stage(self, text: str) -> None:
        """A stage before or between rounds has begun."""

    def group(self, done: int, total: int) -> None:
        """Another group of this round has finished."""

    def round(self, line: Line) -> None:
        """A round has finished; `line` is its line of metrics.jsonl."""


class Silent:
    """Tells nobody."""

    def stage(self, text: str) -> None:
        pass

    def group(self, done: int, total: int) -> None:
        pass

    def round(self, line: Line) -> None:
        pass


def run(config: Config, *, given: str = "", resume: bool = True, progress: Progress | None = None) -> Path:
    """Run, or go on with, the run that `config` describes, and return its folder `run.folder/run.name`.

    Args:
        given: the configuration as the user wrote it, kept as `config.toml`.
        resume: False refuses a folder that already holds a run.

    Raises:
        ConfigError: the folder holds a run with other settings, is in use, or `resume` is False and it holds a run.
        CheckpointError: the folder holds a run of another pool.
        PoolError, HistoryError: the pool or the ledger cannot be read.
    """
    progress = progress or Silent()
    folder = Path(config.run.folder) / config.run.name
    if not resume and (folder / "resolved.toml").exists():
        raise ConfigError(f"{folder}: holds a run already. Choose another run.name, or resume it.")
    preset = _preset(config)
    progress.stage(f"reading pool {config.pool.path}")
    pool = load_pool(config.pool)
    with ExitStack() as stack:
        stack.enter_context(locked(folder))
        for note in prepare(folder, config, pool, given):
            progress.stage(note)
        ledger = stack.enter_context(Ledger(folder / "ledger.sqlite", config.run.name))
        scheduler = _scheduler(config, pool, folder, preset, progress)
        for note in complete(folder, pool):
            progress.stage(note)
        engine = stack.enter_context(_engine(config, pool))
        step = _restore(folder, scheduler, engine, progress)
        if step and not ledger.selections():
            progress.stage(f"warning: {ledger.path} holds nothing of the {step} rounds before; restore it, or reports will lack them")
        loop = Loop(folder=folder, pool=pool, ledger=ledger, scheduler=scheduler, engine=engine, progress=progress)
        for at in range(step, config.run.steps):
            loop.round(at)
    return folder


def _preset(config: Config) -> Preset:
    if config.run.policy == "envsched" and config.predict.preset == "paper":
        raise ConfigError("predict.preset = 'paper' with run.policy = 'envsched', which is the preset 'default'. Set run.policy = 'paper'.")
    return "paper" if config.run.policy == "paper" else "default"


def device_of(name: str) -> torch.device:
    """The device that `run.device` names; `auto` is CUDA where there is one.

    Raises:
        ConfigError: no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"run.device = {name!r}: not usable here ({str(error).splitlines()[0]}). Give auto, cpu or cuda.") from None
    return device


def _scheduler(config: Config, pool: Pool, folder: Path, preset: Preset, progress: Progress) -> EnvSched | Uniform:
    graph = _graph(config, pool, folder, progress)
    if config.run.policy == "uniform":
        return Uniform(pool, graph, batch_size=config.select.batch_size, seed=config.run.seed)
    scheduler = EnvSched(pool, graph, seed=config.run.seed, preset=preset, select=config.select, predict=config.predict)
    return scheduler.to(device_of(config.run.device))


def _graph(config: Config, pool: Pool, folder: Path, progress: Progress) -> Any:
    """The run's graph, built once and kept in its folder."""
    path = folder / "graph.pt"
    if path.is_file():
        try:
            return load_graph(path)
        except GraphError as error:
            progress.stage(f"building the graph again: {error}")
    progress.stage(f"building the graph of {len(pool.tasks):,} tasks")
    graph = build_graph(pool, within_neighbors=config.graph.within_neighbors, cross_neighbors=config.graph.cross_neighbors)
    save_graph(graph, path)
    return graph


def _engine(config: Config, pool: Pool) -> ScriptedEngine:
    r = config.rollout
    return ScriptedEngine(
        pool,
        num_rollouts=r.num_rollouts,
        workers=r.workers,
        memory_mb=r.memory_mb,
        seed=r.seed,
        skill_start=r.skill_start,
        skill_gain=r.skill_gain,
    )


def _restore(folder: Path, scheduler: EnvSched | Uniform, engine: ScriptedEngine, progress: Progress) -> int:
    """Load the newest whole checkpoint, cut metrics.jsonl back to it, and return the round to go on with."""
    state, problems = checkpoint.load_newest(folder / "checkpoint")
    for problem in problems:
        progress.stage(f"passed over: {problem}")
    metrics = folder / "metrics.jsonl"
    if state is None:
        metrics.write_bytes(b"")
        return 0
    scheduler.load_state_dict(state["scheduler"])
    engine.load_state_dict(state["engine"])
    if not metrics.is_file() or metrics.stat().st_size < state["metrics_bytes"]:
        raise ConfigError(
            f"{metrics}: missing, or shorter than its checkpoint says. "
            f"Restore it, or delete the folder {folder / 'checkpoint'} to replay the ledger."
        )
    os.truncate(metrics, state["metrics_bytes"])
    progress.stage(f"resuming at round {state['step']}")
    return int(state["step"])


@dataclasses.dataclass(kw_only=True)
class Loop:
    """The parts of a run and the order in which a round uses them."""

    folder: Path
    pool: Pool
    ledger: Ledger
    scheduler: EnvSched | Uniform
    engine: ScriptedEngine
    progress: Progress
    seconds_save: float | None = None
    """What the checkpoint before this round took."""

    def round(self, step: int) -> None:
        """One round, saved when it returns."""
        clock = [time.perf_counter()]
        selection = self.scheduler.select(step)
        self.ledger.write_selection(selection)
        clock.append(time.perf_counter())
        self._roll_out(selection)
        clock.append(time.perf_counter())
        groups = self.ledger.groups(step)
        self._observe(selection, groups)
        clock.append(time.perf_counter())
        seconds = dict(zip(("select", "rollout", "observe"), (end - begin for begin, end in pairwise(clock)), strict=True))
        line = {"step": step, **figures(self.pool, selection, groups), **self.scheduler.metrics()}
        line |= {f"seconds_{stage}": round(value, 6) for stage, value in seconds.items()} | {"seconds_save": self.seconds_save}
        line = without_nan(line)
        self._save(step, line)
        self.progress.round(line)

    def _roll_out(self, selection: Selection) -> None:
        """Roll out the groups that the ledger lacks, and write each as it finishes."""
        finished = self.ledger.groups(selection.step)
        self.progress.group(len(finished), len(selection.picks))
        for done, group in enumerate(self.engine.rollout(selection, finished), start=len(finished) + 1):
            self.ledger.write_group(group)
            self.progress.group(done, len(selection.picks))

    def _observe(self, selection: Selection, groups: Sequence[RolloutGroup]) -> None:
        self.scheduler.observe(groups)
        reported = {group.group_id for group in groups}
        lost = [group_id for group_id in selection.group_ids if group_id not in reported]
        if lost:
            self.scheduler.cancel(lost)

    def _save(self, step: int, line: Line) -> None:
        begin = time.perf_counter()
        with (self.folder / "metrics.jsonl").open("ab") as file:
            file.write(json.dumps(line, sort_keys=False, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        state = {"step": step + 1, "metrics_bytes": size, "scheduler": self.scheduler.state_dict(), "engine": self.engine.state_dict()}
        checkpoint.save(self.folder / "checkpoint", step + 1, state)
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
        "relaxations": len(selection.relaxations),
    }
