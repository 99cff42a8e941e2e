"""A simulated run: the rounds of a scheduler and a simulated learner, in a folder of the form that `envsched train` writes.

Knows: the parts of a run and the order in which they come to be; `truth.jsonl`, what only a simulator can know.
Does not know: the order of a round, how a learner learns, how a result is told.

The folder: what `envsched train` keeps (settings, versions, pool.json, graph.pt, ledger, metrics.jsonl, evaluations.jsonl, checkpoints) and
`truth.jsonl`, a line for the learner before each round and one after the last. The same call goes on where it was stopped, bit for bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from envsched_gnn.config import Config
from envsched_gnn.eval.simulate.engine import SimulatedEngine
from envsched_gnn.eval.simulate.policies import ExactOracle, scheduler_of
from envsched_gnn.eval.simulate.pool import graph_of, pool_of
from envsched_gnn.eval.simulate.world import World, make_world
from envsched_gnn.files import write_atomic
from envsched_gnn.graph.io import save_graph
from envsched_gnn.ledger import Ledger
from envsched_gnn.pool.pool import Pool
from envsched_gnn.train.evaluation import Evaluations
from envsched_gnn.train.folder import EVALUATIONS, complete, locked, prepare
from envsched_gnn.train.loop import Line, Loop, Progress, Silent, append, restore
from envsched_gnn.train.run import device_of, folder_of, warn_of_lost_ledger
from envsched_gnn.train.session import checkpoint_due, evaluate_if_missing, explained

TRUTH = "truth.jsonl"


def simulate(config: Config, *, given: str = "", progress: Progress | None = None) -> Path:
    """Simulate, or go on with, the run that `config` describes, and return its folder `run.folder/run.name`.

    Args:
        given: the configuration as the user wrote it, kept as `config.toml`.

    Raises:
        ConfigError: the folder holds a run with other settings or of `envsched run`, or is in use.
        CheckpointError: it holds a run of another pool, or the disk is full.
    """
    progress = progress or Silent()
    progress.stage(f"drawing {config.simulate.environments:,} environments x {config.simulate.tasks:,} tasks")
    world = make_world(config.simulate)
    pool, folder = pool_of(world), folder_of(config)
    with locked(folder):
        for note in [*prepare(folder, config, pool, given, "train"), *complete(folder, pool)]:
            progress.stage(note)
        with Ledger(folder / "ledger.sqlite", config.run.name, durable=False) as ledger, explained(folder):
            _play(config, world, pool, ledger, folder, progress)
    return folder


def _play(config: Config, world: World, pool: Pool, ledger: Ledger, folder: Path, progress: Progress) -> None:
    graph = graph_of(world, pool, config.graph)
    if not (folder / "graph.pt").is_file():
        save_graph(graph, folder / "graph.pt")
    scheduler = scheduler_of(config, pool, graph).to(device_of(config.run.device))
    engine = SimulatedEngine(pool, world, config.rollout.num_rollouts, seed=config.run.seed)
    evaluations = Evaluations(folder / EVALUATIONS, pool, config.evaluate, config.run.steps)
    step = restore(folder, scheduler, engine, progress)
    evaluations.cut(step)
    _cut(folder / TRUTH, step)
    warn_of_lost_ledger(ledger, step, progress)

    def saves(done: int) -> bool:
        return checkpoint_due(config, evaluations, done)

    loop = Loop(folder=folder, pool=pool, ledger=ledger, scheduler=scheduler, engine=engine, progress=progress, saves=saves)
    for done in range(step, config.run.steps + 1):
        evaluate_if_missing(evaluations, done, engine.evaluate, progress)
        append(folder / TRUTH, truth(world, engine, done, config.rollout.num_rollouts))
        if done < config.run.steps:
            if isinstance(scheduler, ExactOracle):
                scheduler.know(done, torch.from_numpy(engine.learner.informative_chance(config.rollout.num_rollouts)))
            loop.round(done)


def truth(world: World, engine: SimulatedEngine, step: int, num_rollouts: int) -> Line:
    """Exact means over tasks before round `step`: of the chance of success, of live training tasks and of held-out tasks, and of P(v > 0)
    over training tasks, what uniform selection can expect of informative groups."""
    success, trained = engine.learner.success(), ~world.held_out
    return {
        "step": step,
        "success_live": _mean(success[trained & engine.learner.live]),
        "success_held_out": _mean(success[world.held_out]),
        "informative_chance": _mean(engine.learner.informative_chance(num_rollouts)[trained]),
    }


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def read_truth(folder: Path) -> list[dict[str, Any]]:
    """The lines of truth.jsonl, by step; a last line that a kill cut short is left out."""
    path = folder / TRUTH
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.is_file() else []


def _cut(path: Path, step: int) -> None:
    """Keep the lines of steps before `step`: the others will be written again."""
    kept = [line for line in read_truth(path.parent) if line["step"] < step]
    write_atomic(path, b"".join(json.dumps(line).encode() + b"\n" for line in kept))
