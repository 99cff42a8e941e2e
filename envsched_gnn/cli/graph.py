"""`envsched graph`: build a graph from a pool, and export its similarities.

Knows: the options of the two verbs.
Does not know: how a graph is built or stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envsched_gnn.cli.console import Settings, cured, say, show

app = typer.Typer(help="Build the graph of a pool; export its similarities.", no_args_is_help=True)

Out = Annotated[Path, typer.Option("-o", "--out", help="File to write.")]


@app.command("build")
@cured
def build(
    pool: Annotated[str, typer.Argument(help="`toolworld`, `bfcl` or a directory.")],
    out: Out,
    settings: Settings = None,
) -> None:
    """Read a pool and write its graph. Nothing is executed and no rollout is needed."""
    from envsched_gnn.cli.pool import load
    from envsched_gnn.config import load_config
    from envsched_gnn.graph.build import build_graph
    from envsched_gnn.graph.io import save_graph

    config = load_config(None, settings or [])
    records = load(pool, settings)
    say(f"{len(records.tasks):,} tasks in {len(records.environments):,} environments")
    graph = build_graph(
        records, within_neighbors=config.graph.within_neighbors, cross_neighbors=config.graph.cross_neighbors, progress=True
    )
    save_graph(graph, out)
    show(str(out))


@app.command("export")
@cured
def export(graph: Annotated[Path, typer.Argument(help="A graph written by `graph build`.")], out: Out) -> None:
    """Write the dense similarities that `select` uses, as NPZ. Refuses over 5,000 tasks."""
    from envsched_gnn.graph.io import export_similarities, load_graph

    export_similarities(load_graph(graph), out)
    show(str(out))
