"""Redundancy: how similar a candidate is to the tasks already in the batch.

Knows: the graph's similarities on the host, from which similarity on there is a penalty, and its size.
Does not know: scores, quotas, the order of picks.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch_geometric.data import HeteroData

from envsched_gnn.config_scheduling import Preset
from envsched_gnn.graph.similarity import cross_similarity, quantise

PENALTY_THRESHOLD: dict[Preset, float] = {"paper": 0.5, "default": 0.9}
"""On ToolWorld a tenth of all pairs across environments is above 0.63, a hundredth above 0.97: all but the same (ours)."""
MAX_TABLE_RECORDS = 4096
"""Records up to which all their similarities are kept, 64 MB as float32 (ours)."""
TABLE_CHUNK = 256
"""Rows of the table that are computed at once: their float64 products are what needs memory (ours)."""


def usual_threshold(preset: Preset, graph: HeteroData) -> float:
    """t, the preset's threshold; of a graph of embeddings alone m + t (1 - m), m the mean similarity of two tasks' records (ours).

    Embeddings of texts that say different things are alike, too: on EnvScaler those of every second pair by more than 0.86.
    """
    t = PENALTY_THRESHOLD[preset]
    if graph.feature_config.get("similarity") != "dense":
        return t
    store = graph["task"]
    tasks = torch.bincount(store.record_index, minlength=len(store.cross_vectors)).double()
    mean = tasks @ store.cross_vectors / tasks.sum()
    m = float(mean @ mean)
    return m + t * (1 - m)


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
        self._rows = scipy.sparse.csr_matrix(store.cross_vectors.cpu().numpy())
        self._table: np.ndarray | None = None

    @property
    def has_table(self) -> bool:
        """Whether similarities between records are looked up; else they are computed, few at a time."""
        return len(self._vectors) <= MAX_TABLE_RECORDS

    def penalties(self, tasks: Int[np.ndarray, " n"], picks: Int[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
        """penalty of each of `tasks` against a batch of `picks`, at least one."""
        similarity = self._across(self.record_index[tasks], self.record_index[picks])
        i, j = (self.env_index[tasks][:, None] == self.env_index[picks][None, :]).nonzero()
        similarity[i, j] = self._within(tasks[i], picks[j])
        return self.weight * np.maximum(similarity.max(axis=1) - self.threshold, 0.0)

    def _across(self, records: np.ndarray, others: np.ndarray) -> np.ndarray:
        if self.has_table:
            return self.table[others].take(records, axis=1).T.astype(np.float64)
        product = self._rows[records] @ self._rows[others].toarray().T
        return quantise(torch.from_numpy(product)).numpy().astype(np.float64)

    def _within(self, tasks: np.ndarray, others: np.ndarray) -> np.ndarray:
        env = self.env_index[tasks]
        row = self._block_start[env] + self._position[tasks] * self._block_size[env]
        return self._block[row + self._position[others]]

    @property
    def table(self) -> Float[np.ndarray, "records records"]:
        """s_cross between all records, computed when first needed; float32."""
        if self._table is None:
            chunks = [cross_similarity(rows, self._vectors).cpu() for rows in self._vectors.split(TABLE_CHUNK)]
            self._table = torch.cat(chunks).numpy()
        return self._table
