"""The table of the headline experiment, for a terminal and for the README, from the content of headline.json.

Knows: columns, how a figure with its interval is written.
Does not know: where the figures come from.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

COLUMNS = (
    *("arm", "seeds", "AUC", "Δ AUC", "Δ AUC by token", "final", "Δ final"),
    *("groups without variance", "way to the oracle", "realised variance", "informative tasks"),
    *("environments a batch", "tools a batch", "Spearman", "steps to uniform's best"),
)
LEGEND = (
    "Medians over seeds. AUC: mean held-out reward over the steps (dapo: over the rollouts charged). Δ: mean paired difference to uniform "
    "[95 % bootstrap interval over seeds], seeds in which the arm is better. Way to the oracle: of the groups without variance that the "
    "oracle saves beside uniform, the share that the arm saves. Informative tasks: effective number of the tasks of informative groups. "
    "Steps to uniform's best: first evaluated step at which the isotonic fit reaches the best of uniform's on that seed, median "
    "[interval], seeds that reach it."
)


def rows(summary: dict[str, Any]) -> list[list[str]]:
    """Cells of a pool, one row an arm."""
    return [_row(arm, entry) for arm, entry in summary["arms"].items()]


def _row(arm: str, entry: dict[str, Any]) -> list[str]:
    middle, difference = entry["median"], entry["minus_uniform"]
    time, way = entry["time_to_uniform_best"], entry["share_of_way"]
    return [
        arm,
        str(time["seeds"]),
        number(middle["auc"]),
        signed(difference.get("auc")),
        signed(difference.get("auc_by_token")),
        number(middle["final"]),
        signed(difference.get("final")),
        number(middle["zero_variance_share"]),
        f"{number(way['value'], 2)}{ends(way, 2)}",
        number(middle["variance"], 4),
        number(middle["informative_tasks"], 0),
        number(middle["environments_per_batch"], 1),
        number(middle["tools_per_batch"], 1),
        number(middle["spearman"], 2),
        f"{steps(time)}, {time['reached']}/{time['seeds']}",
    ]


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def ends(interval: dict[str, Any], digits: int = 3, sign: str = "") -> str:
    """The interval in brackets; nothing where too few seeds give none."""
    if interval["low"] is None or interval["high"] is None:
        return ""
    return f" [{interval['low']:{sign}.{digits}f}, {interval['high']:{sign}.{digits}f}]"


def signed(interval: dict[str, Any] | None) -> str:
    """A paired difference: mean [interval], seeds on the good side of all."""
    if interval is None or interval["value"] is None:
        return "–"
    return f"{interval['value']:+.3f}{ends(interval, sign='+')}, {interval['better']}/{interval['seeds']}"


def never(value: float | None) -> str:
    """A number of steps; `never` where the target is not reached within the budget."""
    return "never" if value is None else f"{value:.0f}"


def steps(time: dict[str, Any]) -> str:
    """Median [interval] of a time; one seed has no interval."""
    interval = f" [{never(time['low'])}, {never(time['high'])}]" if time["seeds"] > 1 else ""
    return never(time["value"]) + interval


def title(result: dict[str, Any], pool: str) -> str:
    """Name, role and null band of a pool in one line."""
    band = result["summary"][pool]["null_band"]
    name, role = pool, result["pools"][pool]["role"]
    start = f"pool {name}" + (f" ({role})" if role != name else "")
    if band is None:
        return f"{start}; one uniform seed, so no null band"
    low, middle, high = (never(value) for value in band["time_to_uniform_best"])
    gains = f"{band['auc'][0]:+.3f} to {band['auc'][2]:+.3f}"
    reach = f"{band['reached']}/{band['pairs']} pairs reach it"
    return f"{start}; uniform against uniform: area {gains}, uniform's best after {middle} steps [{low}, {high}], {reach}"


def goes_with(summary: dict[str, Any]) -> str:
    """What the area goes with, in one line."""
    about = summary["area_goes_with"]
    names = {
        "informative_groups": "informative groups",
        "informative_tasks": "informative tasks",
        "root_of_both": "the root of their product",
    }
    parts = [f"{number(about[name]['value'], 2)}{ends(about[name], 2)} with {text}" for name, text in names.items()]
    return f"Correlation of AUC within seeds ({about['runs']} runs): {', '.join(parts)}."


def rich_tables(result: dict[str, Any]) -> list[Table]:
    """One table a pool for a terminal."""
    tables = []
    for pool, summary in result["summary"].items():
        table = Table(title=Text(title(result, pool)), caption=Text(f"{goes_with(summary)}\n{LEGEND}"))
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "arm" else "right")
        for row in rows(summary):
            table.add_row(*(Text(cell) for cell in row))
        tables.append(table)
    return tables


def markdown(result: dict[str, Any]) -> str:
    """One table a pool for the README, each under a line with its null band."""
    parts = []
    for pool, summary in result["summary"].items():
        lines = [COLUMNS, ("---",) * len(COLUMNS), *rows(summary)]
        table = (f"| {' | '.join(line)} |" for line in lines)
        parts.append("\n".join([f"**{title(result, pool)}**", "", *table, "", goes_with(summary)]))
    return "\n\n".join([*parts, LEGEND])
