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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from envsched_gnn.config import Config, flatten, load_config, to_table
from envsched_gnn.errors import ConfigError, EnvSchedError
from envsched_gnn.eval.compare.engines import EngineArena
from envsched_gnn.eval.headline.arms import ARMS, FURTHER, Arm, scheduler_of
from envsched_gnn.eval.headline.oracle import Looking
from envsched_gnn.eval.resumable import Resumable, Stateful
from envsched_gnn.files import without_nan, write_atomic
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import RolloutGroup, Selection
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.policies import Round, play_round
from envsched_gnn.schedule.uniform import Uniform
from envsched_gnn.stopwatch import Stopwatch
from envsched_gnn.train.evaluation import held_out, summary
from envsched_gnn.train.folder import commit, locked
from envsched_gnn.train.loop import append, figures
from envsched_gnn.train.pocket.engine import PocketEngine

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "headline"
POOLS = ("main", "control", "unclustered")
FOUR: tuple[Arm, ...] = ("uniform", "paper", "default", "oracle")
"""The arms of every pool; the others are run on the main pool alone, those of FURTHER on the pools that are named with them."""
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
    arena: EngineArena
    engine: PocketEngine
    """The arena's."""
    charged: int = 0
    """Rollouts so far."""

    @property
    def kept(self) -> Resumable:
        """What lies in the folder."""
        parts: dict[str, Stateful] = {"scheduler": self.scheduler, "engine": self.engine}
        return Resumable(folder=self.folder, pool=self.pool, parts=parts, files=("steps.jsonl", "evaluations.jsonl"))

    def play(self) -> None:
        """All steps that are missing, then the last evaluation."""
        step, self.charged = self.kept.restore()
        while not self._over(step):
            if step % self.config.evaluate.every == 0:
                self.kept.save(step, self.charged)
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
        watch = Stopwatch()
        if isinstance(self.scheduler, Looking):
            with watch("look"):
                self.arena.tell(self.scheduler, step)
        played = self._filtered(step) if self.arm == "dapo" else play_round(self.scheduler, self.arena, step, watch)
        self.engine.learn(played.train)
        watch.seconds.pop("rollout", None)  # told by the engine, stage by stage
        correlation = self.scheduler.metrics().get("envsched/round/rank_correlation")
        self.charged += played.charged
        line = {"step": step, **figures(self.pool, played.selection, played.groups), "spearman": correlation, "charged": self.charged}
        line["informative"] = [self.pool.index_of[group.key] for group in played.groups if _mixed(group)]
        line |= {f"seconds_{stage}": round(value, 4) for stage, value in (watch.seconds | self.engine.timings).items()}
        append(self.folder / "steps.jsonl", without_nan(line))

    def _filtered(self, step: int) -> Round:
        """Dynamic sampling (DAPO): draw and roll out until a batch of groups with variance is there, or the budget is spent."""
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
            kept += filter(_mixed, played)
        return Round(step=step, selections=tuple(selections), groups=tuple(groups), train=tuple(kept[:size]))

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


def _mixed(group: RolloutGroup) -> bool:
    """Whether its rewards differ."""
    return len(set(group.rewards) - {None}) > 1


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
        with PocketEngine(pool, config.model, config.train, config.rollout, config.run.seed) as engine:
            arena = EngineArena(config, pool, engine)
            scheduler = scheduler_of(arm, config, pool, arena.graph)
            Run(folder=folder, config=config, arm=arm, pool=pool, scheduler=scheduler, arena=arena, engine=engine).play()


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


def planned(pools: Sequence[str], arms: Sequence[str], seeds: Sequence[int] | None) -> list[tuple[str, Arm, int]]:
    """(pool, arm, seed) of every run, in the order in which they are made: seed by seed, so that what is finished is always balanced."""
    runs = []
    for pool in pools:
        four = [arm for arm in FOUR if arm in arms]
        others: Sequence[Arm] = (*ARMS, *FURTHER) if pool == "main" else FURTHER
        rest = [arm for arm in others if arm in arms and arm not in FOUR]
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
    parser.add_argument("--arm", nargs="*", default=list(ARMS), choices=[*ARMS, *FURTHER])
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
