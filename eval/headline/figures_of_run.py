"""What one run of the headline experiment comes to, beside the uniform run of its seed.

Knows: learning curves over steps, rollouts and tokens, isotonic fits, when a curve reaches a target.
Does not know: files, other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import IsotonicRegression

from envsched_gnn.errors import HistoryError, message
from envsched_gnn.eval.headline.run_files import Run
from envsched_gnn.eval.metrics import mean_of

CHARGED = frozenset({"dapo"})
"""Arms whose steps cost different numbers of rollouts: their clock is the rollouts charged, in steps of the uniform run of the seed."""
CLOSE = 1e-9
"""Rewards this near count as equal: the means of an isotonic fit are sums in different orders."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One run in numbers; NaN where a figure does not exist."""

    arm: str
    seed: int
    clock: np.ndarray
    """Steps at each evaluation [evaluations]; of an arm in CHARGED, the uniform steps that its rollouts would have paid for."""
    curve: np.ndarray
    """Mean reward over the held-out tasks at each evaluation [evaluations]."""
    auc: float
    """Mean of the curve over the budget, the steps of the uniform run."""
    auc_by_step: float
    """Mean of the curve over the arm's own steps, whatever they cost; equal to auc outside CHARGED."""
    auc_by_rollout: float
    """Mean of the curve over the uniform run's rollouts."""
    auc_by_token: float
    """Mean of the curve over the uniform run's generated tokens."""
    final: float
    """Mean reward of the evaluation after the last step."""
    final_tasks: float
    """The same, held-out tasks of environments trained on."""
    final_environments: float
    """The same, tasks of held-out environments."""
    zero_variance_share: float
    """Mean over the steps and all generated groups: each step counts by its rollouts."""
    variance: float
    """Mean realised variance, likewise."""
    time_to_uniform_best: float
    """First evaluated step at which the isotonic fit reaches the best of uniform's; infinite if never within the budget."""
    time_interpolated: float
    """The same on the straight lines between evaluations: earlier by less than the distance of two evaluations."""
    environments_per_batch: float
    tools_per_batch: float
    spearman: float
    """Mean over the steps that have a rank correlation of prediction and realised variance."""
    informative_tasks: float
    """Effective number of the tasks of all informative groups; NaN in runs of before it was kept."""


def curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Steps done and mean reward [evaluations]: both sets, weighted by their tasks; the final evaluation only if its step has no other."""
    lines = {line["step"]: line["final"] for line in sorted(run.evaluations, key=lambda line: not line["final"])}
    steps = sorted(lines)
    return np.array(steps, dtype=float), np.array([_mean(run, step, lines[step]) for step in steps])


def _mean(run: Run, step: int, final: bool, sets: tuple[str, ...] = ("tasks", "environments")) -> float:
    chosen = [line for line in run.evaluations if line["step"] == step and line["final"] == final and line["set"] in sets]
    return sum(line["mean"] * line["count"] for line in chosen) / sum(line["count"] for line in chosen)


def area(x: np.ndarray, y: np.ndarray, end: float) -> float:
    """Mean of the curve over [0, end], by trapezoid; after its last point it stays where it is; NaN if end is 0."""
    if end <= 0:
        return math.nan
    grid = np.append(x[x < end], end)
    return float(np.trapezoid(np.interp(grid, x, y), grid) / end)


def isotonic(values: np.ndarray) -> np.ndarray:
    """The nearest curve that never falls (least squares), at the same points [evaluations]."""
    fit: np.ndarray = IsotonicRegression(increasing=True).fit_transform(np.arange(len(values)), values)
    return fit


def first_reached(x: np.ndarray, fit: np.ndarray, target: float) -> float:
    """First point of x at which the fit is at least the target; infinite if none is."""
    reached = fit >= target - CLOSE
    return float(x[reached.argmax()]) if reached.any() else math.inf


def first_crossed(x: np.ndarray, fit: np.ndarray, target: float) -> float:
    """Where the straight lines between the points of the fit first reach the target; infinite if nowhere."""
    reached = fit >= target - CLOSE
    at = int(reached.argmax())
    if not reached.any() or at == 0 or fit[at] <= target:
        return first_reached(x, fit, target)
    return float(x[at - 1] + (target - fit[at - 1]) / (fit[at] - fit[at - 1]) * (x[at] - x[at - 1]))


def time_to_best(x: np.ndarray, values: np.ndarray, reference: np.ndarray, end: float = math.inf) -> tuple[float, float]:
    """When the isotonic fit of `values` reaches the best of the isotonic fit of `reference`: first point of x, and on the lines between.

    Points after `end` are out of budget and not fitted. Both times are infinite if it never does.
    """
    inside = x <= end + CLOSE
    fit, target = isotonic(values[inside]), float(isotonic(reference).max())
    return first_reached(x[inside], fit, target), first_crossed(x[inside], fit, target)


def spent(run: Run, name: str, steps: np.ndarray) -> np.ndarray:
    """Rollouts or tokens charged before each evaluation [evaluations]."""
    total = np.append(0.0, np.cumsum(run.column(name)))
    return total[steps.astype(int)]


def figures_of(run: Run, uniform: Run) -> Figures:
    """The figures of a run; `uniform` is the uniform run of the same pool and seed, and sets the budget.

    Raises:
        HistoryError: an arm outside CHARGED was evaluated after other steps than uniform was.
    """
    steps, values = curve(run)
    budget, reference = curve(uniform)
    if run.arm not in CHARGED and not np.array_equal(steps, budget):
        found = f"evaluated after {steps.astype(int).tolist()} steps"
        cure = "Delete the one with the wrong plan and run the experiment again."
        raise HistoryError(message(str(run.folder), found, f"the steps of {uniform.folder}: {budget.astype(int).tolist()}", cure))
    rollouts, all_rollouts = spent(run, "rollouts", steps), spent(uniform, "rollouts", budget)[-1]
    clock = rollouts * budget[-1] / all_rollouts if run.arm in CHARGED else steps
    first, crossed = time_to_best(clock, values, reference, budget[-1])
    return Figures(
        arm=run.arm,
        seed=run.seed,
        clock=clock,
        curve=values,
        auc=area(clock, values, budget[-1]),
        auc_by_step=area(steps, values, steps[-1]),
        auc_by_rollout=area(rollouts, values, all_rollouts),
        auc_by_token=area(spent(run, "tokens", steps), values, spent(uniform, "tokens", budget)[-1]),
        final=_mean(run, len(run.steps), True),
        final_tasks=_mean(run, len(run.steps), True, ("tasks",)),
        final_environments=_mean(run, len(run.steps), True, ("environments",)),
        zero_variance_share=by_rollouts(run, "zero_variance_share"),
        variance=by_rollouts(run, "variance_mean"),
        time_to_uniform_best=first,
        time_interpolated=crossed,
        environments_per_batch=mean_of(run.column("environments")),
        tools_per_batch=mean_of(run.column("tools")),
        spearman=mean_of(run.column("spearman")),
        informative_tasks=effective_number([row for line in run.steps for row in line.get("informative", ())]),
    )


def effective_number(tasks: Sequence[int]) -> float:
    """`exp(-sum_i f_i log f_i)`, f_i the share of task i: how many tasks of equal share are as many; NaN of none."""
    if not tasks:
        return math.nan
    f = np.unique(tasks, return_counts=True)[1] / len(tasks)
    return float(np.exp(-(f * np.log(f)).sum()))


def by_rollouts(run: Run, name: str) -> float:
    """Mean of a figure over the steps that have it, each weighted by its rollouts; NaN if none has."""
    values, weights = run.column(name), run.column("rollouts")
    known = np.isfinite(values)
    return float(np.average(values[known], weights=weights[known])) if known.any() else math.nan
