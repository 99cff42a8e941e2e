"""Which prompts are near each other: a mutual k-nearest-neighbour graph, clusters, and the nearest prompts observed so far.

Knows: cosines of prompt vectors, worked out in blocks; nothing grows with the square of the number of tasks.
Does not know: environments, rewards.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.graph.neighbors import Neighbors

BLOCK = 512
"""Tasks compared with all others at once: bounds memory."""
CHUNK = 64
"""Neighbours looked through at once."""
PASSES = 10
"""Of k-means (ours)."""


def nearest(vectors: Float[Tensor, "tasks d"], k: int) -> tuple[Int[Tensor, "tasks k"], Float[Tensor, "tasks k"]]:
    """(rows, cosines) of the k nearest other tasks of each; unit vectors, float32.

    Exact: the k largest of a row lie in the k chunks of largest maximum.
    """
    vectors = vectors.to(torch.float32)
    tasks = len(vectors)
    k = min(k, tasks - 1)
    padded = torch.nn.functional.pad(vectors, (0, 0, 0, -tasks % CHUNK))
    found = [_nearest_of(vectors, padded, start, k) for start in range(0, tasks, BLOCK)]
    return torch.cat([index for index, _ in found]), torch.cat([cosine for _, cosine in found])


def _nearest_of(vectors: Tensor, padded: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    some = vectors[start : start + BLOCK]
    cosine = some @ padded.T
    cosine[:, len(vectors) :] = -2
    cosine[torch.arange(len(some)), start + torch.arange(len(some))] = -2
    chunks = cosine.view(len(some), -1, CHUNK)
    chunk = chunks.amax(2).topk(min(k, chunks.shape[1])).indices
    column = (chunk[:, :, None] * CHUNK + torch.arange(CHUNK)).flatten(1)
    value, at = cosine.gather(1, column).topk(k)
    return column.gather(1, at), value


def mutual_graph(vectors: Float[Tensor, "tasks d"], k: int) -> scipy.sparse.csr_matrix:
    """W [tasks, tasks] float32: the cosine of tasks that are each among the other's k nearest and point the same way, else 0."""
    tasks = len(vectors)
    if tasks < 2:
        return scipy.sparse.csr_matrix((tasks, tasks), dtype=np.float32)
    index, cosine = nearest(vectors, k)
    pointer = np.arange(0, index.numel() + 1, index.shape[1])
    graph = scipy.sparse.csr_matrix((cosine.clamp(min=0).flatten().numpy(), index.flatten().numpy(), pointer), shape=(tasks, tasks))
    mutual = graph.minimum(graph.T).tocsr()
    mutual.eliminate_zeros()
    return mutual


def clusters(vectors: Float[Tensor, "tasks d"], identity: Int[Tensor, " tasks"], k: int) -> Int[Tensor, " tasks"]:
    """Cluster of each task: spherical k-means from the k tasks of lowest identity, PASSES passes. An empty cluster keeps its centre."""
    vectors = vectors.to(torch.float32)
    centres = vectors[torch.argsort(identity)[:k]]
    for _ in range(PASSES):
        label = torch.cat([(some @ centres.T).argmax(1) for some in vectors.split(16 * BLOCK)])
        total = torch.zeros_like(centres).index_add_(0, label, vectors)
        length = total.norm(dim=1, keepdim=True)
        centres = torch.where(length > 0, total / length.clamp(min=1e-12), centres)
    return label


def observed_neighbors(vectors: Float[Tensor, "tasks d"], k: int) -> Neighbors:
    """Running lists of the k nearest prompts observed so far, relation `cross`; only cosines above 0, never the task itself.

    The scheduler's own lists, on a graph in which every task is an environment of its own.
    """
    tasks = len(vectors)
    each = torch.arange(tasks)
    graph = assemble_graph(
        env_ids=[str(row) for row in range(tasks)],
        env_index=each,
        task_ids=[""] * tasks,
        within_vectors=torch.zeros((tasks, 1)),
        cross_vectors=vectors,
        record_index=each,
        within_k=1,
        cross_k=k,
    )
    return Neighbors(graph)
