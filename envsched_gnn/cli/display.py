"""How `run` and `train` show a run while it goes: lines in a log, bars on a terminal; always on stderr.

Knows: which figures of a round and of an evaluation one watches, how time left is told.
Does not know: rounds, folders, where the figures come from.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from envsched_gnn.cli.console import printable, say

Line = dict[str, Any]

FIGURES = (
    ("reward", "reward_mean", 2),
    ("variance", "variance_mean", 3),
    ("without variance", "zero_variance_share", 2),
    ("environments", "environments", 0),
    ("rank correlation", "envsched/round/rank_correlation", 2),
)
"""Label, name in metrics.jsonl and digits of what one watches."""


def display(steps: int) -> Plain:
    """What fits stderr."""
    return Live(steps) if sys.stderr.isatty() else Plain(steps)


def figures(line: Line) -> str:
    """The figures of a round, `-` where there is none: uniform selection predicts nothing."""
    return "  ".join(f"{label} {_number(line.get(name), digits)}" for label, name, digits in FIGURES)


def seconds(line: Line) -> str:
    """Seconds by stage, of those that take at least a twentieth of the round, the longest first; empty without any."""
    found = {name.removeprefix("seconds_"): value for name, value in line.items() if name.startswith("seconds_") and value}
    total = sum(found.values())
    stages = sorted((stage for stage in found if found[stage] >= total / 20), key=lambda stage: -found[stage])
    return f"{total:.1f} s: " + ", ".join(f"{stage} {found[stage]:.1f}" for stage in stages) if stages else ""


def evaluation(line: Line) -> str:
    """Mean reward of an evaluation, on held-out tasks and on held-out environments, as far as there are such."""
    parts = [
        f"{label} {_number(line[part]['reward'], 3)} ({line[part]['tasks']} tasks)"
        for label, part in (("held-out tasks", "held_out_tasks"), ("held-out environments", "held_out_environments"))
        if line[part]["tasks"]
    ]
    return f"evaluation after {line['step']} rounds: reward on " + ", ".join(parts) + f", {line['seconds']:.1f} s"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


class Plain:
    """A line a round, for logs."""

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

    def round(self, line: Line) -> None:
        """A round has finished."""
        say("  ".join(filter(None, (f"step {line['step'] + 1}/{self.steps}", figures(line), seconds(line), self.left(line["step"])))))

    def evaluated(self, line: Line) -> None:
        """An evaluation has finished."""
        say(evaluation(line))

    def left(self, step: int) -> str:
        """Time left at the pace of this process so far, evaluations included; empty after its first round."""
        if self.first is None:
            self.first = step
            self.begin = time.monotonic()
            return ""
        left = (time.monotonic() - self.begin) / max(step - self.first, 1) * (self.steps - step - 1)
        hours, rest = divmod(int(left), 3600)
        return (f"{hours}:{rest // 60:02d}" if hours else f"{rest // 60}") + f":{rest % 60:02d} left"


class Live(Plain):
    """A bar for the rounds, one for the groups of the round, and below them the last round's and the last evaluation's figures."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        from rich.console import Console, Group
        from rich.live import Live as Screen
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.text import Text

        columns = (
            TextColumn("{task.description:8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self.bars = Progress(*columns)
        self.rounds = self.bars.add_task("steps", total=steps, note="starting")
        self.groups = self.bars.add_task("groups", total=None, note="")
        self.lines = [Text(), Text(), Text()]
        self.screen = Screen(Group(self.bars, *self.lines), console=Console(stderr=True), refresh_per_second=4)

    def __enter__(self) -> Live:
        self.screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.screen.stop()

    def stage(self, text: str) -> None:
        """A stage has begun; a warning stays on the screen."""
        if text.startswith("warning:"):
            self.screen.console.print(printable(text), markup=False)
        else:
            self.bars.update(self.rounds, note=printable(text))

    def group(self, done: int, total: int) -> None:
        """A group has finished."""
        self.bars.update(self.groups, completed=done, total=total)

    def round(self, line: Line) -> None:
        """A round has finished."""
        self.bars.update(self.rounds, completed=line["step"] + 1, note=self.left(line["step"]))
        self.lines[0].plain, self.lines[1].plain = figures(line), seconds(line)

    def evaluated(self, line: Line) -> None:
        """An evaluation has finished."""
        self.lines[2].plain = evaluation(line)
