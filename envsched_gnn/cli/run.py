"""`envsched run` and `envsched report`, and what `run` and `train` share: progress, the report at the end, Ctrl-C.

Knows: the options of both verbs, what Ctrl-C does.
Does not know: the rounds of a run, how its progress is shown, what a report holds.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envsched_gnn.cli.console import Settings, cured, say, show, show_json
from envsched_gnn.cli.display import Plain, display
from envsched_gnn.policy_facts import NAMES, unknown

if TYPE_CHECKING:
    from envsched_gnn.config import Config

STOPPED = 130
"""Exit code after Ctrl-C."""

ConfigFile = Annotated[Path, typer.Option("-c", "--config", metavar="CONFIG.toml", help="Settings of the run.")]


def known(name: str | None) -> str | None:
    """The name of a policy.

    Raises:
        BadParameter: there is none of that name; says the nearest one.
    """
    if name is not None and name not in NAMES:
        raise typer.BadParameter(str(unknown(name)))
    return name


POLICY = "The scheduler, in place of run.policy: envsched, paper, uniform, or another one that compare --list names."
Select = Annotated[str | None, typer.Option("--select", metavar="POLICY", callback=known, help=POLICY)]


@cured
def run(config: ConfigFile, select: Select = None, settings: Settings = None) -> None:
    """Select, roll out and observe, round by round; then write the report. The same command resumes a run that was stopped."""

    def play(parsed: Config, given: str, progress: Plain) -> Path:
        """What `follow` does with the settings; imported late, since it needs torch."""
        from envsched_gnn.train.run import run as run_rounds

        return run_rounds(parsed, given=given, progress=progress)

    follow("run", config, chosen(settings, select), play)


def chosen(settings: Sequence[str] | None, select: str | None) -> list[str]:
    """All settings of the command line."""
    return [*(settings or []), *([f"run.policy={select}"] if select else [])]


def follow(verb: str, config: Path, settings: Sequence[str], play: Callable[[Config, str, Plain], Path | None]) -> None:
    """Read the settings, play the run under a display, write its report and print where it lies; tell how to resume after Ctrl-C.

    Args:
        play: runs all rounds and returns the run folder; None where another process writes the report.
    """
    from envsched_gnn.config import load_config

    parsed = load_config(config, settings)
    given = config.read_text(encoding="utf-8") + "".join(f"# -s {_one_line(setting)}\n" for setting in settings)
    try:
        with display(parsed.run.steps) as progress:
            folder = play(parsed, given, progress)
            if folder is None:
                return
            from envsched_gnn.eval.report import write_report

            progress.stage("writing the report")
            path = write_report(folder)
        show(str(path))
    except KeyboardInterrupt:
        again = shlex.join(["envsched", verb, "-c", str(config), *(part for setting in settings for part in ("-s", setting))])
        say(f"stopped; everything finished is kept. To resume: {again}")
        raise typer.Exit(STOPPED) from None


@cured
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    json: Annotated[bool, typer.Option("--json", help="Print the run's figures as JSON; write nothing.")] = False,
) -> None:
    """Write the report of a run, also of one that is going or was killed."""
    if json:
        from envsched_gnn.eval.report import summary

        show_json(summary(run))
        return
    from envsched_gnn.eval.report import write_report

    show(str(write_report(run)))


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
