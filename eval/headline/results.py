"""The results of the headline experiment: eval/results/headline.json and the tables, from whatever runs are finished.

`python -m envsched_gnn.eval.headline.results ROOT [--out FILE] [--command TEXT] [--markdown]`

Knows: the form of the result file, which runs count.
Does not know: how a figure is computed, how a table or a plot looks.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from envsched_gnn.errors import HistoryError
from envsched_gnn.eval.headline.figures_of_run import CHARGED, Figures, figures_of
from envsched_gnn.eval.headline.run_files import ROLES, Collection, Run, collect
from envsched_gnn.eval.headline.statistics import (
    Interval,
    correlation_within_seeds,
    median,
    median_over_seeds,
    null_band,
    paired_difference,
    share_of_way,
    shares_by_seed,
)
from envsched_gnn.eval.headline.table import markdown, rich_tables
from envsched_gnn.files import without_nan, write_atomic
from envsched_gnn.train.folder import commit

ARMS = ("uniform", "paper", "paper_rho0", "default", "no_graph", "shuffled_graph", "oracle", "dapo")
"""The arms of the protocol, in the order of the tables; any other folder is an ablation and stands under `ablations`."""
LISTS = ("auc", "final", "zero_variance_share", "time_to_uniform_best", "environments_per_batch", "spearman")
BESIDE = (
    *("auc_by_step", "auc_by_rollout", "auc_by_token", "final_tasks", "final_environments", "variance", "tools_per_batch"),
    *("time_interpolated", "informative_tasks"),
)
"""Figures by seed that the protocol does not name."""
HIGHER = ("auc", "final", "auc_by_rollout", "auc_by_token", "final_tasks", "final_environments", "environments_per_batch", "variance")
LOWER = ("zero_variance_share",)
DEFINITIONS = {
    "auc": "mean of the learning curve (not its fit) over the steps, by trapezoid; the curve weighs both held-out sets by their tasks",
    "auc of dapo": "over rollouts charged, in steps of the uniform run of its seed; auc_by_step is over its own updates",
    "time_to_uniform_best": "first evaluated step; null = not within the budget; time_interpolated is on the lines between evaluations",
    "informative_tasks": "effective number of the tasks of all informative groups: exp of the entropy of their shares",
    "zero_variance_share": "mean over steps and all generated groups; lower is better",
    "minus_uniform": "mean of the paired differences over seeds, 95 % percentile bootstrap over seeds; better = seeds on the good side",
    "share_of_way": "(mean uniform - mean arm) / (mean uniform - mean oracle) of zero_variance_share",
    "area_goes_with": "over all runs but those of dapo: correlation of auc, within seeds, with the share of informative groups, with the "
    "number of informative tasks, and with the root of their product; 95 % bootstrap over seeds",
    "null_band": "2.5, 50 and 97.5 % over all ordered pairs of different uniform seeds, which differ in pool as well",
}
Arms = Mapping[str, list[Figures]]


def write_results(root: str | Path, path: str | Path, command: str) -> Collection:
    """Write the result file from all finished runs under `root`, in one step, and return what was found there.

    A run counts once it and the uniform run of its pool and seed are finished; seeds that are missing are absent from the lists.

    Raises:
        HistoryError: no run under `root`, or none that counts.
    """
    pools, found = figures_by_pool(root)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(result_of(pools, found.roles, command), indent=1) + "\n").encode())
    return found


def figures_by_pool(root: str | Path) -> tuple[dict[str, dict[str, list[Figures]]], Collection]:
    """Figures of the runs that count, by pool (main first), arm and seed; and what was found, with a sentence for each other run.

    Raises:
        HistoryError: no run under `root`, or none that counts.
    """
    found = collect(root)
    uniform = {(run.pool, run.seed): run for run in found.runs if run.arm == "uniform"}
    plans: dict[str, Run] = {}
    for (pool, _), run in uniform.items():
        plans[pool] = max(plans.get(pool, run), run, key=lambda candidate: len(candidate.steps))
    pools: dict[str, dict[str, list[Figures]]] = defaultdict(lambda: defaultdict(list))
    waiting, damaged = list(found.waiting), list(found.damaged)
    for run in found.runs:
        partner = uniform.get((run.pool, run.seed))
        if partner is None:
            waiting.append(f"{run.folder}: waits for uniform of seed {run.seed}, its partner; left out.")
            continue
        try:
            figures_of(partner, plans[run.pool])
            pools[run.pool][run.arm].append(figures_of(run, partner))
        except HistoryError as error:
            damaged.append(str(error))
    if not pools:
        raise HistoryError(
            f"{root}: no finished run with the uniform run of its seed; expected at least one. {' '.join((*damaged, *waiting))}"
        )
    found = dataclasses.replace(found, waiting=tuple(waiting), damaged=tuple(dict.fromkeys(damaged)))
    names = sorted(pools, key=lambda pool: (ROLES.index(found.roles[pool]), pool))
    return {pool: dict(pools[pool]) for pool in names}, found


def result_of(pools: Mapping[str, Arms], roles: Mapping[str, str], command: str) -> dict[str, Any]:
    """The content of headline.json: the lists of the protocol under `pools`, all else beside it."""

    def lists(arms: Arms, wanted: bool) -> dict[str, Any]:
        return {arm: lists_of(arms[arm]) for arm in ordered(arms) if (arm in ARMS) == wanted}

    ablations = {pool: lists(arms, False) for pool, arms in pools.items()}
    result = {
        "pools": {pool: {"role": roles[pool], "arms": lists(arms, True)} for pool, arms in pools.items()},
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "command": command,
        "summary": {pool: summary_of(arms) for pool, arms in pools.items()},
        "ablations": {pool: arms for pool, arms in ablations.items() if arms},
        "definitions": DEFINITIONS,
    }
    plain: dict[str, Any] = without_nan(result)
    return plain


def ordered(arms: Arms) -> list[str]:
    """The arms of the protocol in its order, then the ablations by name."""
    return sorted(arms, key=lambda arm: (ARMS.index(arm) if arm in ARMS else len(ARMS), arm))


def column(runs: list[Figures], name: str) -> np.ndarray:
    """One figure by seed, [seeds]."""
    return np.array([getattr(run, name) for run in runs], dtype=float)


def lists_of(runs: list[Figures], names: tuple[str, ...] = LISTS) -> dict[str, list[Any]]:
    """Figures by seed as the result file holds them: times are whole steps."""

    def plain(name: str, value: float) -> float:
        if name == "time_to_uniform_best" and math.isfinite(value):
            return math.ceil(value - 1e-9)
        return round(value, 6)

    seeds = {"seeds": [run.seed for run in runs]}
    return seeds | {name: [plain(name, value) for value in column(runs, name).tolist()] for name in names}


def summary_of(arms: Arms) -> dict[str, Any]:
    """Medians, paired differences, time to uniform's best and share of the way of every arm of a pool, and the null band."""
    band = null_band(arms["uniform"])
    auc = band and [round(value, 6) for value in band.auc]
    return {
        "null_band": band and {"pairs": band.pairs, "reached": band.reached, "auc": auc, "time_to_uniform_best": band.time},
        "area_goes_with": area_goes_with([run for arm in ordered(arms) if arm not in CHARGED for run in arms[arm]]),
        "arms": {arm: _arm_summary(arms, arm) for arm in ordered(arms)},
    }


def area_goes_with(runs: list[Figures]) -> dict[str, Any]:
    """What the runs that learned more had more of, seed by seed: informative groups G, informative tasks D, or both, sqrt(G D)."""
    groups, tasks = 1 - column(runs, "zero_variance_share"), column(runs, "informative_tasks")
    about = {"informative_groups": groups, "informative_tasks": tasks, "root_of_both": np.sqrt(groups * tasks)}
    area, seed = column(runs, "auc"), column(runs, "seed")
    found = {name: _interval(correlation_within_seeds(values, area, seed)) for name, values in about.items()}
    return {"runs": len(runs), **found}


def _arm_summary(arms: Arms, arm: str) -> dict[str, Any]:
    runs = arms[arm]
    uniform, oracle = (_paired(runs, arms.get(name, [])) for name in ("uniform", "oracle"))
    times = column(runs, "time_to_uniform_best")
    wasted = [column(of, "zero_variance_share") for of in (uniform, runs)] + [_wasted(oracle)]
    medians = {name: median(column(runs, name)) for name in (*LISTS, *BESIDE) if not name.startswith("time")}
    return {
        "median": {name: round(value, 6) for name, value in medians.items()},
        "minus_uniform": {name: _difference(runs, uniform, name) for name in (*HIGHER, *LOWER)} if arm != "uniform" else {},
        "time_to_uniform_best": _interval(median_over_seeds(times)) | {"reached": int(np.isfinite(times).sum())},
        "share_of_way": _interval(share_of_way(*wasted)) | {"by_seed": np.round(shares_by_seed(*wasted), 6).tolist()},
        "by_seed": lists_of(runs, BESIDE),
    }


def _paired(runs: list[Figures], others: list[Figures]) -> list[Any]:
    """The runs of the other arm on the same seeds; None where it has not finished that seed."""
    by_seed = {other.seed: other for other in others}
    return [by_seed.get(run.seed) for run in runs]


def _wasted(runs: list[Figures | None]) -> np.ndarray:
    return np.array([math.nan if run is None else run.zero_variance_share for run in runs])


def _difference(runs: list[Figures], uniform: list[Figures], name: str) -> dict[str, Any]:
    values, others = column(runs, name), column(uniform, name)
    good = values < others if name in LOWER else values > others
    return _interval(paired_difference(values, others)) | {"better": int(good.sum())}


def _interval(found: Interval) -> dict[str, Any]:
    return {name: round(getattr(found, name), 6) + 0.0 for name in ("value", "low", "high")} | {"seeds": found.seeds}


def main() -> int:
    """Write the result file and print its table; 1 if a run is damaged."""
    parser = argparse.ArgumentParser(prog="python -m envsched_gnn.eval.headline.results", description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the runs: ROOT/POOL/ARM/SEED/")
    parser.add_argument("--out", type=Path, default=Path("eval/results/headline.json"))
    parser.add_argument("--command", help="the command that made the runs, for the result file; default: this one")
    parser.add_argument("--markdown", action="store_true", help="print the table as the README has it")
    arguments = parser.parse_args()
    command = arguments.command or shlex.join(["python", "-m", "envsched_gnn.eval.headline.results", *sys.argv[1:]])
    try:
        found = write_results(arguments.root, arguments.out, command)
    except (HistoryError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for notice in (*found.waiting, *found.damaged):
        print(notice, file=sys.stderr)
    result = json.loads(arguments.out.read_text(encoding="utf-8"))
    if arguments.markdown:
        print(markdown(result))
    else:
        for table in rich_tables(result):
            Console(width=240).print(table)
    return int(bool(found.damaged))


if __name__ == "__main__":
    sys.exit(main())
