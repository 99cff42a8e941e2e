"""What `envsched replay` says: one row a target and predictor, their differences, and how far a ledger can be trusted.

Knows: the rows and their names, what is said of the ledger's policy, how few groups are too few.
Does not know: how a figure is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from envsched_gnn.errors import HistoryError, message
from envsched_gnn.eval.headline.statistics import Interval
from envsched_gnn.eval.metrics import bins
from envsched_gnn.eval.replay.intervals import interval_coverage
from envsched_gnn.eval.replay.judge import TARGETS, Judgement, judge
from envsched_gnn.eval.replay.predictors import check_names
from envsched_gnn.eval.replay.recorded import Recorded
from envsched_gnn.eval.replay.score import Predicted, difference, figure, interval, sums_by_step, thirds
from envsched_gnn.files import without_nan
from envsched_gnn.schedule.metrics import rank_correlation

MIN_GROUPS = 50
"""Judged groups below which nothing is said (ours)."""
MIN_STEPS = 6
"""Judged steps below which nothing is said: two a third (ours)."""
BIASED = (
    "made the picks from predictions, so groups that it took for uninformative have no label. Figures hold for what it picked: "
    "a narrow range lowers a correlation, and a predictor like its own is judged on its own mistakes. "
    "The reference is a uniform ledger of the same pool."
)
REFERENCE = "Every pick was uniform: labels do not depend on any prediction."
METHOD = (
    "Spearman: mean over steps of the correlation within the step; a step in which all predictions tie counts 0. "
    "Precision at B: groups with variance among the half of each step's groups that was predicted highest; beside it the share of all. "
    "`own`, `within` and `cross` are single sources. `paper` selects by variance and `mixture` by P(informative); each is read as the "
    "other through the mean variance of informative groups. 95 % intervals resample steps, 10,000 times, the same draws for all predictors."
)


def replay(recorded: Recorded, names: Sequence[str] = ()) -> dict[str, Any]:
    """All figures of a ledger for the predictors named (default: all), plain and without NaN; None where a figure does not exist.

    Raises:
        ConfigError: an unknown predictor.
        HistoryError: too few observed groups or steps; says how many are needed.
    """
    names = check_names(names)
    _require_enough(recorded)
    judgement = judge(recorded, names)
    said = {key: _predicted(judgement, *key) for key in judgement.predicted}
    sums = {key: sums_by_step(entry) for key, entry in said.items()}
    some = next(iter(sums.values()))
    parts = thirds(len(some))
    informative = judgement.realised["informative"]
    result = {
        "ledger": recorded.name,
        "path": str(recorded.path),
        "kind": recorded.kind,
        "policy": recorded.policy,
        "uniform": recorded.uniform,
        "selection_bias": REFERENCE if recorded.uniform else f"The policy {recorded.policy} {BIASED}",
        "pool_hash": recorded.graph.pool_hash,
        "selected": recorded.selected,
        "observed": len(recorded.steps),
        "judged": len(judgement.step),
        "steps": len(some),
        "mixed_share": {"all": float(informative.mean())}
        | {part: float(figure("base_rate", some[steps].sum(0))) for part, steps in parts.items()},
        "variance_mean": float(judgement.realised["variance"].mean()),
        "rows": [_row(recorded, key, said[key], sums[key]) for key in said],
        "differences": [_difference(target, a, b, sums) for target in TARGETS for a, b in combinations(names, 2)],
        "method": METHOD,
    }
    plain: dict[str, Any] = without_nan(result)
    return plain


def _require_enough(recorded: Recorded) -> None:
    steps, counts = np.unique(recorded.steps.numpy(), return_counts=True)
    judged = int(counts[1:].sum())
    if judged < MIN_GROUPS or len(steps) - 1 < MIN_STEPS:
        found = f"{judged} observed groups in {max(len(steps) - 1, 0)} steps after the first"
        raise HistoryError(
            message(
                str(recorded.path), found, f"at least {MIN_GROUPS} in at least {MIN_STEPS}", "Let the run go on, or judge a longer one."
            )
        )


def _predicted(judgement: Judgement, target: str, name: str) -> Predicted:
    return Predicted(
        step=judgement.step,
        predicted=judgement.predicted[target, name],
        realised=judgement.realised[target],
        informative=judgement.realised["informative"],
    )


def _row(recorded: Recorded, key: tuple[str, str], said: Predicted, sums: np.ndarray) -> dict[str, Any]:
    """The row of `predictors.json`, and beside it the other figures, the thirds, and the bins of calibration."""
    target, name = key
    curve = bins(said.predicted, said.realised)
    error = sum(entry.size * abs(entry.predicted - entry.realised) for entry in curve) / len(said.step)
    pooled = rank_correlation(said.predicted, said.realised)
    return {
        "ledger": recorded.name,
        "kind": recorded.kind,
        "target": target,
        "predictor": name,
        **_figures(sums),
        "spearman_pooled": pooled,
        "calibration_error": error,
        "calibration": [vars(entry) for entry in curve],
        **(interval_coverage(said) if target == "informative" else {}),
        **{part: _figures(sums[steps]) for part, steps in thirds(len(sums)).items()},
    }


def _figures(sums: np.ndarray) -> dict[str, Any]:
    """Figures over some steps, with intervals where they have one."""
    found: dict[str, Any] = {}
    for name in ("spearman", "mae", "precision_at_batch"):
        found |= _ends(name, interval(name, sums))
    total = sums.sum(0)
    return found | {name: float(figure(name, total)) for name in ("mse", "base_rate")} | {"groups": int(total[0]), "steps": len(sums)}


def _ends(name: str, value: Interval) -> dict[str, float]:
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def _difference(target: str, a: str, b: str, sums: dict[tuple[str, str], np.ndarray]) -> dict[str, Any]:
    """Spearman of b minus Spearman of a."""
    return {"target": target, "predictor": b, "minus": a} | _ends("spearman", difference("spearman", sums[target, b], sums[target, a]))
