"""`envsched select` and `envsched explain`: the next batch from a graph and a history, and the reasons for one task.

Knows: the options of both verbs, the columns of SCORES.csv, the form of the JSON.
Does not know: how scores are computed, how a history is replayed.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envsched_gnn.cli.console import Json, cured, say, show, show_json, table
from envsched_gnn.errors import ConfigError
from envsched_gnn.files import without_nan, write_atomic

if TYPE_CHECKING:
    from envsched_gnn.records import Selection
    from envsched_gnn.schedule.envsched import EnvSched

SCORES = (
    "weight_long",
    "variance_long",
    "mean_long",
    "dispersion_long",
    "predicted_variance",
    "informativeness",
    "coverage_score",
    "exploitation_score",
    "num_selections",
)
COLUMNS = ("env_id", "task_id", *SCORES, "phase", "rank", "p_informative")
"""Of SCORES.csv."""


MAX_SHOWN = 5
"""Problems of a history that are printed."""
MAX_STEP = 2**53
"""The step after the last one that a history may hold."""


class Preset(StrEnum):
    """How relation estimates become a score."""

    paper = "paper"
    default = "default"


class Predictor(StrEnum):
    """Who predicts."""

    heuristic = "heuristic"
    learned = "learned"
    ensemble = "ensemble"


GraphFile = Annotated[Path, typer.Argument(metavar="GRAPH.pt", help="A graph written by `graph build`.")]
HistoryFile = Annotated[Path | None, typer.Option("--history", metavar="ROLLOUTS.jsonl", help="Rollouts so far, one group a line.")]
PresetOption = Annotated[Preset, typer.Option("--preset", help="How relation estimates become a score.")]
PredictorOption = Annotated[
    Predictor, typer.Option("--predictor", help="The preset's own predictor, or one that learns from the history as it replays.")
]
Weights = Annotated[Path | None, typer.Option("--weights", metavar="FILE", help="Of `envsched fit`, to start a learned predictor from.")]
Step = Annotated[
    int | None, typer.Option("--step", min=0, max=MAX_STEP, help="The step to select for; default: the one after the last in the history.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Tasks to pick.")]
Seed = Annotated[int, typer.Option("--seed", help="Of ties and the first batch.")]


@cured
def select(
    graph: GraphFile,
    history: HistoryFile = None,
    preset: PresetOption = Preset.paper,
    predictor: PredictorOption = Predictor.heuristic,
    weights: Weights = None,
    step: Step = None,
    batch_size: BatchSize = 64,
    seed: Seed = 0,
    scores: Annotated[Path | None, typer.Option("--scores", metavar="SCORES.csv", help="Also write the scores of every task.")] = None,
    json: Json = False,
) -> None:
    """Pick the next batch: which tasks to roll out at this step."""
    scheduler, at = _replayed(graph, history, preset, (predictor, weights), step, batch_size, seed)
    columns = {name: values.tolist() for name, values in scheduler.scores(at).items()} if scores else {}
    selection = scheduler.select(at)
    if scores:
        _write_scores(scores, scheduler, columns, selection)
    if json:
        show_json(_as_json(selection, preset.value))
        return
    rows = [
        (str(p.rank), p.phase, p.key, f"{p.score:.4f}", f"{p.predicted_variance:.4f}", f"{p.p_informative:.3f}") for p in selection.picks
    ]
    show(table(("rank", "phase", "task", "score", "variance", "P(informative)"), rows))
    for relaxation in selection.relaxations:
        say(f"relaxed the quota {relaxation.quota} for {relaxation.env_id}/{relaxation.task_id}")


@cured
def explain(
    graph: GraphFile,
    task: Annotated[str, typer.Option("--task", metavar="ENV/TASK", help="The task to explain.")],
    history: HistoryFile = None,
    preset: PresetOption = Preset.paper,
    predictor: PredictorOption = Predictor.heuristic,
    weights: Weights = None,
    step: Step = None,
    batch_size: BatchSize = 64,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Why a task has the score it has: its own history, its neighbours in each relation, the quotas that apply."""
    scheduler, at = _replayed(graph, history, preset, (predictor, weights), step, batch_size, seed)
    explanation = scheduler.explain(task, at)
    if json:
        show_json(without_nan(explanation.to_dict()))
    else:
        show(str(explanation))


def _replayed(
    graph: Path,
    history: Path | None,
    preset: Preset,
    prediction: tuple[Predictor, Path | None],
    step: int | None,
    batch_size: int,
    seed: int,
) -> tuple[EnvSched, int]:
    """A scheduler that has seen the history up to the step, and the step."""
    from envsched_gnn.config import PredictConfig
    from envsched_gnn.graph.io import load_graph
    from envsched_gnn.models.make import predictor_of
    from envsched_gnn.schedule.envsched import EnvSched
    from envsched_gnn.schedule.replay import next_step, read_history, replay

    groups = read_history(history) if history is not None else []
    loaded = load_graph(graph)
    at = next_step(groups) if step is None else step
    predict = PredictConfig(preset=preset.value, predictor=prediction[0].value, weights=str(prediction[1] or ""))
    scheduler = EnvSched(None, loaded, batch_size=batch_size, seed=seed, predict=predict, predictor=predictor_of)
    with _collected() as problems:
        report = replay(scheduler, groups, at)
    if report.unknown:
        say(f"warning: {report.unknown:,} lines of {history} are of tasks that are not in {graph}, first {report.example}; left out")
    if report.repeated:
        say(f"warning: {report.repeated:,} lines of {history} repeat a group of an earlier line (group id, step and task); left out")
    if report.shared:
        say(
            f"warning: {report.shared:,} lines of {history} share a group id with a line of another step or task, first "
            f"{report.shared_example!r}; used as groups of their own. Give every group an id of its own, or none."
        )
    for problem in problems[:MAX_SHOWN]:
        say(f"warning: {problem}")
    if len(problems) > MAX_SHOWN:
        say(f"warning: {len(problems) - MAX_SHOWN:,} more problems of this kind in {history}")
    return scheduler, at


@contextmanager
def _collected() -> Iterator[list[str]]:
    """All warnings of the package while the block runs, in order; they are not logged."""
    logger, messages = logging.getLogger("envsched_gnn"), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.propagate, level = before
        logger.setLevel(level)


def _write_scores(path: Path, scheduler: EnvSched, columns: dict[str, list[float]], selection: Selection) -> None:
    """A row a task, in pool order; 17 digits, enough to restore every bit."""
    picked = {pick.key: pick for pick in selection.picks}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row, (env_id, task_id) in enumerate(_identities(scheduler)):
        pick = picked.get(f"{env_id}/{task_id}")
        numbers = [_digits(columns[name][row]) for name in SCORES]
        chosen = (pick.phase, pick.rank) if pick else ("", "")
        writer.writerow((env_id, task_id, *numbers, *chosen, _digits(columns["p_informative"][row])))
    try:
        write_atomic(path, text.getvalue().encode("utf-8", "surrogatepass"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). Give a path in a folder that you may write to.") from None


def _identities(scheduler: EnvSched) -> list[tuple[str, str]]:
    graph = scheduler.graph
    return [(graph.env_ids[env], task) for env, task in zip(graph["task"].home_index.tolist(), graph.task_ids, strict=True)]


def _digits(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.17g}"


def _as_json(selection: Selection, preset: str) -> dict[str, Any]:
    return {
        "step": selection.step,
        "preset": preset,
        "picks": [
            {"rank": p.rank, "env_id": p.env_id, "task_id": p.task_id, "group_id": p.group_id, "phase": p.phase, "score": p.score}
            for p in selection.picks
        ],
        "relaxations": [{"quota": r.quota, "env_id": r.env_id, "task_id": r.task_id} for r in selection.relaxations],
    }
