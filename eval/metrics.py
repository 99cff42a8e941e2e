"""What a run folder says, as arrays, and the few statistics the report draws from them.

Knows: the files of a run folder, calibration bins, means over rounds that may lack a figure.
Does not know: how a run is made, how a figure is drawn.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envsched_gnn.errors import HistoryError
from envsched_gnn.history import group_statistics
from envsched_gnn.ledger import Ledger
from envsched_gnn.records import REWARDED, RolloutGroup
from envsched_gnn.schedule.metrics import rank_correlation
from envsched_gnn.train.evaluation import read_evaluations
from envsched_gnn.train.folder import EVALUATIONS


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The finished groups of a run as columns, in selection order; NaN where a group has too few rewards or no prediction was made."""

    keys: list[str]
    """Identity of each group's task."""
    step: np.ndarray
    phase: np.ndarray
    predicted_variance: np.ndarray
    p_informative: np.ndarray
    mean: np.ndarray
    """Mean reward, mapped to [0, 1]."""
    variance: np.ndarray
    """Realised variance of the mapped rewards."""
    failures: np.ndarray
    """Rollouts of a group that ended without a score."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run folder, read."""

    folder: Path
    config: dict[str, Any]
    """`resolved.toml`."""
    versions: dict[str, Any]
    pool: dict[str, Any]
    """`pool.json`: source, content_hash, environments, tasks, tools, reward_ranges."""
    rounds: list[dict[str, Any]]
    """`metrics.jsonl`, one a finished round."""
    groups: Groups
    selected: list[tuple[int, str, str]]
    """(step, env_id, task_id) of every pick of a finished round."""
    relaxed: list[tuple[int, str]]
    """(step, quota) of every relaxation of a finished round."""
    evaluations: list[dict[str, Any]] | None
    """`evaluations.jsonl`, by step, up to the last finished round; None if this is no run of `envsched train`."""
    failure_details: dict[str, str]
    """Last failure of each task that had one: `STATUS: what failed`."""

    def column(self, name: str) -> np.ndarray:
        """One figure of every round, [rounds]; NaN where it was not measured."""
        return np.array([math.nan if r.get(name) is None else r[name] for r in self.rounds], dtype=float)

    @property
    def selectable(self) -> dict[str, int]:
        """Tasks that may be selected, of each environment that has any, in pool order."""
        found = {e["env_id"]: e.get("trained", e["tasks"]) for e in self.pool["environments"]}  # older runs kept no `trained`
        return {env_id: tasks for env_id, tasks in found.items() if tasks}


def read_run(folder: str | Path) -> RunRecord:
    """Read a run folder, also of a run that is still going or was killed: its finished rounds.

    Raises:
        HistoryError: no run folder, a damaged file (with its line), or no finished round yet.
    """
    folder = Path(folder)
    if not (folder / "resolved.toml").is_file():
        raise HistoryError(
            f"{folder}: not a run folder (no resolved.toml). Give the folder that envsched run wrote, for example runs/toolworld."
        )
    rounds = read_rounds(folder / "metrics.jsonl")
    if not rounds:
        raise HistoryError(f"{folder}: no finished round yet. Wait for the first, or resume the run.")
    config = tomllib.loads((folder / "resolved.toml").read_text(encoding="utf-8"))
    pool, versions = (_read_json(folder / name) for name in ("pool.json", "versions.json"))
    last = rounds[-1]["step"]
    with Ledger(folder / "ledger.sqlite", config.get("run", {}).get("name", "run"), read_only=True) as ledger:
        picks = {row.group_id: row for row in ledger.selections() if row.step <= last}
        finished = [group for group in ledger.groups() if group.group_id in picks]
        relaxed: list[tuple[int, str]] = [(step, relaxation.quota) for step, relaxation in ledger.relaxations() if step <= last]
    return RunRecord(
        folder=folder,
        config=config,
        versions=versions,
        pool=pool,
        rounds=rounds,
        groups=_columns(finished, picks, pool["reward_ranges"]),
        selected=[(row.step, row.env_id, row.task_id) for row in picks.values()],
        relaxed=relaxed,
        evaluations=_evaluations(folder / EVALUATIONS, last + 1),
        failure_details=_failures(finished),
    )


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    rounds = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rounds.append(json.loads(line))
        except ValueError as error:
            raise HistoryError(
                f"{path}, line {number}: not JSON ({error}); expected one object a round. Resume the run to rewrite it."
            ) from None
    return rounds


def _evaluations(path: Path, rounds: int) -> list[dict[str, Any]] | None:
    return [line for line in read_evaluations(path) if line["step"] <= rounds] if path.is_file() else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HistoryError(
            f"{path}: cannot be read ({error}); expected a file written by envsched run. Resume the run to rewrite it."
        ) from None


def _columns(groups: Sequence[RolloutGroup], picks: dict[str, Any], ranges: dict[str, list[float]]) -> Groups:
    spans = [ranges.get(group.key, (0.0, 1.0)) for group in groups]
    statistics = group_statistics([group.rewards for group in groups], [low for low, _ in spans], [high for _, high in spans])
    seen = statistics.observed.numpy()
    rows = [picks[group.group_id] for group in groups]
    return Groups(
        keys=[group.key for group in groups],
        step=np.array([group.step for group in groups], dtype=np.int64),
        phase=np.array([row.phase for row in rows], dtype=str),
        predicted_variance=np.array([row.predicted_variance for row in rows], dtype=float),
        p_informative=np.array([row.p_informative for row in rows], dtype=float),
        mean=np.where(seen, statistics.mean.numpy(), np.nan),
        variance=np.where(seen, statistics.variance.numpy(), np.nan),
        failures=np.array([sum(r.status not in REWARDED for r in group.rollouts) for group in groups], dtype=np.int64),
    )


def _failures(groups: Sequence[RolloutGroup]) -> dict[str, str]:
    last = {}
    for group in groups:
        for rollout in group.rollouts:
            if rollout.status not in REWARDED:
                last[group.key] = f"{rollout.status}: {rollout.detail}" if rollout.detail else str(rollout.status)
    return last


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Rank correlation over the pairs where both are numbers, average ranks for ties; NaN if either is constant or fewer than 3 pairs."""
    both = np.isfinite(x) & np.isfinite(y)
    found = rank_correlation(x[both], y[both]) if both.sum() >= 3 else None
    return math.nan if found is None else found


@dataclass(frozen=True, kw_only=True)
class Bin:
    """One bin of predictions against what came."""

    predicted: float
    """Mean prediction."""
    realised: float
    """Mean outcome."""
    size: int


def bins(predicted: np.ndarray, outcome: np.ndarray, count: int = 10) -> list[Bin]:
    """Equal-sized bins of predictions, low to high, with the mean outcome of each; fewer where predictions tie."""
    both = np.isfinite(predicted) & np.isfinite(outcome)
    x, y = predicted[both], outcome[both]
    if not x.size:
        return []
    cuts = np.unique(np.quantile(x, np.linspace(0, 1, count + 1)))
    index = np.clip(np.searchsorted(cuts, x, side="right") - 1, 0, max(len(cuts) - 2, 0))
    return [
        Bin(predicted=float(x[index == b].mean()), realised=float(y[index == b].mean()), size=int((index == b).sum()))
        for b in np.unique(index)
    ]


def first_and_last(values: np.ndarray, share: float = 0.2) -> tuple[float, float, int]:
    """Means over the first and the last rounds (a fifth of the run, at least one), and how many rounds that is; NaN rounds are left out."""
    n = max(1, math.ceil(len(values) * share))
    return mean_of(values[:n]), mean_of(values[-n:]), n


def mean_of(values: np.ndarray) -> float:
    """Mean of the rounds that have the figure; NaN if none has."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan
