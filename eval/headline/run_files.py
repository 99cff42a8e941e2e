"""The folders of the headline experiment, read: `ROOT/POOL/ARM/SEED/` with steps.jsonl, evaluations.jsonl and, once complete, done.json.

Knows: what a line must hold, which runs are finished, and how to say which one is not usable.
Does not know: how a run is made, what is computed from it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from envsched_gnn.errors import HistoryError, message

STEP_KEYS = ("zero_variance_share", "variance_mean", "environments", "tools", "spearman", "rollouts", "tokens")
"""Figures of a training step; `rollouts` and `tokens` are those of the step alone, every rollout charged."""
MAY_BE_NULL = ("zero_variance_share", "variance_mean", "spearman")
"""Without two rewards in any group, or without a prediction, there is no value."""
SETS = ("tasks", "environments")
"""Held-out tasks of environments trained on, and tasks of held-out environments."""
ROLES = ("main", "control", "unclustered")
DONE = "done.json"
RISING = 8
"""Steps after which rollouts that rose every time are a running total and not those of each step (by chance: one in 40,320)."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run."""

    folder: Path
    pool: str
    arm: str
    seed: int
    steps: list[dict[str, Any]]
    """Lines of steps.jsonl; line s is training step s."""
    evaluations: list[dict[str, Any]]
    """Lines of evaluations.jsonl."""

    def column(self, name: str) -> np.ndarray:
        """One figure of every step, [steps]; NaN where it was not measured."""
        return np.array([math.nan if line[name] is None else line[name] for line in self.steps], dtype=float)


@dataclass(frozen=True, kw_only=True)
class Collection:
    """All runs under a root."""

    runs: tuple[Run, ...]
    """Finished and readable, by pool, arm and seed."""
    roles: dict[str, str]
    """Role of each pool that has a finished run."""
    waiting: tuple[str, ...]
    """Runs in progress, as sentences."""
    damaged: tuple[str, ...]
    """What cannot be used, as sentences with a cure."""


def collect(root: str | Path) -> Collection:
    """Read every finished run under `root`; one that is in progress or damaged is named and does not stop the others.

    Raises:
        HistoryError: no such folder, or no run under it, finished or not.
    """
    root = Path(root)
    folders = sorted(path for path in root.glob("*/*/*") if path.is_dir() and not _hidden(path.relative_to(root)))
    if not folders:
        found = "holds no POOL/ARM/SEED folder" if root.is_dir() else "no such folder"
        raise HistoryError(message(str(root), found, "the runs of the headline experiment", "Start the experiment, or give its folder."))
    runs, waiting, damaged, roles = [], [], [], {}
    for folder in folders:
        if not (folder / DONE).is_file():
            waiting.append(f"{folder}: no {DONE}, so the run is in progress; left out.")
            continue
        try:
            run = read_finished(folder)
            roles[run.pool] = role_of(folder.parent.parent)
            runs.append(run)
        except HistoryError as error:
            damaged.append(str(error))
    runs.sort(key=lambda run: (run.pool, run.arm, run.seed))
    return Collection(runs=tuple(runs), roles=roles, waiting=tuple(waiting), damaged=tuple(dict.fromkeys(damaged)))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def role_of(folder: Path) -> str:
    """Role of a pool: what `role` in its pool.json says, else the name of its folder.

    Raises:
        HistoryError: neither is main, control or unclustered.
    """
    role: Any = folder.name
    path = folder / "pool.json"
    if path.is_file():
        role = _object(path, path.read_text(encoding="utf-8", errors="replace"), str(path)).get("role", role)
    if role not in ROLES:
        cure = f'Name the folder so, or write {{"role": "..."}} into {path}.'
        raise HistoryError(message(str(folder), f"role {role!r}", f"one of {', '.join(ROLES)}", cure))
    return str(role)


def read_finished(folder: Path) -> Run:
    """Read a run that has its done.json.

    Raises:
        HistoryError: a file is missing, cut short or malformed, with its line; a step or an evaluation is missing or there twice.
    """
    try:
        seed = int(folder.name)
    except ValueError:
        raise HistoryError(message(str(folder), f"folder {folder.name!r}", "a seed as its name", "Move it out of the root.")) from None
    _object(folder / DONE, _text(folder / DONE), str(folder / DONE))
    steps = _lines(folder / "steps.jsonl")
    for number, line in enumerate(steps):
        _check_step(folder / "steps.jsonl", number, line)
    _check_charge(folder / "steps.jsonl", [line["rollouts"] for line in steps])
    evaluations = _lines(folder / "evaluations.jsonl")
    for number, line in enumerate(evaluations):
        _check_evaluation(folder / "evaluations.jsonl", number, line)
    _check_whole(folder / "evaluations.jsonl", evaluations, len(steps))
    return Run(folder=folder, pool=folder.parent.parent.name, arm=folder.parent.name, seed=seed, steps=steps, evaluations=evaluations)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise HistoryError(message(str(path), f"cannot be read ({error.strerror})", "a file of a finished run", _again(path))) from None


def _again(path: Path) -> str:
    return f"Delete {path.parent} and run the experiment again; it makes only what is missing."


def _object(path: Path, text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise HistoryError(message(where, f"not JSON ({error})", "an object", _again(path))) from None
    if not isinstance(value, dict):
        raise HistoryError(message(where, f"{text.strip()[:40]!r}", "an object", _again(path)))
    return value


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a finished file; unlike that of a run in progress, its last line must be whole."""
    texts = _text(path).splitlines()
    if not texts:
        raise HistoryError(message(str(path), "empty", "one object a line", _again(path)))
    return [_object(path, text, f"{path}, line {number}") for number, text in enumerate(texts, start=1)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _need(condition: bool, path: Path, number: int, found: str, expected: str) -> None:
    if not condition:
        raise HistoryError(message(f"{path}, line {number + 1}", found, expected, _again(path)))


def _check_step(path: Path, number: int, line: dict[str, Any]) -> None:
    _need(line.get("step") == number, path, number, f"step {line.get('step')!r}", f"step {number}: every step once, in order")
    for key in STEP_KEYS:
        value = line.get(key)
        _need(key in line, path, number, f"no {key}", f"the keys {', '.join(STEP_KEYS)}")
        good = _is_number(value) or (value is None and key in MAY_BE_NULL)
        _need(good, path, number, f"{key} = {value!r}", "a number, or null" if key in MAY_BE_NULL else "a number")
    _need(line["rollouts"] > 0, path, number, f"rollouts = {line['rollouts']}", "the rollouts of this step, at least 1")


def _check_charge(path: Path, rollouts: list[float]) -> None:
    rises = all(later > earlier for earlier, later in pairwise(rollouts))
    if len(rollouts) >= RISING and rises:
        found = f"rollouts rise at every step, from {rollouts[0]} to {rollouts[-1]}"
        raise HistoryError(message(str(path), found, "the rollouts of each step alone", "Write the running total under another key."))


def _check_evaluation(path: Path, number: int, line: dict[str, Any]) -> None:
    step, count, mean = line.get("step"), line.get("count"), line.get("mean")
    _need(type(step) is int and step >= 0, path, number, f"step = {step!r}", "the number of training steps done")
    _need(line.get("set") in SETS, path, number, f"set = {line.get('set')!r}", f"one of {', '.join(SETS)}")
    _need(type(count) is int and count > 0, path, number, f"count = {count!r}", "the number of held-out tasks, at least 1")
    _need(_is_number(mean), path, number, f"mean = {mean!r}", "a mean reward")
    _need(isinstance(line.get("final"), bool), path, number, f"final = {line.get('final')!r}", "true or false")


def _check_whole(path: Path, evaluations: list[dict[str, Any]], steps: int) -> None:
    """Both sets at every evaluated step, once; the first before training, the final one after the last step."""
    marks = [(line["final"], line["step"], line["set"]) for line in evaluations]
    kinds = {(final, step) for final, step, _ in marks}
    wrong = [mark for mark in marks if marks.count(mark) > 1]
    wrong += [(final, step, name) for final, step in sorted(kinds) for name in SETS if (final, step, name) not in marks]
    if wrong:
        final, step, name = wrong[0]
        found = f"set {name} of step {step}{' (final)' if final else ''} is there {marks.count(wrong[0])} times"
        raise HistoryError(message(str(path), found, "each set once an evaluation", _again(path)))
    finals = sorted(step for final, step in kinds if final)
    if finals != [steps] or (False, 0) not in kinds or max(step for _, step in kinds) > steps:
        found = f"evaluations after {sorted({step for _, step in kinds})} steps, final after {finals}"
        expected = f"the first after 0 steps and one final after {steps}, the steps in steps.jsonl"
        raise HistoryError(message(str(path), found, expected, _again(path)))
