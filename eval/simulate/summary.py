"""What a simulated run says, by thirds of its rounds.

Knows: which figures are told, and from which files of the folder they come.
Does not know: how a run is made, how a table is printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from envsched_gnn.eval.metrics import RunRecord, mean_of, read_run, spearman
from envsched_gnn.eval.simulate import CAUTION
from envsched_gnn.eval.simulate.run import read_truth
from envsched_gnn.files import without_nan

THIRDS = ("early", "middle", "late")


def summary(folder: str | Path) -> dict[str, Any]:
    """Plain values of a run: its settings, its thirds, and the learner after the last round; None where a figure does not exist.

    Raises:
        HistoryError: no run folder, a damaged file, or no finished round.
    """
    run = read_run(folder)
    truth = {line["step"]: line for line in read_truth(run.folder)}
    steps = np.array([r["step"] for r in run.rounds])
    parts = [part for part in np.array_split(steps, len(THIRDS)) if len(part)]
    names = THIRDS if len(parts) == len(THIRDS) else [f"rounds {part[0] + 1} to {part[-1] + 1}" for part in parts]
    end = truth.get(int(steps[-1]) + 1, {})
    found = {
        "caution": CAUTION,
        "folder": str(run.folder),
        "policy": run.config["run"]["policy"],
        "seed": run.config["run"]["seed"],
        "environments": run.config["simulate"]["environments"],
        "tasks": run.pool["tasks"],
        "structure": run.config["simulate"]["structure"],
        "steps": len(steps),
        "rollouts": int(np.nansum(run.column("rollouts"))),
        "tokens": int(np.nansum(run.column("tokens"))),
        "seconds_a_step": mean_of(np.sum([run.column(f"seconds_{stage}") for stage in ("select", "rollout", "observe")], axis=0)),
        "thirds": [{"rounds": name, **_figures(run, truth, part)} for name, part in zip(names, parts, strict=True)],
        "end": {name: end.get(name) for name in ("success_live", "success_held_out")},
    }
    return without_nan(found)


def _figures(run: RunRecord, truth: dict[int, dict[str, Any]], steps: np.ndarray) -> dict[str, float]:
    """Means over some rounds, and Spearman's correlation of predicted and realised variance over their groups that were predicted."""
    at = np.isin([r["step"] for r in run.rounds], steps)
    judged = np.isin(run.groups.step, steps) & ~np.isin(run.groups.phase, ("cold", "uniform"))
    known = [truth.get(int(step), {}) for step in steps]
    exact = {
        name: mean_of(np.array([line.get(name) for line in known], dtype=float))
        for name in ("informative_chance", "success_live", "success_held_out")
    }
    return {
        "informative": 1 - mean_of(run.column("zero_variance_share")[at]),
        "variance": mean_of(run.column("variance_mean")[at]),
        "environments": mean_of(run.column("environments")[at]),
        **exact,
        "spearman": spearman(run.groups.predicted_variance[judged], run.groups.variance[judged]),
    }
