"""A comparison from its options to its result, or from the results of others.

Knows: which policies stand in every comparison, where its files lie.
Does not know: how a run is made, figures, tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from envsched_gnn.errors import EnvSchedError
from envsched_gnn.eval.compare.join import joined
from envsched_gnn.eval.compare.plot import write_plot
from envsched_gnn.eval.compare.results import result_of, write_result
from envsched_gnn.eval.compare.runs import Where, make_all, planned
from envsched_gnn.eval.compare.variants import entries_of, seeds_of

ALWAYS: dict[Where, tuple[str, ...]] = {"simulate": ("uniform", "oracle"), "run": ("uniform",), "train": ("uniform",)}
"""The reference, and the ceiling where it costs nothing to look; elsewhere it is there if it is named."""


def compare(
    where: Where,
    policies: str,
    seeds: str,
    *,
    folder: Path,
    out: Path,
    config: Path | None = None,
    settings: Sequence[str] = (),
    processes: int = 2,
    command: str = "",
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Make the runs that are missing under `folder`, write `out` and the figure beside it, and return the content of `out`.

    Raises:
        ConfigError: a name, seed or setting is wrong, or the folder holds runs with other settings.
        EnvSchedError: a run has failed; the others are finished and kept.
    """
    runs = planned(folder, where, entries_of(policies, ALWAYS[where]), seeds_of(seeds), config, settings)
    failed = make_all(runs, processes, tell)
    if failed:
        raise EnvSchedError(
            f"{len(failed)} of {len(runs)} runs failed: {'; '.join(failed)} Give the same command again to go on with them."
        )
    return _written(result_of(runs, command), out)


def join(paths: Sequence[Path], *, out: Path, command: str = "") -> dict[str, Any]:
    """Write `out`, and the figure beside it, from result files of comparisons that were made apart, and return the content of `out`.

    Raises:
        ConfigError, HistoryError: as `joined`.
    """
    return _written(joined(paths, command), out)


def _written(result: dict[str, Any], out: Path) -> dict[str, Any]:
    write_result(result, out)
    write_plot(result, out.with_suffix(".svg"))
    return result
