"""`envsched compare`: policies side by side. `--list` says which there are.

Knows: the options of the verb, how the lists and the result are shown.
Does not know: policies, runs, figures.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from envsched_gnn.cli.console import Json, Settings, cured, say, show, show_json, table
from envsched_gnn.cli.run import STOPPED


class In(StrEnum):
    """What plays the rollouts."""

    simulate = "simulate"
    run = "run"
    train = "train"


@cured
def compare(
    config: Annotated[Path | None, typer.Option("-c", "--config", metavar="CONFIG.toml", help="Settings of all runs.")] = None,
    where: Annotated[
        In, typer.Option("--in", help="A simulated learner; in real environments the scripted policy, or the pocket model.")
    ] = In.simulate,
    policies: Annotated[
        str | None, typer.Option("--policies", metavar="NAMES", help="Names with commas between them, as uniform,envsched,paper:rho_0.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="SEEDS", help="As 0-4 or 0,2,7.")] = "0-4",
    processes: Annotated[int | None, typer.Option("--processes", min=1, help="Runs at once; default: one a core.")] = None,
    folder: Annotated[Path | None, typer.Option("--folder", metavar="DIR", help="Of the runs; default: runs/compare-WHERE.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE.json", help="The result, its figure beside it; default: in the folder.")
    ] = None,
    settings: Settings = None,
    joined: Annotated[
        list[Path] | None, typer.Option("--join", metavar="FILE.json", help="Join results that were made apart; once for each of them.")
    ] = None,
    list_policies: Annotated[
        bool, typer.Option("--list", help="Name the policies and variants, and what there is to know of each.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare policies: uniform, EnvSched, the oracle, the peers, and variants; the same worlds, starts and budgets for all.

    The same command goes on where it was stopped; runs that are finished are not made again.
    """
    if list_policies:
        _list(json)
        return
    if joined:
        _join(joined, policies, out, json)
        return
    if policies is None:
        raise typer.BadParameter("nothing to do; expected --policies uniform,envsched,..., --join or --list.")
    from envsched_gnn.config import load_config
    from envsched_gnn.eval.compare.variants import entries_of, seeds_of

    entries_of(policies)  # mistakes are told before torch is loaded
    seeds_of(seeds)
    chosen = [*([] if config else ["run.steps=200"]), *(settings or [])]
    load_config(config, chosen)
    from envsched_gnn.eval.compare.compare import compare as compared

    folder = folder or Path("runs") / f"compare-{where.value}"
    try:
        result = compared(
            where.value,
            policies,
            seeds,
            folder=folder,
            out=out or folder / "compare.json",
            config=config,
            settings=chosen,
            processes=processes or os.cpu_count() or 1,
            command=_command(),
            tell=say,
        )
    except KeyboardInterrupt:
        say("stopped; what is finished is kept. To go on, give the same command again.")
        raise typer.Exit(STOPPED) from None
    _show(result, json)


def _join(paths: list[Path], policies: str | None, out: Path | None, json: bool) -> None:
    if policies is not None or out is None:
        raise typer.BadParameter("--join makes no runs; expected it with -o FILE.json, and without --policies.")
    from envsched_gnn.eval.compare.compare import join

    _show(join(paths, out=out, command=_command()), json)


def _command() -> str:
    return shlex.join(["envsched", *sys.argv[1:]])


def _show(result: dict[str, Any], json: bool) -> None:
    from envsched_gnn.eval.compare import words

    if json:
        show_json(result)
        return
    for line in (*words.head(result), table(words.HEAD, [words.cells(row) for row in result["summary"]]), *words.foot(result)):
        show(line)


def _list(json: bool) -> None:
    from envsched_gnn.eval.compare.variants import VARIANTS
    from envsched_gnn.policy_facts import FACTS

    if json:
        show_json([asdict(facts) for facts in FACTS])
        return
    for facts in FACTS:
        show(f"{facts.name}: {facts.does}")
        show(f"    environments: {facts.environments}")
        show(f"    shares evidence: {facts.shares}; extra rollouts: {facts.extra_rollouts}")
        show(f"    source: {facts.source}; licence of its code: {facts.licence}")
        show(f"    ours: {facts.ours}")
    show("\nvariants, written as paper:within_only:")
    for variant in VARIANTS:
        show(f"    {variant.name}: {variant.asks} (of {' and '.join(variant.of)})")
