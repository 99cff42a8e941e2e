"""`envsched pool`: look at a pool, convert it, audit it, shuffle it.

Knows: the options of the four verbs.
Does not know: file formats, execution, what is worth showing.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envsched_gnn.cli.console import Json, Settings, cured, say, show, show_json
from envsched_gnn.config import load_config

if TYPE_CHECKING:
    from envsched_gnn.pool.pool import Pool

app = typer.Typer(help="Look at a pool, convert it, audit it, shuffle it.", no_args_is_help=True)

Path_ = Annotated[str, typer.Argument(metavar="POOL", help="`toolworld`, `bfcl` or a directory.")]


class Form(StrEnum):
    """Formats that a pool can be written in."""

    jsonl = "jsonl"
    parquet = "parquet"
    envscaler = "envscaler"


def load(pool: str, settings: list[str] | None) -> Pool:
    """The pool of an argument and its settings; warns of what a user should look at."""
    import json

    from envsched_gnn.pool.load import load_pool
    from envsched_gnn.pool.show import summary, warnings

    records = load_pool(load_config(None, [*(settings or []), f"pool.path={json.dumps(pool, ensure_ascii=False)}"]).pool)
    for warning in warnings(summary(records)):
        say(f"warning: {warning}")
    return records


@app.command("show")
@cured
def show_pool(pool: Path_, settings: Settings = None, json: Json = False) -> None:
    """What a pool holds: environments, tasks, tools, checks."""
    from envsched_gnn.pool.show import summary, table

    figures = summary(load(pool, settings))
    if json:
        show_json(figures)
        return
    for label, value in table(figures):
        show(f"{label:24}{value}")


@app.command("convert")
@cured
def convert(
    pool: Path_,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory to write.")],
    form: Annotated[Form, typer.Option("--form", help="Format to write.")] = Form.jsonl,
    settings: Settings = None,
) -> None:
    """Write a pool as a manifest (JSONL or Parquet) or in EnvScaler's format."""
    from envsched_gnn.pool.envscaler import write_envscaler
    from envsched_gnn.pool.manifest import write_manifest

    records = load(pool, settings)
    match form:
        case Form.envscaler:
            write_envscaler(records, out)
        case Form.jsonl:
            write_manifest(records, out, form="jsonl")
        case Form.parquet:
            write_manifest(records, out, form="parquet")
    show(str(out))


@app.command("shuffle")
@cured
def shuffle_pool(
    pool: Path_,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory to write.")],
    seed: Annotated[int, typer.Option("--seed", help="Which of all shuffled pools.")] = 0,
    settings: Settings = None,
) -> None:
    """Write the counterexample: every task shows a scheduler the environment and structure of a random other one, and stays as it is."""
    from envsched_gnn.pool.manifest import write_manifest
    from envsched_gnn.pool.shuffle import shuffle

    write_manifest(shuffle(load(pool, settings), seed), out)
    show(str(out))


@app.command("audit")
@cured
def audit_pool(
    pool: Path_,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Times each trajectory is played; 2 or more show flakiness.")] = 2,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Worker processes.")] = 2,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Play the no-op and the gold trajectories; list dead tasks, tasks solved at reset and broken checks, with the record at fault."""
    from rich.console import Console
    from rich.progress import Progress

    from envsched_gnn.eval.audit import audit

    records = load(pool, settings)
    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("episodes", total=None)
        report = audit(
            records, repeats=repeats, workers=workers, progress=lambda done, total: bars.update(bar, completed=done, total=total)
        )
    if json:
        show_json(report.to_dict())
    else:
        show(str(report))
