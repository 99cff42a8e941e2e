"""The result of a comparison: a row a policy and seed, a summary a policy with paired intervals.

Knows: the form of the result file, what is said where an interval or a figure does not exist.
Does not know: how a run is made, how a table or a plot looks.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from envsched_gnn.config import flatten, to_table
from envsched_gnn.eval.compare.figures import Figures, figures_of, read
from envsched_gnn.eval.compare.runs import SEEDS, Planned, Where
from envsched_gnn.eval.headline.statistics import Interval, bootstrap, median_over_seeds, paired_difference, share_of_way, shares_by_seed
from envsched_gnn.files import without_nan, write_atomic
from envsched_gnn.train.folder import commit

COMPARED = ("informative", "variance", "environments", "area", "final")
"""Figures with a paired difference to uniform, those of the table first."""
BESIDE = ("informative_by_step", "informative_by_token", "area_by_step", "area_by_token")
"""The same, of the other clocks."""
PLAIN = ("steps", "rollouts", "unused", "looks", "seconds_a_step")
"""Figures whose mean is told alone."""
FLAT = (
    "zero variance everywhere: no group of any policy has two rewards that differ, so there is nothing to compare. "
    "Take a pool with tasks that are neither hopeless nor trivial for this policy model."
)
LONE = "one seed: no interval; at least two are needed, better five."
NO_ORACLE = "no oracle among the policies: no share of the way to it."


def result_of(runs: Sequence[Planned], command: str) -> dict[str, Any]:
    """The content of the result file, plain and without NaN. `runs` are finished, with uniform of each seed among them.

    Raises:
        HistoryError: the files of a run are damaged.
    """
    records = {(run.entry.name, run.seed): read(run.folder, run.entry.name, run.seed) for run in runs}
    rows = [figures_of(record, records["uniform", seed]) for (_, seed), record in records.items()]
    return result_from(rows, command, runs[0].where, _common(runs))


def result_from(rows: Sequence[Figures], command: str, where: Where, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same from the figures of the runs."""
    result = {
        "command": command,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "in": where,
        "settings": dict(settings),
        "seeds": sorted({row.seed for row in rows}),
        "summary": summary_of(rows),
        "rows": [plain(row) for row in rows],
        "notes": notes_of(rows),
    }
    finite: dict[str, Any] = without_nan(result)
    return finite


def write_result(result: dict[str, Any], path: Path) -> None:
    """Write the result file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())


def notes_of(rows: Sequence[Figures]) -> list[str]:
    """What a reader must know before the figures."""
    notes = []
    if all(row.variance == 0 for row in rows):
        notes.append(FLAT)
    if len({row.seed for row in rows}) < 2:
        notes.append(LONE)
    if "oracle" not in {row.policy for row in rows}:
        notes.append(NO_ORACLE)
    return notes


def summary_of(rows: Sequence[Figures]) -> list[dict[str, Any]]:
    """A row a policy, in the order of `rows`: means over seeds and what is paired with uniform and the oracle."""
    return [_summary(rows, policy) for policy in dict.fromkeys(row.policy for row in rows)]


def _summary(rows: Sequence[Figures], policy: str) -> dict[str, Any]:
    seeds = [row.seed for row in rows if row.policy == policy]
    own, uniform, oracle = ({row.seed: row for row in rows if row.policy == name} for name in (policy, "uniform", "oracle"))

    def column(of: dict[int, Figures], name: str) -> np.ndarray:
        return np.array([getattr(of[seed], name) if seed in of else np.nan for seed in seeds], dtype=float)

    wasted = [1 - column(of, "informative") for of in (uniform, own, oracle)]
    times = column(own, "best_of_uniform")
    found: dict[str, Any] = {
        "policy": policy,
        "seeds": len(seeds),
        "share_of_way": _ends(share_of_way(*wasted)) | {"by_seed": shares_by_seed(*wasted).tolist()},
    }
    for name in (*COMPARED, *BESIDE):
        difference = _ends(paired_difference(column(own, name), column(uniform, name)))
        found[name] = _ends(mean_over_seeds(column(own, name))) | {"minus_uniform": difference}
    found["best_of_uniform"] = _ends(median_over_seeds(times)) | {"reached": int(np.isfinite(times).sum())}
    return found | {name: float(column(own, name).mean()) for name in PLAIN}


def mean_over_seeds(values: np.ndarray) -> Interval:
    """Mean over the seeds that have the figure, and its interval."""
    return bootstrap(values[np.isfinite(values)][:, None], lambda drawn: drawn[:, :, 0].mean(1))


def _ends(found: Interval) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "seeds": found.seeds}


def plain(row: Figures) -> dict[str, Any]:
    """A row as the result file holds it, NaN and infinity not yet None."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _common(runs: Sequence[Planned]) -> dict[str, Any]:
    """Settings of uniform's first run, but those that its seed decides and those that say where it lies."""
    first = next(run for run in runs if run.entry.name == "uniform")
    left_out = (*SEEDS[first.where], "run.folder", "run.name", "run.policy")
    return {key: value for key, value in flatten(to_table(first.config)) if key not in left_out}
