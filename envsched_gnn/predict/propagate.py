"""Propagation: what the observed neighbours of a task say about it.

Knows: relation estimates, priors, shrinkage.
Does not know: how neighbours are found, what an estimate is used for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from envsched_gnn.graph.neighbors import NeighborLists
from envsched_gnn.ops import weighted_gather

if TYPE_CHECKING:
    from jaxtyping import Float


def evidence_sums(
    own: Float[Tensor, "groups stats slots"], weight: Float[Tensor, "groups slots"], lists: NeighborLists
) -> tuple[Float[Tensor, "groups rows"], Float[Tensor, "groups stats rows"]]:
    """Sums over a row's neighbours: `sum_j a_ij` and `sum_j a_ij own_y(j)`, with evidence `a_ij = s_ij W_j` (ours)."""
    groups, stats, slots = own.shape
    table = torch.cat([weight, (weight[:, None] * own).reshape(groups * stats, slots)]).T.contiguous()
    sums = weighted_gather(table, lists.slot_index, lists.similarity).T.contiguous()
    return sums[:groups], sums[groups:].reshape(groups, stats, -1)


def relation_estimate(
    total: Float[Tensor, "groups rows"], weighted: Float[Tensor, "groups stats rows"], ref: Float[Tensor, "groups stats"], strength: float
) -> Float[Tensor, "groups stats rows"]:
    """`rel_y = (sum_j a_ij own_y(j) + strength ref_y) / (sum_j a_ij + strength)` (paper)."""
    return (weighted + strength * ref[..., None]) / (total[:, None] + strength)


def shrink(own: Tensor, weight: Tensor, prior: Tensor, strength: float) -> Tensor:
    """Pull each estimate toward its prior: `(W own + strength prior) / (W + strength)` (paper)."""
    return (weight * own + strength * prior) / (weight + strength)
