"""`envsched replay`: how well predictors would have done on a run that was made.

Knows: the options of the verb.
Does not know: predictors, figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envsched_gnn.cli.console import Json, Settings, cured, say, show, show_json, table

LedgerFile = Annotated[Path, typer.Argument(metavar="LEDGER", help="The folder of a run, or a ledger file.")]
PoolOption = Annotated[
    str | None, typer.Option("--pool", metavar="POOL", help="The ledger's pool; default: the one the run was made with.")
]
GraphOption = Annotated[Path | None, typer.Option("--graph", metavar="GRAPH.pt", help="A graph of the pool; default: the run's own.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE.json", help="Also write the JSON to a file.")]


@cured
def replay(
    ledger: LedgerFile,
    pool: PoolOption = None,
    graph: GraphOption = None,
    predictor: Annotated[
        list[str] | None,
        typer.Option(
            "--predictor", metavar="NAME", help="A predictor to judge; may be repeated; default: all but *_dense and graph_potts."
        ),
    ] = None,
    settings: Settings = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Judge predictors on a finished run: predict each step from what was known before it, score against what came."""
    from envsched_gnn.eval.replay import words
    from envsched_gnn.eval.replay.predictors import OF_TEXTS, check_names
    from envsched_gnn.eval.replay.recorded import read_recorded
    from envsched_gnn.eval.replay.result import replay as judged

    names = check_names(predictor or [])
    recorded = read_recorded(
        ledger, pool=pool, graph=graph, settings=settings or [], with_pool=graph is None and not set(OF_TEXTS).isdisjoint(names)
    )
    result = judged(recorded, names)
    if out:
        write_json(out, result)
    if not result["uniform"]:
        say(f"warning: {result['selection_bias']}")
    if json:
        show_json(result)
        return
    for line in words.head(result):
        show(line)
    for target in ("variance", "informative"):
        show(f"\ntarget {target}")
        show(table(words.HEAD, [words.cells(row) for row in result["rows"] if row["target"] == target]))
        for line in words.differences(result, target):
            show(line)
    show(f"\n{result['method']}")
    show(result["selection_bias"])


def write_json(path: Path, result: object) -> None:
    """The bytes that `--json` prints, in a file."""
    from json import dumps

    from envsched_gnn.errors import ConfigError
    from envsched_gnn.files import write_atomic

    try:
        write_atomic(path, f"{dumps(result, indent=2, allow_nan=False)}\n".encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). Give a path in a folder that you may write to.") from None
