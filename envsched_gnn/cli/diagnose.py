"""`envsched diagnose`: whether environments and similarities say anything about variance in a pool.

Knows: the options of the verb.
Does not know: tests, what a verdict needs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from envsched_gnn.cli.console import Json, Settings, cured, say, show, show_json, table
from envsched_gnn.cli.replay import GraphOption, LedgerFile, Out, PoolOption, write_json


@cured
def diagnose(
    ledger: LedgerFile,
    pool: PoolOption = None,
    graph: GraphOption = None,
    permutations: Annotated[int, typer.Option("--permutations", min=99, help="Of each test; the smallest p is 1 / (1 + these).")] = 999,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the permutations.")] = 0,
    settings: Settings = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Test whether tasks of one environment, and similar tasks, show similar variance; say which relation is noise."""
    from envsched_gnn.eval.diagnose import words
    from envsched_gnn.eval.diagnose.diagnose import diagnose as tested
    from envsched_gnn.eval.replay.recorded import read_recorded

    recorded = read_recorded(ledger, pool=pool, graph=graph, settings=settings or [], with_pool=True)
    result = tested(recorded, permutations=permutations, seed=seed)
    if out:
        write_json(out, result)
    if not result["uniform"]:
        say(words.BIASED.format(policy=result["policy"]))
    if json:
        show_json(result)
        return
    for line in words.head(result):
        show(line)
    for rows in (result["relations"], result["views"]):
        if rows:
            show("")
            show(table(words.HEAD, [words.cells(row) for row in rows]))
    show("")
    for line in words.conclusions(result):
        show(line)
    show(f"\n{words.METHOD}")
