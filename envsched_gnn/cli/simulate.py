"""`envsched simulate`: a scheduler and a simulated learner, round by round.

Knows: the options of the verb, how its result is printed.
Does not know: the model, rounds, figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from envsched_gnn.cli.console import Json, Settings, cured, say, show, show_json, table
from envsched_gnn.cli.display import display
from envsched_gnn.cli.run import POLICY, STOPPED, known

COLUMNS = (
    ("rounds", "rounds", 0),
    ("informative groups", "informative", 3),
    ("variance", "variance", 4),
    ("environments", "environments", 1),
    ("success, live", "success_live", 3),
    ("success, held out", "success_held_out", 3),
    ("Spearman", "spearman", 3),
)
"""Head, name in the summary and digits of a column."""


@cured
def simulate(
    config: Annotated[Path | None, typer.Option("-c", "--config", metavar="CONFIG.toml", help="Settings of the run.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", metavar="POLICY", callback=known, help=POLICY)] = None,
    environments: Annotated[int | None, typer.Option("--environments", help="In place of simulate.environments.")] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", help="Tasks an environment, in place of simulate.tasks.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Rounds, in place of run.steps; 200 without a file.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="In place of simulate.seed and run.seed.")] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Simulate a run: a model of a learner on a pool of any size, to compare schedulers; never the only evidence for a claim.

    Writes a run folder, which `report` reads, and prints a table by thirds of the run. The same command resumes a run that was stopped.
    """
    from envsched_gnn.config import Config, load_config

    chosen = {"run.policy": policy, "simulate.environments": environments, "simulate.tasks": tasks, "run.steps": steps}
    chosen |= {"simulate.seed": seed, "run.seed": seed}
    given = [f"{key}={value}" for key, value in chosen.items() if value is not None]
    overrides = [*([] if config else ["run.steps=200"]), *(settings or []), *given]
    parsed = load_config(config, overrides)
    if parsed.run.name == Config().run.name:
        parsed = load_config(config, [*overrides, f"run.name={_name(parsed)}"])
    text = (config.read_text(encoding="utf-8") if config else "") + "".join(f"# -s {setting}\n" for setting in overrides)
    try:
        with display(parsed.run.steps) as progress:
            from envsched_gnn.eval.simulate.run import simulate as simulate_rounds

            folder = simulate_rounds(parsed, given=text, progress=progress)
    except KeyboardInterrupt:
        say("stopped; everything up to the last checkpoint is kept. To resume, give the same command again.")
        raise typer.Exit(STOPPED) from None
    from envsched_gnn.eval.simulate.summary import summary

    figures = summary(folder)
    if json:
        show_json(figures)
        return
    for line in lines(figures):
        show(line)


def _name(config: Any) -> str:
    """A folder for each policy, size and seed, where none is named."""
    world = config.simulate
    return f"simulate-{config.run.policy}-{world.environments}x{world.tasks}-seed{config.run.seed}"


def lines(figures: dict[str, Any]) -> list[str]:
    """A printed summary."""
    rows = [[_cell(third[name], digits) for _, name, digits in COLUMNS] for third in figures["thirds"]]
    end, pace = figures["end"], figures["seconds_a_step"]
    chance = ", ".join(_cell(third["informative_chance"], 3) for third in figures["thirds"])
    return [
        f"{figures['policy']}, {figures['environments']:,} environments, {figures['tasks']:,} tasks, structure {figures['structure']:g}, "
        f"seed {figures['seed']}: {figures['steps']:,} rounds, {figures['rollouts']:,} rollouts, {figures['tokens']:,} tokens",
        table([head for head, _, _ in COLUMNS], rows),
        f"after the last round: success {_cell(end['success_live'], 3)} on live tasks, {_cell(end['success_held_out'], 3)} held out",
        f"a task drawn at random would have been informative with a chance of {chance}",
        f"{1000 * pace:.0f} ms a round; run folder {figures['folder']}",
        figures["caution"],
    ]


def _cell(value: float | str | None, digits: int) -> str:
    match value:
        case None:
            return "-"
        case str():
            return value
        case _:
            return f"{value:.{digits}f}"
