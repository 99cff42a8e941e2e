"""Preset `default`: experts for P(v > v_floor), weighted by how well they predicted earlier rounds (ours).

Knows: the experts, their log-likelihoods by round, their weights.
Does not know: how priors are propagated, which tasks were chosen.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envsched_gnn.records import Evidence

PRIORS = {
    "level": (1.0, 0.0, 0.0),
    "within": (0.0, 1.0, 0.0),
    "cross": (0.0, 0.0, 1.0),
    "mean": (0.0, 0.5, 0.5),
    "faint_within": (0.75, 0.25, 0.0),
    "faint_cross": (0.75, 0.0, 0.25),
    "faint_mean": (0.75, 0.125, 0.125),
}
"""What an expert falls back on, as shares of the level l and of both relations' estimates. Where neighbours say little, the faint ones keep
the order of tasks that they suggest and are still calibrated; without them the mixture drops the graph altogether (ours)."""
STRENGTHS = (0.5, 1.0, 3.0)
"""c, pseudo-weight of the prior (ours)."""
GRAPH_STRENGTH = 1.0
"""Pseudo-weight of the level in a relation estimate (ours)."""
NEIGHBOUR_STRENGTH = 1.0
"""kappa, variance of z within tasks over that of their chances between tasks: about 1 where half of the tasks are dead (ours)."""
FORGETTING = 0.9
"""A round's log-likelihood is multiplied by this with every later round (ours)."""
POWERS = {"variance": 1.0, "std": 0.5}
"""Of v, in targets other than `informative`."""
MAX_VARIANCE = 0.25
"""Of rewards in [0, 1]."""
CLIP = (0.02, 0.98)
"""Probabilities are clipped to this before their logarithm is taken (ours)."""


def neighbour_weight(weight: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """`(1 + kappa) W / (W + kappa)`: what W groups of a task say about others; 1 for one group, never more than 1 + kappa (ours).

    As in a random-effects mean, whose precision is `1 / (tau^2 + sigma^2 / W)`. With W itself the few tasks that a scheduler comes back to,
    since they vary, outvote all that it saw once, and their neighbours look better than they are.
    """
    return (1 + NEIGHBOUR_STRENGTH) * weight / (weight + NEIGHBOUR_STRENGTH)


def expert_priors(level: Float[Tensor, " n"], within: Float[Tensor, " n"], cross: Float[Tensor, " n"]) -> Float[Tensor, "priors n"]:
    """The priors of PRIORS."""
    a = torch.tensor([*PRIORS.values()], dtype=level.dtype, device=level.device)[:, :, None]
    return a[:, 0] * level + a[:, 1] * within + a[:, 2] * cross


def expert_probabilities(
    priors: Float[Tensor, "priors n"], weight: Float[Tensor, " n"], zbar: Float[Tensor, " n"]
) -> Float[Tensor, "experts n"]:
    """`p_e = (W zbar + c prior) / (W + c)`, experts ordered strength by strength. For the tasks of a round, not a whole pool."""
    c = torch.tensor(STRENGTHS, dtype=priors.dtype, device=priors.device)[:, None, None]
    return ((weight * zbar + c * priors) / (weight + c)).flatten(0, 1)


def shares(weights: Float[Tensor, " experts"]) -> tuple[float, float, float]:
    """Of level, within and cross in the mixed prior."""
    on_prior = weights.view(len(STRENGTHS), len(PRIORS)).sum(0).tolist()
    level, within, cross = (math.fsum(map(operator.mul, on_prior, column)) for column in zip(*PRIORS.values(), strict=True))
    return level, within, cross


def mixed_prior(
    level: float, within: Float[Tensor, " n"], cross: Float[Tensor, " n"], weights: Float[Tensor, " experts"]
) -> Float[Tensor, " n"]:
    """`sum_e weight_e p_e` where W = 0, and every expert answers with its prior: linear in the relation estimates."""
    on_level, on_within, on_cross = shares(weights)
    return (within * on_within).add_(cross, alpha=on_cross).add_(on_level * level)


def shrunk_size(evidence: Evidence) -> Float[Tensor, " n"]:
    """`s = (W zbar size + c level) / (W zbar + c)`: E[v^power | v > v_floor] of a task, shrunk to the level.

    `size` and `level` are means over groups with v > v_floor, of the task and of all; c is GRAPH_STRENGTH. (ours)
    """
    assert evidence.size is not None
    weight = evidence.informative_weight * evidence.informative_estimate
    return (weight * evidence.size + GRAPH_STRENGTH * evidence.size_level) / (weight + GRAPH_STRENGTH)


def expected_size(p: Float[Tensor, " n"], evidence: Evidence, power: float) -> Float[Tensor, " n"]:
    """`p s / 0.25^power`: the expected v^power of the next group, as a share of the largest; p before any variance was seen (ours)."""
    return p * shrunk_size(evidence) / MAX_VARIANCE**power if evidence.size_level else p


def informative_variance(evidence: Evidence) -> float:
    """`E[v | v > floor] = ref_v / share`, both with half-life 8: groups below the floor add next to nothing to ref_v. 0 where that is 0."""
    return float(evidence.reference[0, 0]) / evidence.informative_share if evidence.informative_share > 0 else 0.0


class ExpertWeights:
    """Log-likelihoods of some experts, kept by round, so that a late group counts exactly as if it had been on time."""

    def __init__(self, experts: int = len(PRIORS) * len(STRENGTHS)) -> None:
        self._experts = experts
        self._rounds: dict[int, Tensor] = {}

    def add(self, step: int, probabilities: Float[Tensor, "experts n"], z: Bool[Tensor, " n"] | Float[Tensor, " n"]) -> None:
        """Add `sum_i z_i log p_ei + (1 - z_i) log(1 - p_ei)` of groups of a round, with the probabilities from before the round."""
        if z.numel() == 0:
            return
        p = probabilities.to("cpu", torch.float64).clamp(*CLIP)
        z = z.to("cpu", torch.float64)
        loglik = (z * p.log() + (1 - z) * (1 - p).log()).sum(1)
        self._rounds[step] = self._rounds[step] + loglik if step in self._rounds else loglik

    def weights(self) -> Float[Tensor, " experts"]:
        """softmax(L), `L = sum_s 0.9^(rounds newer than s) loglik_s`; uniform before any round. float64, CPU."""
        total = torch.zeros(self._experts, dtype=torch.float64)
        for step in sorted(self._rounds):
            total = FORGETTING * total + self._rounds[step]
        return torch.softmax(total, 0)

    def state_dict(self) -> dict[str, Any]:
        """Log-likelihoods by step."""
        return {"rounds": {step: loglik.tolist() for step, loglik in self._rounds.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them.

        Raises:
            ValueError: of another number of experts.
        """
        rounds = {int(step): torch.tensor(loglik, dtype=torch.float64) for step, loglik in state["rounds"].items()}
        strange = [len(loglik) for loglik in rounds.values() if len(loglik) != self._experts]
        if strange:
            raise ValueError(f"log-likelihoods of {strange[0]} experts; expected {self._experts}")
        self._rounds = rounds
