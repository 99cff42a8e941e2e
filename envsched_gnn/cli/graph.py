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
    similarity: Annotated[
        str | None, typer.Option("--similarity", metavar="tfidf|dense|both", help="What tasks are compared by; default: tfidf.")
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option("--embedding", metavar="MODEL", help="A sentence-transformers model by name or folder; its embeddings are kept, too."),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Where the model runs: auto, cpu, cuda or cuda:N.")] = None,
    settings: Settings = None,
) -> None:
    """Read a pool and write its graph. Nothing is executed and no rollout is needed."""
    from json import dumps

    from envsched_gnn.cli.pool import load
    from envsched_gnn.config import load_config
    from envsched_gnn.graph.configured import configured_graph
    from envsched_gnn.graph.io import save_graph

    given = {"graph.similarity": similarity, "graph.embedding": embedding, "run.device": device}
    chosen = [f"{key}={dumps(value)}" for key, value in given.items() if value is not None]
    config = load_config(None, [*(settings or []), *chosen])
    records = load(pool, settings)
    say(f"{len(records.tasks):,} tasks in {len(records.environments):,} environments")
    graph = configured_graph(records, config, progress=True)
    save_graph(graph, out)
    if graph.embedding_model:
        say(f"embeddings of {graph.embedding_model}: {graph['task'].embedding.shape[1]} numbers a task")
    show(str(out))


@app.command("export")
@cured
def export(graph: Annotated[Path, typer.Argument(help="A graph written by `graph build`.")], out: Out) -> None:
    """Write the dense similarities that `select` uses, as NPZ. Refuses over 5,000 tasks."""
    from envsched_gnn.graph.io import export_similarities, load_graph

    export_similarities(load_graph(graph), out)
    show(str(out))
