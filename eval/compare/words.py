"""The table of a comparison for a terminal, from the content of the result file.

Knows: columns, how a figure with its interval is written.
Does not know: where the figures come from.
"""

from __future__ import annotations

from typing import Any

from envsched_gnn.eval.headline.table import ends, number, steps
from envsched_gnn.eval.simulate import CAUTION

HEAD = (
    *("policy", "way to the oracle", "informative", "variance", "environments", "area", "final", "uniform's best by step"),
    *("informative a step", "a token", "area a step", "a token", "rollouts", "not learned from"),
)
LEGEND = (
    "Means over seeds; in brackets 95 % paired bootstrap intervals over seeds: of the figure itself for the way and the step, else of the "
    "difference to uniform. Informative: share of charged rollouts that were learned from in groups with variance. Way to the oracle: "
    "of what the oracle gains on uniform in informative, the share that the policy gains. Area: mean success over the budget of charged "
    "rollouts; final: at its end. Uniform's best by step: median of the first step, in rollouts of uniform, at which the isotonic fit "
    "reaches the best of uniform's. A step, a token: the same by own steps, where extra rollouts are free, and by tokens."
)


def head(result: dict[str, Any]) -> list[str]:
    """What was compared, and what a reader must know before the figures."""
    seeds = ", ".join(map(str, result["seeds"]))
    return [f"in {result['in']}: {len(result['summary'])} policies x {len(result['seeds'])} seeds ({seeds})", *result["notes"]]


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One policy."""
    way = row["share_of_way"]
    return (
        row["policy"],
        f"{number(way['value'], 2)}{ends(way, 2)}",
        _paired(row, "informative", 3),
        _paired(row, "variance", 4),
        _paired(row, "environments", 1),
        _paired(row, "area", 3),
        _paired(row, "final", 3),
        f"{steps(row['best_of_uniform'])}, {row['best_of_uniform']['reached']}/{row['seeds']}" if row["best_of_uniform"]["seeds"] else "–",
        *(number(row[name]["value"]) for name in ("informative_by_step", "informative_by_token", "area_by_step", "area_by_token")),
        f"{row['rollouts']:,.0f}",
        f"{100 * row['unused']:.0f} %" if row["unused"] is not None else "–",
    )


def _paired(row: dict[str, Any], name: str, digits: int) -> str:
    """Mean over seeds, and the interval of its difference to uniform."""
    return number(row[name]["value"], digits) + ("" if row["policy"] == "uniform" else ends(row[name]["minus_uniform"], digits, "+"))


def foot(result: dict[str, Any]) -> list[str]:
    """The legend, the oracle's looks, and what a simulation is."""
    looks = [row["looks"] for row in result["summary"] if row["policy"] == "oracle"]
    exact = "it is told the chances, which only a simulator knows" if result["in"] == "simulate" else "they are charged to nobody"
    caution = [CAUTION] if result["in"] == "simulate" else []
    return [LEGEND, *(f"The oracle's looks: {count:,.0f} rollouts a run; {exact}." for count in looks), *caution]
