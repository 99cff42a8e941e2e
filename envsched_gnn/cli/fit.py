"""`envsched fit`: weights for the learned predictor, from finished runs.

Knows: the options of the verb.
Does not know: networks, figures.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from envsched_gnn.cli.console import Json, Settings, cured, show, show_json, table
from envsched_gnn.cli.replay import GraphOption, PoolOption

Ledgers = Annotated[list[Path], typer.Argument(metavar="LEDGER...", help="Folders of runs, or ledger files.")]


class Split(StrEnum):
    """What is left out of the fit that is judged."""

    time = "time"
    environment = "environment"


@cured
def fit(
    ledgers: Ledgers,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Where to write the weights.")],
    split: Annotated[
        Split, typer.Option("--split", help="Judge on the last third of the steps, or on a fifth of the environments.")
    ] = Split.time,
    seed: Annotated[int, typer.Option("--seed", help="Of the first weights and the minibatches.")] = 0,
    pool: PoolOption = None,
    graph: GraphOption = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Fit the learned predictor on finished runs; use it with -s predict.predictor=learned -s predict.weights=FILE."""
    from envsched_gnn.eval.replay.fit import fit as fitted
    from envsched_gnn.eval.replay.recorded import read_recorded

    recorded = [read_recorded(ledger, pool=pool, graph=graph, settings=settings or []) for ledger in ledgers]
    result = fitted(recorded, out, split.value, seed)
    if json:
        show_json(result)
        return
    show(f"{result['groups']:,} groups of {len(ledgers)} ledgers; the network reads {result['content']}")
    show(f"split {result['split']}: fitted on {result['fitted_on']:,} groups, judged on {result['judged_on']:,}")
    names = ("log_likelihood", "spearman", "calibration_error")
    cells = ([who, *("" if result[who][name] is None else f"{result[who][name]:.4f}" for name in names)] for who in ("mixture", "learned"))
    show(table(("predictor", "log-likelihood", "Spearman", "calibration error"), [tuple(row) for row in cells]))
    show(f"weights, fitted on all groups: {result['out']}")
