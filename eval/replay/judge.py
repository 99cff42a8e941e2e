"""The replay itself: at each step predict from what was known before it, then learn what it showed.

Knows: the order of predicting and learning, the same for every predictor and for a scheduler in a run.
Does not know: how a predictor works, what makes a prediction good.

A ledger does not say when a group reported: groups of a step count as known from the next step on. The first step with an observed group
only teaches, since before it nothing tells two tasks apart.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from envsched_gnn.eval.replay.predictors import predictor_of
from envsched_gnn.eval.replay.recorded import Recorded
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import History, informative
from envsched_gnn.schedule.envsched import MIN_INFORMATIVE_HALF_LIFE

TARGETS = ("variance", "informative")
"""What is predicted of a group: its variance v, and z = 1 where v > v_floor, else 0."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Every judged group, by step: what came, and what each predictor had said."""

    step: np.ndarray
    """[groups]."""
    realised: dict[str, np.ndarray]
    """By target [groups]."""
    predicted: dict[tuple[str, str], np.ndarray]
    """By target and predictor [groups]."""


@torch.no_grad()
def judge(recorded: Recorded, names: Sequence[str]) -> Judgement:
    """Replay a ledger once for all predictors: they share history and neighbours, and see the same groups."""
    graph, v_floor = copy.copy(recorded.graph), recorded.config.predict.v_floor
    history, neighbors = history_of(recorded), Neighbors(graph)
    predictors = {name: predictor_of(name, neighbors, v_floor, recorded) for name in names}
    said: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    steps, counts = torch.unique_consecutive(recorded.steps, return_counts=True)
    end = 0
    for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
        at = slice(end, end := end + count)
        tasks, groups = recorded.tasks[at], recorded.statistics.at(at)
        evidence = history.evidence(step)
        neighbors.fill(graph)
        for name, predictor in predictors.items():
            before = predictor.predict(graph, evidence, step).at(tasks)
            predictor.update(step, groups, before)
            said[name].append(torch.stack([before.predicted_variance, before.p_informative]))
        history.add(tasks, recorded.steps[at], groups.variance, groups.mean, groups.dispersion)
        neighbors.insert(tasks)
    first = int(counts[0]) if len(counts) else 0
    variance = recorded.statistics.variance[first:]
    return Judgement(
        step=recorded.steps[first:].numpy(),
        realised={"variance": variance.numpy(), "informative": informative(variance, v_floor).double().numpy()},
        predicted={
            (target, name): torch.cat([torch.empty(2, 0), *parts[1:]], 1)[row].double().numpy()
            for name, parts in said.items()
            for row, target in enumerate(TARGETS)
        },
    )


def history_of(recorded: Recorded) -> History:
    """As a scheduler keeps it; B is the mean number of groups a step."""
    predict, tasks = recorded.config.predict, recorded.graph["task"].env_index.numel()
    batch = max(len(recorded.steps) / max(len(torch.unique(recorded.steps)), 1), 1.0)
    return History(
        tasks,
        half_life_long=predict.half_life_long,
        half_life_short=predict.half_life_short,
        half_life_informative=max(MIN_INFORMATIVE_HALF_LIFE, 5 * tasks / batch),
        v_floor=predict.v_floor,
    )
