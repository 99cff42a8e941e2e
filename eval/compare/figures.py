"""What one run of a comparison comes to, beside the uniform run of its seed.

Knows: the formulas of `eval/compare/__init__.py`.
Does not know: files but those of a run, other seeds.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envsched_gnn.errors import HistoryError, message
from envsched_gnn.eval.compare.play import CURVE, DONE, STEPS
from envsched_gnn.eval.headline.figures_of_run import area, time_to_best
from envsched_gnn.eval.resumable import lines


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished run, read."""

    policy: str
    seed: int
    columns: dict[str, np.ndarray]
    """Of each step [steps]."""
    evaluated: np.ndarray
    """Steps done at each evaluation [evaluations]."""
    success: np.ndarray
    """[evaluations]."""

    def total(self, name: str) -> float:
        """Sum over the steps."""
        return float(self.columns[name].sum())

    def spent(self, name: str) -> np.ndarray:
        """Rollouts or tokens before each evaluation [evaluations]."""
        return np.append(0.0, np.cumsum(self.columns[name]))[self.evaluated]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A run in numbers; NaN where a figure does not exist."""

    policy: str
    seed: int
    informative: float
    variance: float
    environments: float
    """Different ones in what a step learned from."""
    area: float
    final: float
    best_of_uniform: float
    """Steps; infinite if never."""
    informative_by_step: float
    informative_by_token: float
    area_by_step: float
    """Over the run's own steps, whatever they cost."""
    area_by_token: float
    steps: int
    rollouts: int
    """Charged."""
    unused: float
    """Share of the rollouts that were not learned from."""
    looks: int
    """The oracle's rollouts, not charged."""
    seconds_a_step: float
    clock: np.ndarray
    """Charged rollouts at each evaluation, in steps of uniform [evaluations]."""
    curve: np.ndarray
    """Success [evaluations]."""


def read(folder: Path, policy: str, seed: int) -> Record:
    """A finished run.

    Raises:
        HistoryError: a file is damaged.
    """
    try:
        steps, curve = lines(folder / STEPS), lines(folder / CURVE)
        done = json.loads((folder / DONE).read_text(encoding="utf-8"))["steps"]
    except (OSError, ValueError, KeyError) as error:
        raise HistoryError(message(str(folder), f"damaged ({error})", "a finished run", "Delete it and give the command again.")) from None
    if len(steps) != done or not steps or not curve:
        raise HistoryError(message(str(folder), f"{len(steps)} steps", f"{done}", "Delete it and give the command again."))
    return Record(
        policy=policy,
        seed=seed,
        columns={name: np.array([line[name] for line in steps], dtype=float) for name in steps[0]},
        evaluated=np.array([line["step"] for line in curve]),
        success=np.array([math.nan if line["success"] is None else line["success"] for line in curve]),
    )


def figures_of(run: Record, uniform: Record) -> Figures:
    """The figures of a run; `uniform` is the uniform run of its seed, and sets the budget."""
    charged, tokens, steps = run.total("rollouts"), run.total("tokens"), len(run.columns["step"])
    end, length = uniform.total("rollouts"), len(uniform.columns["step"])
    spent, known = run.spent("rollouts"), np.isfinite(run.success)
    clock = spent * length / end
    curves = known.any() and np.isfinite(uniform.success).all()
    return Figures(
        policy=run.policy,
        seed=run.seed,
        informative=_share(run.total("informative_rollouts"), charged),
        variance=_share(run.total("variance_rollouts"), charged),
        environments=float(run.columns["environments"].mean()),
        area=area(spent, run.success, end),
        final=float(np.interp(end, spent, run.success)),
        best_of_uniform=time_to_best(clock, run.success, uniform.success, length)[0] if curves else math.nan,
        informative_by_step=_share(run.total("informative_groups"), run.total("groups")),
        informative_by_token=_share(run.total("informative_tokens"), tokens),
        area_by_step=area(run.evaluated.astype(float), run.success, steps),
        area_by_token=area(run.spent("tokens"), run.success, uniform.total("tokens")),
        steps=steps,
        rollouts=int(charged),
        unused=1 - _share(run.total("trained_rollouts"), charged),
        looks=int(run.total("looks")),
        seconds_a_step=sum(run.total(name) for name in run.columns if name.startswith("seconds_")) / steps,
        clock=clock,
        curve=run.success,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
