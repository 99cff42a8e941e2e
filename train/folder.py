"""The run folder: the files that say what a run is, and whether a folder holds the same run.

Knows: `config.toml`, `resolved.toml`, `versions.json`, `pool.json`, which command a folder belongs to, the lock.
Does not know: rounds, checkpoints, the ledger.
"""

from __future__ import annotations

import fcntl
import json
import platform
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from envsched_gnn.config import Config, flatten, to_table, to_toml
from envsched_gnn.errors import CheckpointError, ConfigError
from envsched_gnn.files import write_atomic
from envsched_gnn.pool.pool import Pool

FREE = frozenset(
    {
        *("run.steps", "run.folder", "run.device", "rollout.workers", "rollout.memory_mb"),
        *("train.micro_batch", "train.gradient_checkpointing", "train.checkpoint_every", "train.max_prompt_tokens"),
        *("vllm.memory_share", "vllm.sleep", "vllm.tensor_parallel"),
    }
)
"""Settings that a resumed run may change: they decide how long, where and in how much memory it runs, not what it picks."""

Table = dict[str, Any]
Command = Literal["run", "train"]

PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "scikit-learn", "transformers", "trl", "accelerate")
"""Whose versions decide a run's numbers."""

BEGUN = ("metrics.jsonl", "checkpoint/*", "trainer/checkpoint-*")
"""Files of a run that has come to its first round."""
EVALUATIONS = "evaluations.jsonl"
"""In the folders of `envsched train` alone; empty before the first evaluation."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the lock ends with the process, however it ends.

    Raises:
        ConfigError: another process runs in this folder, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror}). Give a run.folder that you may write to.") from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{folder}: another process is running here. Wait for it, or choose another run.name.") from None
        yield


def prepare(folder: Path, config: Config, pool: Pool, given: str, command: Command = "run") -> list[str]:
    """Describe the run in its folder, or check that the folder holds this very run; returns what a user should know.

    Raises:
        ConfigError: the folder holds a run with another setting, or of another command.
        CheckpointError: it holds a run of another pool, or files that are no run.
    """
    resolved = to_toml(to_table(config)).encode()
    notes: list[str] = []
    if not _begun(folder):
        if not (folder / "resolved.toml").is_file() or (folder / "resolved.toml").read_bytes() != resolved or _other_pool(folder, pool):
            (folder / "graph.pt").unlink(missing_ok=True)
        write_atomic(folder / "config.toml", (given or to_toml(to_table(config))).encode())
        write_atomic(folder / "versions.json", _json(versions()))
        write_atomic(folder / "pool.json", _json(describe(pool)))
        (folder / EVALUATIONS).unlink(missing_ok=True)
        if command == "train":
            (folder / EVALUATIONS).touch()
    elif (folder / "resolved.toml").is_file():
        _require_same_command(folder, command)
        _require_same_config(folder, config)
        _require_same_pool(folder, pool)
        notes = _changed_versions(folder)
    else:
        raise CheckpointError(f"{folder}: rounds without resolved.toml; expected a run folder or none. Choose another run.name.")
    write_atomic(folder / "resolved.toml", resolved)
    return notes


def _begun(folder: Path) -> bool:
    """Whether a run has come to its first round here; one that failed before, as for a wrong path, may be given other settings."""
    return any(any(folder.glob(pattern)) for pattern in BEGUN)


def _changed_versions(folder: Path) -> list[str]:
    here = versions()
    there = _kept(folder / "versions.json")
    if there is None:
        return [_rewritten(folder / "versions.json", here)]
    changed = [f"{name} {there.get(name)} then, {here[name]} now" for name in here if there.get(name) != here[name]]
    return [f"warning: versions have changed since this run began, so its numbers may differ: {'; '.join(changed)}"] if changed else []


def _require_same_command(folder: Path, command: Command) -> None:
    there = "train" if (folder / EVALUATIONS).exists() else "run"
    if there != command:
        raise ConfigError(f"{folder}: holds a run of `envsched {there}`; this is `envsched {command}`. Choose another run.name.")


def _require_same_config(folder: Path, config: Config) -> None:
    try:
        there = dict(flatten(tomllib.loads((folder / "resolved.toml").read_text(encoding="utf-8"))))
    except ValueError as error:
        raise CheckpointError(
            f"{folder / 'resolved.toml'}: not TOML ({error}); expected the settings of a run. Choose another run.name."
        ) from None
    here = dict(flatten(to_table(config)))
    defaults = dict(flatten(to_table(Config())))
    there = {key: defaults[key] for key in here.keys() & defaults.keys()} | there  # a setting that is younger than the run
    changed = [key for key in sorted(here.keys() | there.keys()) if here.get(key) != there.get(key) and key not in FREE]
    if changed:
        differences = ", ".join(f"{key} = {there.get(key)!r} there and {here.get(key)!r} now" for key in changed)
        raise ConfigError(f"{folder}: holds a run with other settings: {differences}. Choose another run.name, or set them back to resume.")


def _kept(path: Path) -> Table | None:
    """A JSON object that a run wrote; None if it is not there, or damaged."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return table if isinstance(table, dict) else None


def _rewritten(path: Path, table: Table) -> str:
    write_atomic(path, _json(table))
    return f"warning: {path}: missing or damaged; written again, as things are now"


def complete(folder: Path, pool: Pool) -> list[str]:
    """Write a lost `pool.json` again, once the graph of the run has told that the pool is the same; returns what a user should know."""
    path = folder / "pool.json"
    return [_rewritten(path, describe(pool))] if "content_hash" not in (_kept(path) or {}) else []


def _other_pool(folder: Path, pool: Pool) -> Table | None:
    """The description of the folder's pool, if it is another one."""
    there = _kept(folder / "pool.json")
    return there if there is not None and there.get("content_hash", pool.content_hash) != pool.content_hash else None


def _require_same_pool(folder: Path, pool: Pool) -> None:
    there = _other_pool(folder, pool)
    if there is not None:
        raise CheckpointError(
            f"{folder}: a run of another pool: {there.get('tasks')} tasks of hash {str(there['content_hash'])[:12]} there, "
            f"{len(pool.tasks):,} with {pool.content_hash[:12]} now ({pool.source}). Choose another run.name, or restore the pool."
        )


def describe(pool: Pool) -> Table:
    """What a report has to know of a pool, without its tasks' contents."""
    tasks, trained = Counter(task.env_id for task in pool.tasks), Counter(task.env_id for task in pool.tasks if not task.held_out)
    entries = [
        {"env_id": e.env_id, "tasks": tasks[e.env_id], "trained": trained[e.env_id], "tools": len(e.tools)} for e in pool.environments
    ]
    ranges = {key: list(span) for key, span in zip(pool.keys, pool.reward_ranges, strict=True) if span != (0.0, 1.0)}
    return {
        "source": pool.source,
        "content_hash": pool.content_hash,
        "tasks": len(pool.tasks),
        "environments": entries,
        "reward_ranges": ranges,
    }


def versions() -> Table:
    """Versions of everything that decides a run's numbers, and the commit if the package lies in a git checkout."""
    found = {name: _version(name) for name in PACKAGES}
    return {
        "envsched_gnn": _version("envsched-gnn"),
        "commit": commit(),
        "python": platform.python_version(),
        **found,
        "platform": platform.platform(),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """The commit of the checkout that holds the package, with `+changes` if files differ from it; empty outside git."""
    here = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _json(table: Table) -> bytes:
    return (json.dumps(table, indent=1, ensure_ascii=True) + "\n").encode()
