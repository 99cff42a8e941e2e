"""`envsched fit`: weights of the learned predictor from finished runs, and how they do where they were not trained.

Knows: the replay that gathers what each group was predicted from, both splits, the figures.
Does not know: the network, ledgers, the form of a file of weights.

A split leaves the last third of every ledger's steps out, or a fifth of all environments; weights are fitted on the rest and judged on what
was left out, beside the mixture that they correct. What is written is fitted on everything.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envsched_gnn.config import PredictConfig
from envsched_gnn.errors import HistoryError, message
from envsched_gnn.eval.metrics import bins
from envsched_gnn.eval.replay.judge import history_of
from envsched_gnn.eval.replay.recorded import Recorded
from envsched_gnn.eval.replay.score import Predicted, figure, sums_by_step
from envsched_gnn.files import without_nan
from envsched_gnn.graph.build import identities
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import informative
from envsched_gnn.models.learner import BATCH, MIN_GROUPS, Learner
from envsched_gnn.models.memory import Groups, groups_of
from envsched_gnn.models.network import corrected
from envsched_gnn.models.predictor import LearnedPredictor
from envsched_gnn.models.weights import description, save_weights
from envsched_gnn.predict.mixture import CLIP

Split = Literal["time", "environment"]
EPOCHS = 10
"""Times that every group is seen (ours)."""
LATE = 1 / 3
"""Share of a ledger's steps that split `time` leaves out (ours)."""
FIFTHS = 5
"""Split `environment` leaves one environment in so many out, by its name alone (ours)."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The groups of some ledgers, each with what it was predicted from."""

    groups: Groups
    mixture: Float[Tensor, " groups"]
    """p that the mixture had said."""
    step: np.ndarray
    """[groups]: numbers that ascend from ledger to ledger, so that steps of two ledgers are never taken for one."""
    late: Bool[Tensor, " groups"]
    """In the last third of its ledger's steps."""
    aside: Bool[Tensor, " groups"]
    """Of an environment that split `environment` leaves out."""


def fit(ledgers: Sequence[Recorded], out: Path, split: Split = "time", seed: int = 0) -> dict[str, Any]:
    """Fit weights on all ledgers, write them to `out`, and say how weights fitted on a part do on the rest.

    Raises:
        HistoryError: ledgers of graphs with unlike inputs, or fewer than MIN_GROUPS groups, in all or in the part to fit on.
        CheckpointError: `out` cannot be written.
    """
    _check_inputs(ledgers)
    gathered = joined([gather(recorded) for recorded in ledgers])
    left_out = gathered.late if split == "time" else gathered.aside
    graph, n = ledgers[0].graph, len(left_out)
    _require_enough(ledgers, int((~left_out).sum()), split)
    judged = _judged(gathered, left_out, _fitted(ledgers[0], gathered.groups.at((~left_out).nonzero().flatten()), seed))
    weights = _fitted(ledgers[0], gathered.groups, seed).weights()
    names = [{"ledger": recorded.name, "policy": recorded.policy, "groups": len(recorded.steps)} for recorded in ledgers]
    save_weights(weights, graph, out, {"ledgers": [entry["ledger"] for entry in names], "pool_hash": graph.pool_hash, "groups": n})
    inputs = {"content": description(graph)["content"]}
    split_says = {"split": split, "fitted_on": n - int(left_out.sum()), "judged_on": int(left_out.sum()), **judged}
    result: dict[str, Any] = without_nan({"out": str(out), "ledgers": names, "groups": n, **inputs, **split_says})
    return result


@torch.no_grad()
def gather(recorded: Recorded) -> Gathered:
    """Replay a ledger: at each step what was known before it, then what it showed; nothing is learned but the mixture's weights."""
    graph, config = copy.copy(recorded.graph), PredictConfig(v_floor=recorded.config.predict.v_floor, learn_every=0)
    history, neighbors = history_of(recorded), Neighbors(graph)
    predictor = LearnedPredictor(neighbors, Learner(graph.within_k, graph.cross_k), config)
    found, said = list[Groups](), list[Tensor]()
    steps, number, counts = torch.unique_consecutive(recorded.steps, return_inverse=True, return_counts=True)
    end = 0
    for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
        at = slice(end, end := end + count)
        tasks, groups = recorded.tasks[at], recorded.statistics.at(at)
        before = predictor.predict(graph, history.evidence(step), step).at(tasks)
        predictor.heuristic.update(step, groups, before)
        found.append(groups_of(before.parts, informative(groups.variance, config.v_floor), groups.variance, groups.mean))
        said.append(before.parts["mixture_p"])
        history.add(tasks, recorded.steps[at], groups.variance, groups.mean, groups.dispersion)
        neighbors.insert(tasks)
    aside = identities(graph.env_ids).remainder(FIFTHS) == 0
    return Gathered(
        groups=_joined(found),
        mixture=torch.cat(said),
        step=number.numpy(),
        late=number >= round(len(steps) * (1 - LATE)),
        aside=aside[graph["task"].env_index[recorded.tasks]],
    )


def joined(parts: Sequence[Gathered]) -> Gathered:
    """Several ledgers as one."""
    first = np.cumsum([0, *(part.step.max() + 1 for part in parts[:-1])])
    return Gathered(
        groups=_joined([part.groups for part in parts]),
        mixture=torch.cat([part.mixture for part in parts]),
        step=np.concatenate([part.step + start for part, start in zip(parts, first, strict=True)]),
        late=torch.cat([part.late for part in parts]),
        aside=torch.cat([part.aside for part in parts]),
    )


def _joined(groups: Sequence[Groups]) -> Groups:
    return Groups(**{name: torch.cat([part.tensors()[name] for part in groups]) for name in groups[0].tensors()})


def _fitted(recorded: Recorded, groups: Groups, seed: int) -> Learner:
    """A new network, fitted on all of these groups."""
    n = len(groups.nodes)
    learner = Learner(recorded.graph.within_k, recorded.graph.cross_k, seed=seed, capacity=n)
    learner.add(groups)
    learner.learn(-(-EPOCHS * n // BATCH))
    return learner


@torch.no_grad()
def _judged(gathered: Gathered, left_out: Tensor, learner: Learner) -> dict[str, dict[str, float]]:
    """Figures of the mixture and of the fitted network on the groups that it was not fitted on."""
    rows = left_out.nonzero().flatten()
    groups = gathered.groups.at(rows)
    r = learner.gate * learner.network(groups.nodes, groups.neighborhood(learner.within_k))[:, 0].double()
    mixture, z, step = gathered.mixture[rows], groups.outcome[:, 0].double(), gathered.step[rows.numpy()]
    order = np.argsort(step, kind="stable")
    return {name: _figures(p[order], z[order], step[order]) for name, p in (("mixture", mixture), ("learned", corrected(mixture, r)))}


def _figures(p: Tensor, z: Tensor, step: np.ndarray) -> dict[str, float]:
    """Mean log-likelihood of z, Spearman within steps, and the mean distance of p from what came, over bins of p."""
    clipped, said, came = p.clamp(*CLIP), p.numpy(), z.numpy()
    sums = sums_by_step(Predicted(step=step, predicted=said, realised=came, informative=came)) if len(step) else np.zeros((1, 8))
    error = sum(entry.size * abs(entry.predicted - entry.realised) for entry in bins(said, came)) / max(len(step), 1)
    loglik = float((z * clipped.log() + (1 - z) * (1 - clipped).log()).mean())
    return {"log_likelihood": loglik, "spearman": float(figure("spearman", sums.sum(0))), "calibration_error": error}


def _check_inputs(ledgers: Sequence[Recorded]) -> None:
    """Refuse ledgers whose graphs mean different things by the same column."""
    first = ledgers[0]
    for other in ledgers[1:]:
        ours, theirs = ((description(r.graph), r.graph.within_k, r.graph.cross_k) for r in (first, other))
        if ours != theirs:
            a, b = (f"{inputs['content']}, {within} + {cross} neighbours" for inputs, within, cross in (ours, theirs))
            cure = "Fit each alone, or build both graphs with the same --embedding and the same numbers of neighbours."
            raise HistoryError(f"{other.path}: a ledger of a graph with {b}, beside {first.path} of one with {a}. {cure}")


def _require_enough(ledgers: Sequence[Recorded], fitted: int, split: Split) -> None:
    total = sum(len(recorded.steps) for recorded in ledgers)
    if min(total, fitted) < MIN_GROUPS:
        where = ", ".join(str(recorded.path) for recorded in ledgers)
        found = f"{total} observed groups, {fitted} of them to fit on with --split {split}"
        cure = "Let the run go on, or add ledgers. Without weights a learned predictor is the mixture, until it has seen as many."
        raise HistoryError(message(where, found, f"at least {MIN_GROUPS}", cure))
