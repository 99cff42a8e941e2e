"""The plot of the headline experiment: learning curves, waste beside realised variance, and coverage, one column a pool.

`python -m envsched_gnn.eval.headline.plot ROOT [--out FILE]` writes SVG or PNG, as the name of the file says.

Knows: which line an arm has, bands over seeds, blocks of steps.
Does not know: tables, statistics.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from envsched_gnn.errors import HistoryError
from envsched_gnn.eval.figures import BLUE, GREEN, GREY, ORANGE, STYLE, VIOLET
from envsched_gnn.eval.headline.figures_of_run import CHARGED, Figures
from envsched_gnn.eval.headline.results import ARMS, figures_by_pool
from envsched_gnn.eval.headline.run_files import Collection, Run
from envsched_gnn.files import replacing

LINES: dict[str, tuple[str, str]] = {
    "uniform": (GREY, "-"),
    "paper": (ORANGE, "-"),
    "paper_rho0": (ORANGE, "--"),
    "default": (BLUE, "-"),
    "no_graph": (BLUE, "--"),
    "shuffled_graph": (BLUE, ":"),
    "oracle": (GREEN, "-"),
    "dapo": (VIOLET, "-"),
}
"""Colour and dash of each arm; variants share the colour of what they vary."""
BANDS = ("uniform", "paper", "default", "oracle")
"""Arms whose middle half of seeds is shaded; more bands hide each other."""
BLOCK = 10
"""Steps that a point of the lower rows is the mean of: as many as lie between evaluations."""
PANELS = (
    ("zero_variance_share", "groups without variance"),
    ("variance_mean", "realised variance"),
    ("environments", "environments a batch"),
)


def write_plot(root: str | Path, path: str | Path) -> Path:
    """Draw all finished runs under `root` that count, in one step, and return the path of the figure.

    Raises:
        HistoryError: no run under `root`, or none that counts.
    """
    pools, found = figures_by_pool(root)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE | {"svg.hashsalt": "headline"}), replacing(path) as file:
        figure = drawn(pools, found)
        kind = path.suffix.removeprefix(".") or "svg"
        figure.savefig(file, format=kind, dpi=130, facecolor="white", metadata={"Date": None} if kind == "svg" else None)
    return path


def drawn(pools: Mapping[str, Mapping[str, list[Figures]]], found: Collection) -> Figure:
    """One column a pool, one row a question; every arm of the protocol that has a run."""
    figure = Figure(figsize=(0.8 + 4.2 * len(pools), 9.6), layout="constrained")
    grid = figure.subplots(1 + len(PANELS), len(pools), squeeze=False, sharex="col", sharey="row")
    for number, (pool, arms) in enumerate(pools.items()):
        grid[0, number].set_title(pool if pool == found.roles[pool] else f"{pool} ({found.roles[pool]})")
        steps = arms["uniform"][0].clock
        runs = {(run.arm, run.seed): run for run in found.runs if run.pool == pool}
        shown = [arm for arm in ARMS if arm in arms]
        _panel(grid[0, number], steps, {arm: _curves(arms[arm], steps) for arm in shown})
        edges = np.append(np.arange(0, steps[-1], BLOCK), steps[-1])
        for row, (name, _) in enumerate(PANELS, start=1):
            middle = (edges[:-1] + edges[1:]) / 2
            _panel(grid[row, number], middle, {arm: _blocks(arms[arm], runs, name, edges) for arm in shown})
        grid[-1, number].set_xlabel("step (DAPO: rollouts charged, in steps of uniform)" if "dapo" in arms else "step")
    for row, label in enumerate(("reward on held-out tasks", *(label for _, label in PANELS))):
        grid[row, 0].set_ylabel(label)
        grid[row, 0].set_ylim(bottom=None if row == 0 else 0)
    handles = {text: line for axes in grid[0] for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 4))
    return figure


def _panel(axes: Any, x: np.ndarray, arms: Mapping[str, np.ndarray]) -> None:
    """Median over seeds of `arms[arm] [seeds, points]` over x [points]; the middle half of the seeds is shaded for the arms in BANDS."""
    for arm, values in arms.items():
        known = np.isfinite(values).any(0)
        if not known.any():
            continue
        low, middle, high = np.nanquantile(values[:, known], (0.25, 0.5, 0.75), axis=0)
        colour, dash = LINES[arm]
        axes.plot(x[known], middle, color=colour, linestyle=dash, label=arm, marker="o" if known.sum() < 2 else None)
        if arm in BANDS and len(values) > 1:
            axes.fill_between(x[known], low, high, color=colour, alpha=0.15, linewidth=0)


def _curves(figures: list[Figures], steps: np.ndarray) -> np.ndarray:
    """Learning curves at the evaluated steps of uniform [seeds, evaluations]; NaN after a curve's end."""
    return np.array([np.interp(steps, run.clock, run.curve, right=np.nan) for run in figures])


def _blocks(figures: list[Figures], runs: Mapping[tuple[str, int], Run], name: str, edges: np.ndarray) -> np.ndarray:
    """Means over the steps that end in each block between two edges [seeds, blocks]; NaN where none does."""
    values = np.full((len(figures), len(edges) - 1), np.nan)
    for row, of in enumerate(figures):
        run = runs[of.arm, of.seed]
        column, ends = run.column(name), _ends(run, of)
        for block in range(len(edges) - 1):
            inside = (ends > edges[block]) & (ends <= edges[block + 1]) & np.isfinite(column)
            if inside.any():
                values[row, block] = column[inside].mean()
    return values


def _ends(run: Run, of: Figures) -> np.ndarray:
    """The clock at the end of each step [steps]: step + 1, or for an arm in CHARGED the uniform steps paid for so far."""
    if run.arm not in CHARGED:
        return np.arange(1.0, len(run.steps) + 1)
    spent = np.cumsum(run.column("rollouts"))
    return np.asarray(spent / spent[-1] * of.clock[-1])


def main() -> int:
    """Draw the figure and print its path."""
    parser = argparse.ArgumentParser(prog="python -m envsched_gnn.eval.headline.plot", description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the runs: ROOT/POOL/ARM/SEED/")
    parser.add_argument("--out", type=Path, default=Path("eval/results/headline.svg"))
    arguments = parser.parse_args()
    try:
        print(write_plot(arguments.root, arguments.out))
    except (HistoryError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
