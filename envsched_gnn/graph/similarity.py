"""The one place where similarities of both relations are computed: neighbours, redundancy and export share it.

Knows: unit vectors and dense within blocks as they stand in the graph; the grid of values.
Does not know: who is a neighbour, what was observed, what the vectors mean.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import HeteroData

GRID = 2.0**20
"""Similarities are multiples of 1/GRID, so that equal pairs tie exactly on every device (ours)."""


def quantise(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Round to the grid, s = round(clip_[0,1](x) 2^20) / 2^20, as float32, which holds every such value exactly (ours).

    Give float64: its rounding noise (1e-16) practically never crosses the middle between two multiples (1e-6 apart).
    """
    return (values.clamp(0.0, 1.0) * GRID).round_().div_(GRID).to(torch.float32)


def cross_similarity(vectors_a: Float[Tensor, "a d"], vectors_b: Float[Tensor, "b d"]) -> Float[Tensor, "a b"]:
    """s = <u_a, u_b> of non-negative unit vectors, computed in float64, on the grid, float32 (ours)."""
    return quantise(vectors_a.to(torch.float64) @ vectors_b.to(torch.float64).T)


def within_similarity(graph: HeteroData, rows_i: Int[Tensor, " pairs"], rows_j: Int[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """s_within(i, j) of pairs of tasks that share their environment, looked up in the dense blocks; float32."""
    store = graph["task"]
    env = store.env_index[rows_i]
    size = store.member_offset[env + 1] - store.member_offset[env]
    return store.within_similarity[store.within_offset[env] + store.position[rows_i] * size + store.position[rows_j]]


def pair_similarity(graph: HeteroData, rows_i: Int[Tensor, " i"], rows_j: Int[Tensor, " j"]) -> Float[Tensor, "i j"]:
    """s(i, j): within if e(i) = e(j), cross otherwise, 0 on the diagonal i = j; float32 on the grid.

    `rows_i`, `rows_j` are rows of the pool, in any order, repeats allowed.
    """
    store = graph["task"]
    vectors_i = store.cross_vectors[store.record_index[rows_i]]
    vectors_j = store.cross_vectors[store.record_index[rows_j]]
    similarity = cross_similarity(vectors_i, vectors_j)
    at_i, at_j = torch.nonzero(store.env_index[rows_i][:, None] == store.env_index[rows_j][None, :], as_tuple=True)
    similarity[at_i, at_j] = within_similarity(graph, rows_i[at_i], rows_j[at_j])
    return similarity
