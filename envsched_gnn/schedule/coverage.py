"""The two scores of a task before redundancy and quotas: coverage and exploitation.

Knows: the formulas.
Does not know: where exposure, evidence and informativeness come from.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.ops import weighted_gather
from envsched_gnn.records import Evidence, Prediction

PATTERN_STRENGTH = 2.0
"""Evidence at which the pattern term has fallen to one half; the strength of the paper's propagation (ours)."""


def mean_density(n_e: Float[Tensor, " environments"], schedulable: Tensor, batch_size: int, tasks: int) -> Tensor:
    """nbar = mean_e n_e + B / N, over the environments that have a task which is not held out (ours)."""
    return n_e[schedulable].sum() / max(len(schedulable), 1) + batch_size / tasks


def environment_term(n_e: Float[Tensor, " environments"], nbar: Tensor) -> Float[Tensor, " environments"]:
    """1 / (1 + n_e / nbar) (ours)."""
    return 1 / (1 + n_e / nbar)


def task_term(c: Int[Tensor, " tasks"]) -> Float[Tensor, " tasks"]:
    """1 / (1 + c_i) (ours)."""
    return 1 / (1 + c.double())


def pattern_term(evidence: Float[Tensor, " tasks"]) -> Float[Tensor, " tasks"]:
    """2 / (2 + sum_j a_ij), over the cross neighbours, half-life 8 (ours)."""
    return PATTERN_STRENGTH / (PATTERN_STRENGTH + evidence)


def cross_evidence(evidence: Evidence, prediction: Prediction, neighbors: Neighbors) -> Float[Tensor, " tasks"]:
    """sum_j a_ij over the cross neighbours, half-life 8; the heuristic predictor has it at hand."""
    if "cross_weight" in prediction.parts:
        return prediction.parts["cross_weight"]
    lists = neighbors.lists("cross")
    table = evidence.weight[0][neighbors.observed][:, None].contiguous()
    return weighted_gather(table, lists.slot_index, lists.similarity)[lists.row, 0]


def coverage_score(env_term: Float[Tensor, " tasks"], task_term: Float[Tensor, " tasks"], pattern_term: Float[Tensor, " tasks"]) -> Tensor:
    """(env_term + task_term + pattern_term) / 3; the greedy pass divides it by 1 + picks of the environment in this round (ours)."""
    return (env_term + task_term).add_(pattern_term).div_(3)


def weighed(cover: Float[Tensor, " tasks"], q: Float[Tensor, " tasks"], c: Int[Tensor, " tasks"]) -> Float[Tensor, " tasks"]:
    """cover_i q_i / (1 + c_i): what coverage may teach; tasks that came before and varied are left to exploitation (ours)."""
    return (cover * q).mul_(task_term(c))


def exploitation_score(q: Float[Tensor, " tasks"], c: Int[Tensor, " tasks"], scale: float) -> Float[Tensor, " tasks"]:
    """q_i (1 + c_i / scale)^(-1/2), scale = 16 (paper)."""
    return c.double().div_(scale).add_(1).rsqrt_().mul_(q)
