"""The runs of a comparison: which there are, each in a process of its own, as many at once as asked for, resumable.

Knows: folders and settings of runs, processes that end with the one that started them.
Does not know: the order of a run, what is computed from it.

A run is `FOLDER/POLICY/SEED/`. The processes are `python -m envsched_gnn.eval.compare.runs RUN_FOLDER`, which read their settings there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envsched_gnn.config import Config, flatten, load_config, to_table, to_toml
from envsched_gnn.errors import ConfigError, EnvSchedError, require
from envsched_gnn.eval.compare.variants import Entry, entry_of
from envsched_gnn.files import write_atomic

Where = Literal["simulate", "run", "train"]
KIND, SETTINGS, ERROR, DONE = "run.json", "resolved.toml", "error.txt", "done.json"
FREE = ("run.folder", "run.name", "run.device", "rollout.workers", "rollout.memory_mb", "train.checkpoint_every")
"""Settings that decide nothing of what a run comes to."""
SEEDS: dict[Where, tuple[str, ...]] = {
    "simulate": ("run.seed", "simulate.seed"),
    "run": ("run.seed", "rollout.seed", "pool.toolworld.seed"),
    "train": ("run.seed", "pool.toolworld.seed"),
}
"""What the seed of a comparison is the seed of: the picks, the sampling, and the world or the generated pool."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run that is wanted."""

    where: Where
    entry: Entry
    seed: int
    folder: Path
    config: Config

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.entry.name}, seed {self.seed}"

    @property
    def done(self) -> bool:
        """Whether it is finished."""
        return (self.folder / DONE).is_file()


def planned(
    folder: Path, where: Where, entries: Sequence[Entry], seeds: Sequence[int], config: Path | None, settings: Sequence[str]
) -> list[Planned]:
    """All runs of a comparison, seed by seed, so that what is finished is always paired.

    Raises:
        ConfigError: a setting is wrong.
    """
    runs = []
    for seed in seeds:
        seeded = [f"{key}={seed}" for key in SEEDS[where]]
        for entry in entries:
            own = load_config(config, [*settings, *(entry.variant.settings if entry.variant else ()), *seeded])
            require(own.evaluate.tasks >= 1, "evaluate.tasks", own.evaluate.tasks, "at least 1: a comparison needs a learning curve")
            require(
                where != "train" or own.model.kind == "pocket", "model.kind", own.model.kind, "'pocket': the policy that --in train has"
            )
            tfidf = where != "simulate" or own.graph.similarity == "tfidf"
            require(tfidf, "graph.similarity", own.graph.similarity, "'tfidf' in a simulation, whose tasks hold no text; use --in run")
            runs.append(Planned(where=where, entry=entry, seed=seed, folder=folder / entry.folder / str(seed), config=own))
    return runs


def describe(run: Planned) -> None:
    """Keep what a run that begins is; one that goes on must be the same.

    Raises:
        ConfigError: it is another, or has other settings.
    """
    if not (run.folder / KIND).is_file():
        run.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(run.folder / SETTINGS, to_toml(to_table(run.config)).encode())
        write_atomic(run.folder / KIND, json.dumps({"where": run.where, "policy": run.entry.name, "seed": run.seed}).encode())
    there = described(run.folder)
    differences = [f"--in {there.where} there and {run.where} now"] if there.where != run.where else []
    old, new = (dict(flatten(to_table(config))) for config in (there.config, run.config))
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key) and key not in FREE]
    differences += [f"{key} = {old.get(key)!r} there and {new.get(key)!r} now" for key in changed]
    if differences:
        raise ConfigError(
            f"{run.folder}: a run with other settings: {', '.join(differences)}. Give another --folder, or set them back to go on."
        )


def described(folder: Path) -> Planned:
    """The run that a folder holds.

    Raises:
        ConfigError: it holds none, or a file is damaged.
    """
    try:
        kind: dict[str, Any] = json.loads((folder / KIND).read_text(encoding="utf-8"))
        where, entry, seed = kind["where"], entry_of(kind["policy"]), kind["seed"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder / KIND}: cannot be read ({error}); expected what envsched compare wrote. Delete {folder}.") from None
    return Planned(where=where, entry=entry, seed=seed, folder=folder, config=load_config(folder / SETTINGS))


def make_all(runs: Sequence[Planned], processes: int, tell: Callable[[str], None]) -> list[str]:
    """Make what is missing; a sentence for each run that failed. The processes end with this one.

    Raises:
        ConfigError: a folder holds a run with other settings; nothing has been started then.
    """
    for run in runs:
        describe(run)
    waiting, failed = [run for run in runs if not run.done], []
    if len(waiting) < len(runs):
        tell(f"{len(runs) - len(waiting)} of {len(runs)} runs are finished already")
    busy: dict[subprocess.Popen[bytes], tuple[Planned, float]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                run = waiting.pop(0)
                busy[_started(run)] = (run, time.monotonic())
            time.sleep(0.05)
            for process in [process for process in busy if process.poll() is not None]:
                run, begin = busy.pop(process)
                process.communicate()  # closes the pipe
                failed += _failure(run, process.returncode)
                state = "failed" if process.returncode else "done"
                tell(f"{run.name}: {state} after {time.monotonic() - begin:.0f} s; {len(waiting) + len(busy)} runs left")
    finally:
        for process in busy:
            process.terminate()
        for process in busy:
            process.communicate()
    return failed


def _started(run: Planned) -> subprocess.Popen[bytes]:
    """The pipe is never written to: it closes when this process ends, however it ends."""
    (run.folder / ERROR).unlink(missing_ok=True)
    command = [sys.executable, "-m", "envsched_gnn.eval.compare.runs", str(run.folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _failure(run: Planned, code: int) -> list[str]:
    if not code:
        return []
    path = run.folder / ERROR
    said = path.read_text(encoding="utf-8").strip() if path.is_file() else f"its process ended with {code}"
    return [f"{run.name}: {said}"]


def make(run: Planned) -> None:
    """Make a run, or what is missing of it, in this process."""
    import torch

    from envsched_gnn.eval.compare.arena import arena_of
    from envsched_gnn.eval.compare.play import Run
    from envsched_gnn.eval.compare.policies import policy_in
    from envsched_gnn.train.folder import locked

    torch.set_num_threads(1)
    with locked(run.folder):
        if not run.done:
            with arena_of(run.where, run.config) as arena:
                Run(folder=run.folder, config=run.config, arena=arena, policy=policy_in(arena, run.entry, run.config)).play()


def _end_with_parent() -> None:
    """End this process when the one that holds the other end of its standard input is gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """A run in this process; see the module's docstring."""
    folder = Path(sys.argv[1])
    _end_with_parent()
    try:
        make(described(folder))
    except KeyboardInterrupt:
        sys.exit(130)
    except EnvSchedError as error:
        write_atomic(folder / ERROR, str(error).encode())
        sys.exit(1)


if __name__ == "__main__":
    main()
