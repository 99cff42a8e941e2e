"""Propagation: what the observed neighbours of a task say about it.

Knows: relation estimates and shrinkage, for any number of statistics at once.
Does not know: how neighbours are found, what an estimate is used for.

A column is one statistic under one half-life. `group [columns]` says which weight W a column's evidence is measured in.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.graph.neighbors import NeighborLists
from envsched_gnn.ops import weighted_gather


def relation_estimate(
    own: Float[Tensor, "columns slots"],
    weight: Float[Tensor, "groups slots"],
    group: Int[Tensor, " columns"],
    ref: Float[Tensor, " columns"],
    strength: Float[Tensor, " columns"],
    lists: NeighborLists,
) -> tuple[Float[Tensor, "columns rows"], Float[Tensor, "groups rows"]]:
    """(rel, sum_j a_ij) of every row of a relation's lists, with evidence `a_ij = s_ij W_j` (ours), W as given.

    rel_y = (sum_j a_ij own_y(j) + strength ref_y) / (sum_j a_ij + strength)   (paper)
    """
    table = torch.cat([weight, weight[group] * own]).T.contiguous()
    sums = weighted_gather(table, lists.slot_index, lists.similarity).T.contiguous()
    a, rel = sums[: len(weight)], sums[len(weight) :]
    rel.add_((strength * ref)[:, None]).div_(a.index_select(0, group).add_(strength[:, None]))
    return rel, a


def shrink(own: Tensor, weight: Tensor, prior: Tensor, strength: float) -> Tensor:
    """Pull each estimate toward its prior: `(W own + strength prior) / (W + strength)` (paper)."""
    return (weight * own + strength * prior) / (weight + strength)
