"""The figures of a report, each as one inline SVG.

Knows: colours, axes, how each figure is drawn from plain arrays.
Does not know: run folders, HTML.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from envsched_gnn.eval.metrics import Bin

BLUE, ORANGE, GREEN, RED, VIOLET, GREY = "#2a6fbb", "#e07b26", "#3d9a6d", "#c8423f", "#7d5ba6", "#9aa3ad"
INK, LINE = "#2b3138", "#e3e7eb"

STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans", "sans-serif"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
}


def _new(name: str, width: float = 6.4, height: float = 2.7) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.set_gid(name)
    return figure, figure.subplots()


def _svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an `<svg>` element: no XML header, no date, ids that no other figure has."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor="none")
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r'^<svg([^>]*?) width="[^"]*"', r"<svg\1", text)
    return re.sub(r'^<svg([^>]*?) height="[^"]*"', rf'<svg\1 role="img" aria-label="{title}"', text)


def _step_axis(axes: Any, steps: np.ndarray) -> None:
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(FixedLocator(steps.tolist()) if len(steps) < 4 else MaxNLocator(integer=True))
    pad = max(0.5, 0.01 * (steps[-1] - steps[0]))
    axes.set_xlim(steps[0] - pad, steps[-1] + pad)


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Trailing mean over at most `width` rounds; NaN rounds are left out."""
    result = np.full(len(values), np.nan)
    for end in range(len(values)):
        window = values[max(0, end + 1 - width) : end + 1]
        if np.isfinite(window).any():
            result[end] = np.nanmean(window)
    return result


def by_step(
    name: str,
    steps: np.ndarray,
    lines: Sequence[tuple[str, np.ndarray, str]],
    *,
    label: str,
    share: bool = False,
    points: bool = False,
    bottom: float = 0.0,
    width: float = 6.4,
) -> str:
    """One line a series over steps, thin beneath its trailing mean if steps are many. `lines` = (label, values [steps], colour).

    `share`: the axis ends at 1. `points`: every value is a point of its own and nothing is smoothed.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _new(name, width)
        window = 1 if points else max(1, len(steps) // 12)
        for text, values, colour in lines:
            if window > 1:
                axes.plot(steps, values, color=colour, alpha=0.28, linewidth=1)
            marker = "o" if points or len(steps) < 3 else None
            axes.plot(steps, smooth(values, window), color=colour, label=text, marker=marker)
        axes.set_ylabel(label)
        top = max((float(np.nanmax(values)) for _, values, _ in lines if np.isfinite(values).any()), default=1.0)
        axes.set_ylim(bottom * 1.12, 1.02 if share else max(top * 1.12, 1e-3))
        _step_axis(axes, steps)
        if len(lines) > 1:
            axes.legend(loc="best", ncols=len(lines))
        return _svg(figure, name, f"{label} by step")


def stacked(name: str, steps: np.ndarray, parts: Sequence[tuple[str, np.ndarray, str]], *, label: str, width: float = 6.4) -> str:
    """Stacked bars over steps. `parts` = (label, values [rounds], colour)."""
    with mpl.rc_context(STYLE):
        figure, axes = _new(name, width, 2.7)
        bottom = np.zeros(len(steps))
        for text, values, colour in parts:
            axes.bar(steps, np.nan_to_num(values), bottom=bottom, color=colour, label=text, width=0.85, linewidth=0)
            bottom += np.nan_to_num(values)
        axes.set_ylabel(label)
        axes.set_ylim(0, max(bottom.max() * 1.25, 1e-9))
        _step_axis(axes, steps)
        if len(parts) > 1:
            axes.legend(loc="upper right", ncols=len(parts))
        return _svg(figure, name, f"{label} by step")


def heat_map(name: str, counts: np.ndarray, labels: Sequence[str], steps: np.ndarray) -> str:
    """Selections `counts [environments, rounds]` as colour; the caller caps the rows."""
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        height = min(8.0, 1.0 + 0.095 * len(labels))
        figure, axes = _new(name, 9.6, height)
        shades = mpl.colors.LinearSegmentedColormap.from_list("selections", ["#f4f6f8", "#a9cbe8", BLUE, "#123a63"])
        extent = (steps[0] - 0.5, steps[-1] + 0.5, len(labels) - 0.5, -0.5)
        top = max(1.0, float(counts.max()))
        image = axes.imshow(counts, aspect="auto", interpolation="nearest", cmap=shades, extent=extent, vmin=0, vmax=top)
        _step_axis(axes, steps)
        axes.set_xlim(extent[0], extent[1])
        every = 1 if len(labels) <= 60 else 5
        axes.set_yticks(
            range(0, len(labels), every), [_short(label) for label in labels[::every]], fontsize=6.5 if len(labels) > 20 else 8.5
        )
        axes.tick_params(length=0)
        bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.025, ticks=MaxNLocator(integer=True))
        bar.outline.set_visible(False)
        bar.set_label("tasks selected")
        return _svg(figure, name, "tasks selected, environment by step")


def _short(label: str, width: int = 28) -> str:
    return label if len(label) <= width else f"{label[: width - 1]}…"


def predicted_against_realised(name: str, predicted: np.ndarray, realised: np.ndarray, means: Sequence[Bin]) -> str:
    """Every group as a faint point, the mean of each tenth of the predictions as a line; [groups] each."""
    with mpl.rc_context(STYLE):
        figure, axes = _new(name, 4.7, 3.3)
        both = np.isfinite(predicted) & np.isfinite(realised)
        points = {"s": 10, "alpha": 0.35, "color": BLUE, "linewidths": 0, "rasterized": int(both.sum()) > 2000}
        axes.scatter(predicted[both], realised[both], label="one group", **points)
        axes.plot([b.predicted for b in means], [b.realised for b in means], "o-", color=ORANGE, label="mean of a tenth", markersize=5)
        top = max([0.02, *predicted[both]])
        axes.plot([0, top], [0, top], "--", color=GREY, linewidth=1, label="equal")
        axes.set_xlabel("predicted variance")
        axes.set_ylabel("realised variance")
        axes.set_xlim(0, top * 1.05)
        axes.set_ylim(-0.006, 0.3)
        axes.legend(loc="upper right", ncols=3, columnspacing=1.2, handletextpad=0.5)
        return _svg(figure, name, "predicted against realised variance")


def reliability(name: str, means: Sequence[Bin]) -> str:
    """Share of informative groups against P(informative), bin by bin; the size of a point is the number of groups."""
    with mpl.rc_context(STYLE):
        figure, axes = _new(name, 4.7, 3.3)
        largest = max((b.size for b in means), default=1)
        axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="calibrated")
        axes.plot([b.predicted for b in means], [b.realised for b in means], "-", color=GREEN, linewidth=1)
        axes.scatter([b.predicted for b in means], [b.realised for b in means], s=[20 + 80 * b.size / largest for b in means], color=GREEN)
        axes.set_xlabel("P(informative) before the rollouts")
        axes.set_ylabel("share that was informative")
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.legend(loc="upper left")
        return _svg(figure, name, "calibration of the probability that a group is informative")
