"""The result of a replay for a terminal.

Knows: columns, how a figure with its interval is written.
Does not know: where figures come from.
"""

from __future__ import annotations

from typing import Any

HEAD = ("predictor", "Spearman", "early", "middle", "late", "MAE", "calibration error", "precision at B", "share of all")


def head(result: dict[str, Any]) -> list[str]:
    """What was judged, in sentences."""
    mixed = result["mixed_share"]
    lines = [
        f"ledger {result['ledger']} ({result['kind']}), policy {result['policy']}",
        f"judged: {result['judged']:,} groups in {result['steps']} steps",
        f"groups with variance: {number(mixed['all'])} (early {number(mixed['early'])}, middle {number(mixed['middle'])}, "
        f"late {number(mixed['late'])}); mean variance {number(result['variance_mean'], 4)}",
    ]
    if not mixed["all"]:
        lines.append("no group had any variance: there is nothing to order, so no correlation exists.")
    elif mixed["all"] == 1:
        lines.append("every group had variance: for the target informative there is nothing to order.")
    return lines


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One predictor, for one target."""
    digits = 4 if row["target"] == "variance" else 3
    return (
        row["predictor"],
        with_ends(row, "spearman"),
        *(number(row[part]["spearman"]) for part in ("early", "middle", "late")),
        number(row["mae"], digits),
        number(row["calibration_error"], digits),
        with_ends(row, "precision_at_batch"),
        number(row["base_rate"]),
    )


def differences(result: dict[str, Any], target: str) -> list[str]:
    """Spearman of the others minus that of a task's own history, which any list of scores has; without it, minus the first one's."""
    pairs = [entry for entry in result["differences"] if entry["target"] == target and entry["spearman"] is not None]
    reference = "own" if any(entry["minus"] == "own" for entry in pairs) else next((entry["minus"] for entry in pairs), "")
    return [f"  {e['predictor']} - {reference}: {with_ends(e, 'spearman', '+')}" for e in pairs if e["minus"] == reference]


def with_ends(row: dict[str, Any], name: str, sign: str = "") -> str:
    """A figure and its interval; a dash where it does not exist."""
    if row[name] is None:
        return "-"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:{sign}.3f}" + ("" if low is None or high is None else f" [{low:{sign}.3f}, {high:{sign}.3f}]")


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"
