"""`envsched train`: GRPO on a pool, its tasks chosen by a scheduler.

Knows: the options of the verb.
Does not know: trainers, rounds, evaluation, how progress is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envsched_gnn.cli.console import Settings, cured
from envsched_gnn.cli.display import Plain
from envsched_gnn.cli.run import ConfigFile, Select, chosen, follow

if TYPE_CHECKING:
    from envsched_gnn.config import Config


@cured
def train(config: ConfigFile, select: Select = None, settings: Settings = None) -> None:
    """Train a policy on the tasks that the scheduler selects, evaluate it on held-out ones, then write the report.

    The same command resumes a run that was stopped. Ctrl-C ends it after the round it is in; a second one ends it at once.
    """

    def play(parsed: Config, given: str, progress: Plain) -> Path | None:
        """What `follow` does with the settings; imported late, since it needs torch."""
        from envsched_gnn.train.session import train as train_rounds

        return train_rounds(parsed, given=given, progress=progress)

    follow("train", config, chosen(settings, select), play)
