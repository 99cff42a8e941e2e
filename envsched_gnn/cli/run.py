"""`envsched run` and `envsched report`.

Knows: the options of both verbs, how a run's progress is shown, what Ctrl-C does.
Does not know: the run loop, what a report holds.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from envsched_gnn.cli.console import Settings, cured, say, show, show_json

STOPPED = 130
"""Exit code after Ctrl-C."""

ConfigFile = Annotated[Path, typer.Option("-c", "--config", metavar="CONFIG.toml", help="Settings of the run.")]


@cured
def run(config: ConfigFile, settings: Settings = None) -> None:
    """Select, roll out and observe, round by round; then write the report. The same command resumes a run that was stopped."""
    from envsched_gnn.config import load_config

    overrides = settings or []
    parsed = load_config(config, overrides)
    given = config.read_text(encoding="utf-8") + "".join(f"# -s {override}\n" for override in map(_one_line, overrides))
    display = _display(parsed.run.steps)
    try:
        from envsched_gnn.eval.report import write_report
        from envsched_gnn.train.run import run as run_rounds

        with display:
            folder = run_rounds(parsed, given=given, progress=display)
            display.stage("writing the report")
        show(str(write_report(folder)))
    except KeyboardInterrupt:
        again = shlex.join(["envsched", "run", "-c", str(config), *(part for override in overrides for part in ("-s", override))])
        say(f"stopped; every finished rollout is kept. To resume: {again}")
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


def _display(steps: int) -> Any:
    return Live(steps) if sys.stderr.isatty() else Plain(steps)


class Plain:
    """A line a round on stderr, for logs."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.begin = time.monotonic()
        self.first: int | None = None

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stage(self, text: str) -> None:
        """A stage has begun."""
        say(text)

    def group(self, done: int, total: int) -> None:
        """Lines are for rounds only."""

    def round(self, line: dict[str, Any]) -> None:
        """A round has finished."""
        say(f"step {line['step'] + 1}/{self.steps}  {describe(line)}  {self.left(line['step'])}")

    def left(self, step: int) -> str:
        """Time left at the pace of this process so far."""
        if self.first is None:
            self.first = step
            self.begin = time.monotonic()
            return ""
        seconds = (time.monotonic() - self.begin) / (step - self.first) * (self.steps - step - 1)
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"


def describe(line: dict[str, Any]) -> str:
    """The figures of a round that one watches."""

    def number(name: str, digits: int) -> str:
        return "-" if line[name] is None else f"{line[name]:.{digits}f}"

    return (
        f"reward {number('reward_median', 2)}  variance {number('variance_mean', 3)}  without variance {number('zero_variance_share', 2)}  "
        f"environments {line['environments']}"
    )


class Live(Plain):
    """A bar for the rounds, one for the groups of the round, and the last round's figures, on a terminal."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description:8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self.bars = Progress(*columns, console=console, transient=False)
        self.rounds = self.bars.add_task("steps", total=steps, note="starting")
        self.groups = self.bars.add_task("groups", total=None, note="")

    def __enter__(self) -> Live:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def stage(self, text: str) -> None:
        """A stage has begun."""
        self.bars.update(self.rounds, note=text)

    def group(self, done: int, total: int) -> None:
        """A group has finished."""
        self.bars.update(self.groups, completed=done, total=total)

    def round(self, line: dict[str, Any]) -> None:
        """A round has finished."""
        self.bars.update(self.rounds, completed=line["step"] + 1, note=f"{describe(line)}  {self.left(line['step'])}")
