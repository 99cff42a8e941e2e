"""Redundancy: how similar a candidate is to the tasks already in the batch.

Knows: the graph's similarities on the host, the penalty of a similarity.
Does not know: scores, quotas, the order of picks.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch_geometric.data import HeteroData

from envsched_gnn.graph.similarity import cross_similarity, quantise

MAX_TABLE_RECORDS = 4096
"""Records up to which all their similarities are kept, 64 MB as float32 (ours)."""
TABLE_CHUNK = 256
"""Rows of the table that are computed at once: their float64 products are what needs memory (ours)."""


class Redundancy:
    """penalty(i) = weight max_{j in batch} relu(s(i, j) - threshold), s within or across environments as the pair demands (ours)."""

    def __init__(self, graph: HeteroData, *, weight: float, threshold: float) -> None:
        store = graph["task"]
        self.weight, self.threshold = weight, threshold
        self.env_index = store.env_index.cpu().numpy()
        self.record_index = store.record_index.cpu().numpy()
        self._position = store.position.cpu().numpy()
        self._block = store.within_similarity.cpu().numpy()
        self._block_start = store.within_offset.cpu().numpy()
        self._block_size = store.member_offset.diff().cpu().numpy()
        self._vectors = store.cross_vectors
        self._host_vectors = store.cross_vectors.cpu().numpy()
        self._table: np.ndarray | None = None

    @property
    def has_table(self) -> bool:
        """Whether similarities between records are looked up; else they are computed for each pick."""
        return len(self._vectors) <= MAX_TABLE_RECORDS

    def record_vectors(self, records: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n d"] | None:
        """What `penalties` needs of the candidates' records; None where there is a table."""
        return None if self.has_table else self._host_vectors[records]

    def penalties(
        self,
        pick: int,
        tasks: Int[np.ndarray, " n"],
        records: Int[np.ndarray, " n"],
        vectors: Float[np.ndarray, "n d"] | None,
        same: Int[np.ndarray, " m"],
    ) -> tuple[Int[np.ndarray, " hit"], Float[np.ndarray, " hit"]]:
        """(positions, penalty) of the candidates that are too similar to task `pick`; all others have none.

        `tasks`, `records`, `vectors` describe the candidates; `same` are the positions of those in the environment of `pick`.
        """
        similarity = self._across(pick, records, vectors)
        if len(same):
            similarity[same] = self._within(pick, tasks[same])
        hit = (similarity > self.threshold).nonzero()[0]
        return hit, self.weight * (similarity[hit] - self.threshold)

    def _across(self, pick: int, records: np.ndarray, vectors: np.ndarray | None) -> np.ndarray:
        if vectors is None:
            return self.table[self.record_index[pick]].take(records).astype(np.float64)
        product = torch.from_numpy(vectors @ self._host_vectors[self.record_index[pick]])
        return quantise(product).numpy().astype(np.float64)

    def _within(self, pick: int, tasks: np.ndarray) -> np.ndarray:
        env = self.env_index[pick]
        row = self._block_start[env] + self._position[pick] * self._block_size[env]
        return self._block[row + self._position[tasks]]

    @property
    def table(self) -> Float[np.ndarray, "records records"]:
        """s_cross between all records, computed when first needed; float32."""
        if self._table is None:
            chunks = [cross_similarity(rows, self._vectors).cpu() for rows in self._vectors.split(TABLE_CHUNK)]
            self._table = torch.cat(chunks).numpy()
        return self._table
