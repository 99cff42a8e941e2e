"""From a name or directory to a pool.

Knows: the bundled names, how a directory's format is recognised, that environments may be split by a rule.
Does not know: what stands in any file.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from envsched_gnn.config import PoolConfig
from envsched_gnn.errors import PoolError, message
from envsched_gnn.pool.envscaler import ENVIRONMENTS, TASKS, find_one, read_envscaler
from envsched_gnn.pool.manifest import find_table, read_manifest
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.regroup import regroup
from envsched_gnn.pool.taught import with_taught

NAMES = ("toolworld", "bfcl")
"""Pools that need no directory. A directory of that name is reached by `./toolworld`."""
_EXPECTED = f"{ENVIRONMENTS} and {TASKS} (EnvScaler), or environments.jsonl and tasks.jsonl (or .parquet)"
_LISTED = 8
"""Files that a message names."""


def load_pool(config: PoolConfig) -> Pool:
    """The pool that `config.path` names: `toolworld`, `bfcl`, or a directory whose format is recognised by its files.

    Its environments are split by `config.environment_rule`; tasks of `config.taught_share` are marked.

    Raises:
        PoolError: nothing is found, or it is ambiguous, malformed or inconsistent, or a task lacks what the rule names.
    """
    return with_taught(regroup(_read(config), config.environment_rule), config.taught_share)


def _read(config: PoolConfig) -> Pool:
    match config.path:
        case "toolworld":
            from envsched_gnn.pool.toolworld import generate

            return generate(config.toolworld)
        case "bfcl":
            from envsched_gnn.pool.bfcl import read_bfcl

            return read_bfcl(graded=config.bfcl_graded)
        case path:
            return _read_directory(Path(path).expanduser())


def _read_directory(directory: Path) -> Pool:
    if not directory.is_dir():
        raise _not_a_directory(directory)
    envscaler = [find_one(directory, pattern) for pattern in (ENVIRONMENTS, TASKS)]
    manifest = [find_table(directory, name) for name in ("environments", "tasks")]
    if any(envscaler) and any(manifest):
        names = " and ".join(path.name for path in (*envscaler, *manifest) if path)
        raise PoolError(message(str(directory), names, "files of one format", "Give each pool a directory of its own."))
    if any(envscaler):
        return read_envscaler(directory)
    if any(manifest):
        return read_manifest(directory)
    raise PoolError(message(str(directory), _contents(directory), _EXPECTED, _cure(directory)))


def _not_a_directory(path: Path) -> PoolError:
    if path.is_file():
        return PoolError(message(str(path), "is a file", "a directory", f"Give its directory, {str(path.parent)!r}."))
    siblings = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=1)
    named = difflib.get_close_matches(str(path), NAMES, n=1)
    hint = named[0] if named else str(path.parent / near[0]) if near else ""
    cure = f"Did you mean {hint!r}?" if hint else "Check the path."
    return PoolError(message(f"pool {str(path)!r}", "no such directory", f"a directory, or one of {', '.join(NAMES)}", cure))


def _contents(directory: Path) -> str:
    names = sorted(entry.name for entry in directory.iterdir())
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"holds {', '.join(names[:_LISTED])}{more}" if names else "is empty"


def _cure(directory: Path) -> str:
    """A pool one level below, or a file with nearly the right name."""
    for below in sorted(entry for entry in directory.iterdir() if entry.is_dir()):
        if _looks_like_pool(below):
            return f"Did you mean {str(below)!r}?"
    wanted = ("environments.jsonl", "tasks.jsonl", "env_metadata.json", "scenario.json")
    for name in sorted(entry.name for entry in directory.iterdir() if entry.is_file()):
        near = difflib.get_close_matches(name, wanted, n=1, cutoff=0.75)
        if near:
            return f"{name} should perhaps be named {near[0]}."
    return "Check the path, or add the files."


def _looks_like_pool(directory: Path) -> bool:
    patterns = (ENVIRONMENTS, TASKS, "environments.jsonl", "environments.parquet", "tasks.jsonl", "tasks.parquet")
    return any(next(directory.glob(pattern), None) for pattern in patterns)
