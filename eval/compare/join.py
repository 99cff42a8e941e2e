"""Results of comparisons that were made apart, on several machines or days, joined into one.

Knows: what two results must share to stand in one table, whose row stands where both have one.
Does not know: how a run is made, what is computed from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from envsched_gnn.errors import ConfigError, HistoryError, message
from envsched_gnn.eval.compare.figures import Figures
from envsched_gnn.eval.compare.results import plain, result_from
from envsched_gnn.eval.compare.runs import FREE

PART = ("command", "commit", "date")
CURE = "Give result files of envsched compare."


def joined(paths: Sequence[Path], command: str) -> dict[str, Any]:
    """One result from several, with `parts`: where its rows are from. Where two have a run of the same policy and seed, the later stands.

    All rows of a seed are paired with its uniform run, so if that is in several files it must be the same in all.

    Raises:
        ConfigError: the files differ in their settings, or in a uniform run.
        HistoryError: a file is not there, or holds no result.
    """
    results = [_read(path) for path in paths]
    first = results[0]
    rows: dict[tuple[str, int], tuple[Figures, dict[str, Any]]] = {}
    for path, result in zip(paths, results, strict=True):
        _check_settings(first, result, f"{paths[0]} and {path}")
        for row, part in result["rows"]:
            known = rows.get((row.policy, row.seed))
            if known and row.policy == "uniform" and _alike(known[0]) != _alike(row):
                raise ConfigError(
                    f"{path}: uniform of seed {row.seed} is another run than in a file before it, so this seed's runs cannot be paired. "
                    "Make all of a seed on one machine, with one version; leave the seed out of one of the files."
                )
            rows[row.policy, row.seed] = (row, part)
    result = result_from([row for row, _ in rows.values()], command, first["in"], first["settings"])
    return result | {"parts": _parts(rows.values())}


def _read(path: Path) -> dict[str, Any]:
    """`in`, `settings`, and `rows`: the figures of each with the part that it is from."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = [(row, _part_of(result, row)) for row in map(_figures, result["rows"])]
        lone = sorted({row.seed for row, _ in rows} - {row.seed for row, _ in rows if row.policy == "uniform"})
        if lone or not rows:
            raise ValueError(f"no uniform run of seed {lone[0]}" if lone else "no rows")
        return {"in": str(result["in"]), "settings": dict(result["settings"]), "rows": rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HistoryError(message(str(path), f"cannot be read ({error})", "rows, settings and command of a comparison", CURE)) from None


def _figures(row: Mapping[str, Any]) -> Figures:
    """A row of a result file; None was NaN, or for the time to uniform's best of a run with a curve: never."""
    values = {field.name: math.nan if row[field.name] is None else row[field.name] for field in fields(Figures)}
    clock, curve = (np.array([math.nan if value is None else value for value in row[name]]) for name in ("clock", "curve"))
    if row["best_of_uniform"] is None and np.isfinite(curve).any():
        values["best_of_uniform"] = math.inf
    return Figures(**values | {"clock": clock, "curve": curve})


def _check_settings(first: Mapping[str, Any], other: Mapping[str, Any], names: str) -> None:
    old, new = ({"--in": result["in"], **result["settings"]} for result in (first, other))
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key) and key not in FREE]
    if changed:
        differences = ", ".join(f"{key} = {old.get(key)!r} and {new.get(key)!r}" for key in changed)
        raise ConfigError(
            f"{names}: made with different settings: {differences}. Join comparisons that differ in policies and seeds alone."
        )


def _alike(row: Figures) -> str:
    """What two runs that are the same have in common: all but their time."""
    return repr(plain(row) | {"seconds_a_step": None})


def _part_of(result: Mapping[str, Any], row: Figures) -> dict[str, Any]:
    """Where a row was made: the part of a joined result that it is from, else the result itself."""
    part = next((part for part in result.get("parts", ()) if row.seed in part["runs"].get(row.policy, ())), result)
    return {name: part[name] for name in PART}


def _parts(rows: Iterable[tuple[Figures, dict[str, Any]]]) -> list[dict[str, Any]]:
    """`{command, commit, date, runs: {policy: [seeds]}}` of each origin."""
    parts: dict[str, dict[str, Any]] = {}
    for row, part in rows:
        runs = parts.setdefault(json.dumps(part), part | {"runs": {}})["runs"]
        runs.setdefault(row.policy, []).append(row.seed)
    return list(parts.values())
