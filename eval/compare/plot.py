"""The figure of a comparison: learning curves over charged rollouts.

Knows: which line a policy has, means over seeds.
Does not know: tables, statistics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from envsched_gnn.eval.figures import BLUE, GREEN, GREY, ORANGE, STYLE
from envsched_gnn.files import replacing

LINES: dict[str, Any] = {"uniform": GREY, "envsched": BLUE, "paper": ORANGE, "oracle": GREEN}
"""Colours of the policies that stand in most comparisons; the others have those of a colour map, and variants are dashed."""
OTHERS = (6, 8, 10, 12, 16, 18, 3, 7, 9, 11, 13, 17, 19, 1, 5)
"""Numbers of that map whose colours are not taken."""
POINTS = 101
"""Points of a mean curve over the budget."""


def write_plot(result: dict[str, Any], path: Path) -> Path:
    """Draw the curves of a result as SVG or PNG, as the name of the file says, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.removeprefix(".") or "svg"
    with mpl.rc_context(STYLE | {"svg.hashsalt": "compare"}), replacing(path) as file:
        drawn(result).savefig(file, format=kind, dpi=130, facecolor="white", metadata={"Date": None} if kind == "svg" else None)
    return path


def drawn(result: dict[str, Any]) -> Figure:
    """One line a policy: the mean over seeds. No bands: worlds differ more than policies do, and the comparison is paired."""
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(row["policy"] for row in result["rows"]))
    others = [name for name in names if name not in LINES]
    colours = LINES | {name: mpl.colormaps["tab20"](OTHERS[at % len(OTHERS)]) for at, name in enumerate(others)}
    budget = np.mean([row["rollouts"] for row in result["rows"] if row["policy"] == "uniform"])
    for name in names:
        curves = [curve for row in result["rows"] if row["policy"] == name if (curve := _curve(row, result)) is not None]
        if not curves:
            continue
        x, colour = np.linspace(0, budget, POINTS), colours[name]
        axes.plot(x, np.mean(curves, axis=0), color=colour, linestyle="--" if ":" in name else "-", label=name, linewidth=1.6)
    axes.set_xlabel("charged rollouts")
    axes.set_ylabel("success")
    if axes.lines:
        figure.legend(loc="outside right upper")
    return figure


def _curve(row: dict[str, Any], result: dict[str, Any]) -> np.ndarray | None:
    """Success at POINTS equal parts of the budget of the row's seed; None if it was never measured."""
    clock, curve = np.array(row["clock"], dtype=float), np.array(row["curve"], dtype=float)
    known = np.isfinite(curve)
    if not known.any():
        return None
    steps = next(other["steps"] for other in result["rows"] if other["policy"] == "uniform" and other["seed"] == row["seed"])
    drawn_at: np.ndarray = np.linspace(0, steps, POINTS)
    return np.interp(drawn_at, clock[known], curve[known])
