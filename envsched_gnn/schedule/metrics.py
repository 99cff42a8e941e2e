"""Metrics: what a trainer's logger should show of a scheduler.

Knows: names and definitions; all keys start with `envsched/`.
Does not know: loggers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from envsched_gnn.history import ZERO_VARIANCE
from envsched_gnn.ops import percentile_rank

if TYPE_CHECKING:
    from envsched_gnn.schedule.book import Book
    from envsched_gnn.schedule.reports import Latest

COUNTS = (
    "selected",
    "groups",
    "observed",
    "failed",
    "masked",
    "duplicates",
    "unknown",
    "malformed",
    "not_a_number",
    "out_of_range",
    "wrong_step",
    "cancelled",
    "relaxations",
)
"""Totals of the run."""


def book_metrics(book: Book) -> dict[str, float]:
    """Everything that the book knows, flat; a figure that does not exist yet is left out."""
    figures: dict[str, float] = {f"total/{name}": book.counts[name] for name in COUNTS}
    figures |= {"rounds": len(book.exposure.rounds), "in_flight": sum(not entry.cancelled for entry in book.open.values())}
    figures |= _seen(book) | _batch(book) | _latest(book.latest)
    return {f"envsched/{name}": float(value) for name, value in figures.items()}


def _seen(book: Book) -> dict[str, float]:
    """Share of tasks and of environments with tasks that were selected at least once."""
    selected = (book.exposure.total > 0).cpu().numpy()
    environments = len(np.unique(book.env_index[selected]))
    return {"seen/tasks": float(selected.mean()), "seen/environments": environments / max(int((book.exposure.sizes > 0).sum()), 1)}


def _batch(book: Book) -> dict[str, float]:
    """The selections of the latest step."""
    chosen = [selection for (step, _, _), selection in book.memo.items() if step == book.last_step]
    picks = [pick for selection in chosen for pick in selection.picks]
    if not picks:
        return {}
    figures: dict[str, float] = {
        "batch/step": book.last_step,
        "batch/size": len(picks),
        "batch/environments": len({pick.env_id for pick in picks}),
        "batch/relaxations": sum(len(selection.relaxations) for selection in chosen),
        "batch/predicted_variance": float(np.mean([pick.predicted_variance for pick in picks])),
        "batch/p_informative": float(np.mean([pick.p_informative for pick in picks])),
    }
    for phase in ("cold", "coverage", "exploitation"):
        figures[f"batch/{phase}"] = sum(pick.phase == phase for pick in picks)
    return figures


def _latest(latest: Latest) -> dict[str, float]:
    """The latest round that reported; rewards are normalised to [0, 1]."""
    if not latest.variance:
        return {}
    figures: dict[str, float] = {"round/step": latest.step}
    figures |= {f"round/{name}": value for name, value in reward_figures(latest.variance, latest.mean).items()}
    correlation = rank_correlation(latest.predicted, latest.realised)
    return figures if correlation is None else figures | {"round/rank_correlation": correlation}


def reward_figures(variance: Sequence[float], mean: Sequence[float]) -> dict[str, float]:
    """What the variances and means of a round's groups add up to; NaN without groups."""
    v, r = (np.array(values if len(values) else [math.nan]) for values in (variance, mean))
    return {
        "variance_mean": float(v.mean()),
        "variance_median": float(np.median(v)),
        "reward_mean": float(r.mean()),
        "reward_median": float(np.median(r)),
        "zero_variance_share": float(np.mean(v <= ZERO_VARIANCE)) if len(variance) else math.nan,
    }


def rank_correlation(predicted: Sequence[float] | np.ndarray, realised: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's correlation, ties averaged; None where one side is constant."""
    if len(predicted) < 2:
        return None
    a, b = (percentile_rank(torch.tensor(np.asarray(x), dtype=torch.float64)) - 0.5 for x in (predicted, realised))
    spread = float(a.square().sum() * b.square().sum())
    return float((a * b).sum()) / spread**0.5 if spread > 0 else None
