"""A run in its folder: what is opened, built and restored before the first round, for `envsched run` and `envsched train` alike.

Knows: the parts of a run and the order in which they come to be; the rounds of a scripted policy.
Does not know: the order of a round, how picks are made, how rollouts are executed, how a report looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from envsched_gnn.config import Config
from envsched_gnn.errors import ConfigError, GraphError
from envsched_gnn.graph.configured import configured_graph, is_configured
from envsched_gnn.graph.io import load_graph, save_graph
from envsched_gnn.ledger import Ledger
from envsched_gnn.models.make import configured_policy
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.schedule.policies import AnyPolicy
from envsched_gnn.train.engine import ScriptedEngine
from envsched_gnn.train.folder import Command, complete, locked, prepare
from envsched_gnn.train.loop import Loop, Progress, Silent, restore


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A run folder that is held for this process, and what every run needs."""

    folder: Path
    pool: Pool
    ledger: Ledger
    scheduler: AnyPolicy


def run(config: Config, *, given: str = "", resume: bool = True, progress: Progress | None = None) -> Path:
    """Run, or go on with, the run that `config` describes with a scripted policy, and return its folder `run.folder/run.name`.

    Args:
        given: the configuration as the user wrote it, kept as `config.toml`.
        resume: False refuses a folder that already holds a run.

    Raises:
        ConfigError: the folder holds a run with other settings, is in use, or `resume` is False and it holds a run.
        CheckpointError: the folder holds a run of another pool, or the disk is full.
        PoolError, HistoryError: the pool or the ledger cannot be read.
    """
    progress = progress or Silent()
    folder = folder_of(config)
    if not resume and (folder / "resolved.toml").exists():
        raise ConfigError(f"{folder}: holds a run already. Choose another run.name, or resume it.")
    with opened(config, "run", given, progress) as it, scripted_engine(config, it.pool) as engine:
        step = restore(folder, it.scheduler, engine, progress)
        warn_of_lost_ledger(it.ledger, step, progress)
        loop = Loop(folder=folder, pool=it.pool, ledger=it.ledger, scheduler=it.scheduler, engine=engine, progress=progress)
        for at in range(step, config.run.steps):
            loop.round(at)
    return folder


def folder_of(config: Config) -> Path:
    """`run.folder/run.name`."""
    return Path(config.run.folder) / config.run.name


@contextmanager
def opened(config: Config, command: Command, given: str, progress: Progress) -> Iterator[Opened]:
    """Read the pool, hold and describe the run folder, open its ledger, build the scheduler; see `run` for the errors."""
    _check_policy(config)
    progress.stage(f"reading pool {config.pool.path}")
    pool = load_pool(config.pool)
    folder = folder_of(config)
    with locked(folder):
        for note in prepare(folder, config, pool, given, command):
            progress.stage(note)
        with Ledger(folder / "ledger.sqlite", config.run.name) as ledger:
            scheduler = _scheduler(config, pool, folder, progress)
            for note in complete(folder, pool):
                progress.stage(note)
            yield Opened(folder=folder, pool=pool, ledger=ledger, scheduler=scheduler)


def warn_of_lost_ledger(ledger: Ledger, step: int, progress: Progress) -> None:
    """Tell that a resumed run has a ledger without the rounds before `step`."""
    if step and not ledger.selections():
        progress.stage(f"warning: {ledger.path} holds nothing of the {step} rounds before; restore it, or reports will lack them")


def _check_policy(config: Config) -> None:
    if config.run.policy == "envsched" and config.predict.preset == "paper":
        raise ConfigError("predict.preset = 'paper' with run.policy = 'envsched', which is the preset 'default'. Set run.policy = 'paper'.")
    if config.run.policy == "paper" and config.predict.target != "variance":
        cure = "Set run.policy = 'envsched', or leave predict.target out."
        raise ConfigError(f"predict.target = {config.predict.target!r} with run.policy = 'paper', which orders by its own variance. {cure}")
    if config.run.policy == "oracle":
        cure = "Use envsched simulate --policy oracle, or 'uniform' here."
        raise ConfigError(f"run.policy = 'oracle': nobody knows the chances of real tasks. {cure}")


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


def _scheduler(config: Config, pool: Pool, folder: Path, progress: Progress) -> AnyPolicy:
    policy = configured_policy(config.run.policy, config, pool, _graph(config, pool, folder, progress))
    return policy.to(device_of(config.run.device))


def _graph(config: Config, pool: Pool, folder: Path, progress: Progress) -> Any:
    """The run's graph, built once and kept in its folder."""
    path = folder / "graph.pt"
    if path.is_file():
        try:
            graph = load_graph(path)
            if is_configured(graph, config):
                return graph
            progress.stage("building the graph again: other similarities or embeddings are asked for")
        except GraphError as error:
            progress.stage(f"building the graph again: {error}")
    progress.stage(f"building the graph of {len(pool.tasks):,} tasks")
    graph = configured_graph(pool, config)
    save_graph(graph, path)
    return graph


def scripted_engine(config: Config, pool: Pool) -> ScriptedEngine:
    """The scripted policy in real environments, as `[rollout]` describes it; a context manager."""
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
