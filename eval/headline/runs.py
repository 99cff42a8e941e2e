"""The runs of the headline experiment: each pool, arm and seed trained from the same warm start on the same rollout budget, resumable.

    python -m envsched_gnn.eval.headline.runs ROOT [--pool main] [--arm uniform ...] [--seed 0 ...] [--processes 2] [-s key=value]

Knows: the order of a step, what a run writes, which runs there are and in which order they are made.
Does not know: how a policy learns, how picks are made, what is computed from the runs.

A run is `ROOT/POOL/ARM/SEED/`: settings.json, steps.jsonl, evaluations.jsonl, a checkpoint before each evaluation, done.json at last. The
same command goes on where it was stopped. The seed is that of the pool, of the sampling and of the scheduler; arms of one seed share pool
and first policy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import HeteroData

from envsched_gnn.config import Config, flatten, load_config, to_table
from envsched_gnn.errors import CheckpointError, ConfigError, EnvSchedError, GraphError
from envsched_gnn.eval.headline.arms import ARMS, Arm, scheduler_of
from envsched_gnn.eval.headline.oracle import Oracle, solvable
from envsched_gnn.files import cache_folder, without_nan, write_atomic
from envsched_gnn.graph.build import build_graph
from envsched_gnn.graph.io import load_graph, save_graph
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import RolloutGroup, Selection
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.uniform import Uniform
from envsched_gnn.train import checkpoint
from envsched_gnn.train.evaluation import held_out, summary
from envsched_gnn.train.folder import commit, locked
from envsched_gnn.train.loop import append, figures
from envsched_gnn.train.pocket.engine import PocketEngine

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "headline"
POOLS = ("main", "control", "unclustered")
FOUR: tuple[Arm, ...] = ("uniform", "paper", "default", "oracle")
"""The arms of every pool; the others are run on the main pool alone."""
MANY, FEW = 10, 5
"""Seeds of these four on the main pool, and of everything else (the experiment's protocol)."""
FINAL = (1000, 4)
"""Held-out tasks and rollouts of each in the last evaluation (the experiment's protocol)."""


@dataclass(kw_only=True)
class Run:
    """The parts of one run."""

    folder: Path
    config: Config
    arm: Arm
    pool: Pool
    scheduler: EnvSched | Uniform
    engine: PocketEngine
    charged: int = 0
    """Rollouts so far."""
    seconds: dict[str, float] = field(default_factory=dict)

    def play(self) -> None:
        """All steps that are missing, then the last evaluation."""
        step = self._restore()
        while not self._over(step):
            if step % self.config.evaluate.every == 0:
                self._save(step)
                self._evaluate(step, self.config.evaluate.tasks, self.config.evaluate.samples)
            self._step(step)
            step += 1
        self._evaluate(step, self.config.evaluate.tasks, self.config.evaluate.samples)
        self._evaluate(step, *FINAL, final=True)
        done = {"steps": step, "rollouts": self.charged, "commit": commit(), "learning_rate": self.config.train.learning_rate}
        write_atomic(self.folder / "done.json", json.dumps(done).encode())

    def _over(self, step: int) -> bool:
        size = self.config.select.batch_size * self.config.rollout.num_rollouts
        return step >= self.config.run.steps or self.charged + size > self.config.run.steps * size

    def _step(self, step: int) -> None:
        self.seconds = {}
        if isinstance(self.scheduler, Oracle):
            with self._timed("look"):
                self.scheduler.look(step, self._sampled)
        selections, groups = self._filtered(step) if self.arm == "dapo" else self._plain(step)
        picks = Selection(step=step, picks=tuple(pick for selection in selections for pick in selection.picks))
        correlation = self.scheduler.metrics().get("envsched/round/rank_correlation")
        line = {"step": step, **figures(self.pool, picks, groups), "spearman": correlation}
        self.charged += line["rollouts"]
        line |= {"charged": self.charged} | {f"seconds_{stage}": round(value, 4) for stage, value in self.seconds.items()}
        append(self.folder / "steps.jsonl", without_nan(line))

    def _sampled(self, rows: Sequence[int], samples: int) -> list[list[float | None]]:
        """Rewards [rows][samples]; those that can only be 0 are not played for."""
        possible = [solvable(self.pool, row) for row in rows]
        played = iter(self.engine.evaluate([row for row, can in zip(rows, possible, strict=True) if can], samples))
        return [next(played) if can else [0.0] * samples for can in possible]

    def _plain(self, step: int) -> tuple[list[Selection], list[RolloutGroup]]:
        """Select, roll out and learn, observe."""
        with self._timed("select"):
            selection = self.scheduler.select(step)
        groups = list(self.engine.rollout(selection))
        self.seconds |= self.engine.timings
        with self._timed("observe"):
            self.scheduler.observe(groups)
        return [selection], groups

    def _filtered(self, step: int) -> tuple[list[Selection], list[RolloutGroup]]:
        """Dynamic sampling (DAPO): draw and roll out until a batch of groups with variance is there, and learn from these alone."""
        size, budget = self.config.select.batch_size, self.config.run.steps * self.config.select.batch_size
        selections: list[Selection] = []
        groups: list[RolloutGroup] = []
        kept: list[RolloutGroup] = []
        while len(kept) < size and self.charged // self.config.rollout.num_rollouts + len(groups) + size <= budget:
            selection = self.scheduler.select(step, request_id=str(len(selections)))
            if not selection.picks:
                break
            selections.append(selection)
            came = {group.group_id: group for group in self.engine.play(selection, occasion=f"round {step} draw {len(selections)}")}
            played = [came[group_id] for group_id in selection.group_ids]
            self.scheduler.observe(played)
            groups += played
            kept += [group for group in played if len(set(group.rewards) - {None}) > 1]
        self.engine.learn(kept[:size])
        self.seconds |= self.engine.timings
        return selections, groups

    def _evaluate(self, step: int, tasks: int, samples: int, *, final: bool = False) -> None:
        chosen = held_out(self.pool, tasks)
        rewards = self.engine.evaluate([*chosen.tasks, *chosen.environments], samples)
        split = len(chosen.tasks)
        for name, rows, some in (("tasks", chosen.tasks, rewards[:split]), ("environments", chosen.environments, rewards[split:])):
            line = {
                "step": step,
                "set": name,
                "mean": summary(self.pool, rows, some)["reward"],
                "count": len(rows),
                "samples": samples,
                "final": final,
            }
            append(self.folder / "evaluations.jsonl", without_nan(line))

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - begin

    def _save(self, step: int) -> None:
        parts = {"scheduler": self.scheduler.state_dict(), "engine": self.engine.state_dict()}
        state = {"step": step, "charged": self.charged, "pool_hash": self.pool.content_hash, **parts}
        checkpoint.save(self.folder / "checkpoint", step, state)

    def _restore(self) -> int:
        """The step to go on with; files are cut back to it."""
        state, _ = checkpoint.load_newest(self.folder / "checkpoint")
        step = 0
        if state is not None:
            if state["pool_hash"] != self.pool.content_hash:
                raise CheckpointError(f"{self.folder}: begun on another pool: the generator has changed since. Give another ROOT.")
            step, self.charged = state["step"], state["charged"]
            self.scheduler.load_state_dict(state["scheduler"])
            self.engine.load_state_dict(state["engine"])
        for name in ("steps.jsonl", "evaluations.jsonl"):
            _cut(self.folder / name, step)
        return step


def _cut(path: Path, step: int) -> None:
    """Keep the lines of steps before `step`."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    write_atomic(path, b"".join(line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] < step))


def config_of(pool: str, seed: int, overrides: Sequence[str] = ()) -> Config:
    """The settings of a run: the pool's file, with the seed."""
    return load_config(CONFIGS / f"{pool}.toml", [f"pool.toolworld.seed={seed}", f"run.seed={seed}", *overrides])


def make(root: Path, pool_name: str, arm: Arm, seed: int, overrides: Sequence[str] = ()) -> None:
    """Make one run, or what is missing of it."""
    folder, config = root / pool_name / arm / str(seed), config_of(pool_name, seed, overrides)
    torch.set_num_threads(1)
    with locked(folder):
        _require_same(folder / "settings.json", to_table(config))
        if (folder / "done.json").is_file():
            return
        pool = load_pool(config.pool)
        scheduler = scheduler_of(arm, config, pool, graph_of(pool))
        with PocketEngine(pool, config.model, config.train, config.rollout, config.run.seed) as engine:
            Run(folder=folder, config=config, arm=arm, pool=pool, scheduler=scheduler, engine=engine).play()


def _require_same(path: Path, settings: dict[str, Any]) -> None:
    """Keep the settings of a run that begins; one that goes on must have the same. What only one of them knows is new since, or gone."""
    if not path.is_file():
        write_atomic(path, json.dumps(settings).encode())
    kept = json.loads(path.read_text(encoding="utf-8"))
    here, there = (dict(flatten(table)) for table in (settings, kept))
    changed = sorted(key for key in here.keys() & there.keys() if here[key] != there[key])
    if changed:
        raise ConfigError(
            f"{path}: a run with other settings ({', '.join(changed)} differ). Give another ROOT, or the same settings to go on."
        )


def graph_of(pool: Pool) -> HeteroData:
    """The pool's graph, built once for all arms."""
    path = cache_folder() / "graphs" / f"{pool.content_hash[:24]}.pt"
    try:
        return load_graph(path)
    except (GraphError, OSError):
        graph = build_graph(pool)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_graph(graph, path)
        return graph


def planned(pools: Sequence[str], arms: Sequence[str], seeds: Sequence[int] | None) -> list[tuple[str, Arm, int]]:
    """(pool, arm, seed) of every run, in the order in which they are made: seed by seed, so that what is finished is always balanced."""
    runs = []
    for pool in pools:
        four = [arm for arm in FOUR if arm in arms]
        rest = [arm for arm in ARMS if arm in arms and arm not in FOUR] if pool == "main" else []
        for some, count in ((four, MANY if pool == "main" else FEW), (rest, FEW)):
            runs += [(pool, arm, seed) for seed in (range(count) if seeds is None else seeds) for arm in some]
    return runs


def make_all(root: Path, runs: Sequence[tuple[str, Arm, int]], processes: int, overrides: Sequence[str]) -> list[str]:
    """Make runs in processes of one thread each, which end with this one; returns the runs that failed."""
    waiting, failed = list(runs), []
    busy: dict[tuple[str, Arm, int], tuple[subprocess.Popen[bytes], float]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                run = waiting.pop(0)
                busy[run] = (_started(root, *run, overrides), time.monotonic())
            time.sleep(0.2)
            for run, (process, begin) in list(busy.items()):
                if process.poll() is not None:
                    del busy[run]
                    name = "/".join(map(str, run))
                    state = f"failed with {process.returncode}" if process.returncode else "done"
                    print(f"{name}: {state} after {time.monotonic() - begin:.0f} s; {len(waiting) + len(busy)} runs left", flush=True)
                    failed += [name] if process.returncode else []
    finally:
        for process, _ in busy.values():
            process.terminate()
    return failed


def _started(root: Path, pool: str, arm: Arm, seed: int, overrides: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "envsched_gnn.eval.headline.runs", str(root), "--one", pool, arm, str(seed)]
    command += [part for override in overrides for part in ("-s", override)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m envsched_gnn.eval.headline.runs", description="Runs of the headline experiment.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--pool", nargs="*", default=POOLS, choices=POOLS)
    parser.add_argument("--arm", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seed", nargs="*", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--one", nargs=3, metavar=("POOL", "ARM", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.one:
            pool, arm, seed = arguments.one
            make(arguments.root, pool, arm, int(seed), arguments.set)
            return
        failed = make_all(arguments.root, planned(arguments.pool, arguments.arm, arguments.seed), arguments.processes, arguments.set)
    except EnvSchedError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on from the last checkpoints") from None
    if failed:
        raise SystemExit(f"error: {len(failed)} runs failed: {', '.join(failed)}. Give the same command again to go on with them.")


if __name__ == "__main__":
    main()
