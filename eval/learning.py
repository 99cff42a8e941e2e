"""What a report says of learning and of time: evaluations on held-out tasks, rank correlation by step, seconds by stage.

Knows: which of these a run has, and what they say in words.
Does not know: the rest of the page, how figures are drawn, how a policy is evaluated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envsched_gnn.eval import figures
from envsched_gnn.eval.figures import BLUE, GREEN, GREY, ORANGE, RED, VIOLET
from envsched_gnn.eval.metrics import RunRecord
from envsched_gnn.eval.simulate import SOURCE
from envsched_gnn.eval.words import Section, number

PARTS = (("held_out_tasks", "held-out tasks", BLUE), ("held_out_environments", "held-out environments", ORANGE))
CORRELATION = "envsched/round/rank_correlation"
OWN = ("select", "observe", "save")
"""Stages that the scheduler adds; every other one would be there without it."""
NEGLIGIBLE = 0.002
"""Share of the time below which a stage of training is left out: an engine's own stages leave next to nothing of `rollout`."""
COLOURS = (GREY, VIOLET, RED, GREEN, ORANGE, BLUE)


def model(run: RunRecord) -> str:
    """Which policy was trained and how, to stand behind the rounds of a sentence; empty for `envsched run`."""
    if run.evaluations is None:
        return ""
    if simulated(run):
        return " of a simulated learner"
    kind, path = run.config["model"]["kind"], run.config["model"].get("path", "")
    return f" of {run.config['train']['algorithm'].upper()} on {'the pocket model' if kind == 'pocket' else path}"


def simulated(run: RunRecord) -> bool:
    """Whether the run is one of `envsched simulate`."""
    return run.pool["source"] == SOURCE


def evaluated(run: RunRecord) -> list[dict[str, Any]]:
    """Rounds before each evaluation, and the mean reward on each part."""
    lines = run.evaluations or []
    return [{"step": line["step"], "seconds": line["seconds"], **{part: line[part]["reward"] for part, _, _ in PARTS}} for line in lines]


def change_of_evaluations(run: RunRecord) -> list[dict[str, str]]:
    """Cards: reward on each part, at the first evaluation and the last."""
    cards = []
    for part, label, _ in PARTS:
        lines = [line for line in run.evaluations or [] if line[part]["tasks"]]
        if lines:
            ends = [_reward(line, part) for line in (lines[0], lines[-1])][-len(lines) :]
            cards.append({"value": " → ".join(number(value) for value in ends), "label": f"reward on {label}"})
    return cards


def learning_curve(run: RunRecord) -> list[Section]:
    """Reward on held-out tasks and environments by round; nothing for a run without evaluations."""
    if not run.evaluations:
        return []
    steps = np.array([line["step"] for line in run.evaluations])
    curves, sentences = [], []
    for part, label, colour in PARTS:
        values = np.array([_reward(line, part) for line in run.evaluations])
        if np.isfinite(values).any():
            curves.append((label, values, colour))
            sentences.append(_said(run.evaluations, part, label))
    failed = sum(line["all"]["failed"] for line in run.evaluations)
    if failed:
        sentences.append(f"{failed:,} rollouts of evaluations ended without a reward and are left out.")
    svgs = (figures.by_step("learning", steps, curves, label="reward", points=True, width=9.6),) if curves else ()
    return [
        Section(title="Learning curve", caption=" ".join(sentences) or "No rollout of any evaluation got a reward.", svgs=svgs, wide=True)
    ]


def _said(lines: list[dict[str, Any]], part: str, label: str) -> str:
    first, last = lines[0], lines[-1]
    many = f"{last[part]['tasks']:,} {'tasks of ' if part == 'held_out_environments' else ''}{label} x {last['samples']} rollouts"
    if len(lines) == 1:
        return f"Reward on {many} was {number(_reward(last, part))} after {last['step']} rounds."
    return (
        f"Reward on {many} went from {number(_reward(first, part))} after {first['step']} rounds "
        f"to {number(_reward(last, part))} after {last['step']}."
    )


def _reward(line: dict[str, Any], part: str) -> float:
    value = line[part]["reward"]
    return math.nan if value is None else value


def correlation_by_step(run: RunRecord, steps: np.ndarray) -> list[Section]:
    """Rank correlation of predicted and realised variance in each round's batch; nothing where nothing was predicted."""
    values = run.column(CORRELATION)
    if not np.isfinite(values).any():
        return []
    known = values[np.isfinite(values)]
    caption = (
        f"Within a batch, Spearman's correlation was {number(float(known.mean()))} on average over the {len(known)} rounds that have one. "
        "A batch holds what was predicted to vary, a narrow range, so this stays below the correlation over all tasks."
    )
    lines = (("rank correlation", values, VIOLET),)
    svg = figures.by_step("correlation", steps, lines, label="rank correlation", bottom=min(0.0, float(np.nanmin(values))), width=9.6)
    return [Section(title="Rank correlation by step", caption=caption, svgs=(svg,), wide=True)]


def stages(run: RunRecord) -> list[str]:
    """Stages whose seconds were measured, in the order of a round."""
    return [
        name.removeprefix("seconds_") for name in dict.fromkeys(key for line in run.rounds for key in line) if name.startswith("seconds_")
    ]


def seconds_by_stage(run: RunRecord, steps: np.ndarray) -> Section:
    """Seconds of each round: what training takes anyway, and beside it what the scheduler adds."""
    values = {stage: run.column(f"seconds_{stage}") for stage in stages(run)}
    total = {stage: float(np.nansum(column)) for stage, column in values.items()}
    own = [stage for stage in values if stage in OWN]
    other = [stage for stage in values if stage not in OWN and total[stage] >= NEGLIGIBLE * sum(total.values())]
    share = sum(total[stage] for stage in own) / max(sum(total.values()), 1e-9)
    caption = (
        f"Left: {', '.join(f'{stage} {total[stage]:.1f} s' for stage in other)} in all. "
        f"Right: what the scheduler adds, {100 * share:.1f} % of the time, "
        + ", ".join(f"{stage} {1000 * total[stage] / len(steps):.0f} ms" for stage in own)
        + " a round."
    )
    drawn = (("seconds-other", other, COLOURS), ("seconds-own", own, (BLUE, ORANGE, GREEN)))
    svgs = tuple(
        figures.stacked(
            name, steps, [(stage, values[stage], colour) for stage, colour in zip(some, colours, strict=False)], label="seconds"
        )
        for name, some, colours in drawn
    )
    return Section(title="Seconds by stage", caption=caption, svgs=svgs, wide=True)
