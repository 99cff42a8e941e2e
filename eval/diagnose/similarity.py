"""The neighbours of every observed task, under the scheduler's similarities and under each view alone.

Knows: which pairs belong to a relation, the k nearest, the views.
Does not know: tests, labels beyond their differences.

Rows here are positions among the observed tasks. Ties are broken at random by `priority`: under one view alone hundreds of tasks may tie,
and the lowest rows would be those of a few environments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch_geometric.data import HeteroData

from envsched_gnn.features.abstract import AbstractRecord
from envsched_gnn.features.build import read_pool, record_blocks
from envsched_gnn.features.tfidf import tfidf
from envsched_gnn.features.views import VIEWS
from envsched_gnn.graph.neighbors import Relation
from envsched_gnn.graph.similarity import GRID, pair_similarity
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.shuffle import shown_rows

ROWS_AT_ONCE = 512
CLOSED = 1024
"""Columns up to which a view is multiplied as a dense matrix: the closed vocabularies of the abstract records."""
MIN_MEMBERS = 3
"""Observed tasks of an environment from which on exchanging labels inside it can change anything (ours)."""

Similarity = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(rows, columns) -> [rows, columns], 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """A relation under one similarity."""

    weights: sparse.csr_matrix
    """[tasks, tasks]: similarities of the k nearest, divided by their sum."""
    mantel: np.ndarray
    """Correlation of s_ij with -|y_i - y_j| over all pairs of the relation, by target; NaN where either is constant."""


def neighbourhood(
    relation: Relation, similarity: Similarity, env: np.ndarray, labels: np.ndarray, k: int, priority: np.ndarray
) -> Neighbourhood:
    """Nearest neighbours of a relation, and how similarity goes with the difference of labels [tasks, targets]."""
    moments = np.zeros((labels.shape[1], 6))
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for rows, columns in _blocks(relation, env):
        level = np.round(similarity(rows, columns) * GRID).astype(np.int64)
        pair = rows[:, None] != columns if relation == "within" else env[rows][:, None] != env[columns]
        found.append(_nearest(np.where(pair, level, 0), rows, columns, k, priority))
        difference = np.abs(labels[rows][:, None] - labels[columns])[pair]
        moments += np.array([_moments(level[pair] / GRID, -column) for column in difference.T])
    nothing = np.empty(0, dtype=np.int64)
    row, column, value = (np.concatenate([nothing, *(part[n] for part in found)]) for n in range(3))
    weights = sparse.csr_matrix((value.astype(float), (row, column)), shape=(len(env), len(env)))
    total = np.asarray(weights.sum(axis=1)).ravel()
    weights = sparse.diags_array(np.divide(1, total, out=np.zeros_like(total), where=total > 0)) @ weights
    return Neighbourhood(weights=sparse.csr_matrix(weights), mantel=np.array([_correlation(*m) for m in moments]))


def _blocks(relation: Relation, env: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows and the columns to compare them with: an environment at a time within, some rows with all across."""
    match relation:
        case "within":
            order = np.argsort(env, kind="stable")
            for members in np.split(order, np.flatnonzero(np.diff(env[order])) + 1):
                if len(members) >= MIN_MEMBERS:
                    yield members, members
        case "cross":
            everyone = np.arange(len(env))
            for start in range(0, len(env), ROWS_AT_ONCE):
                yield everyone[start : start + ROWS_AT_ONCE], everyone


def _nearest(
    level: np.ndarray, rows: np.ndarray, columns: np.ndarray, k: int, priority: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, column, level) of the k highest of each row; level 0 is no neighbour."""
    keys = (level << 32) | priority[columns]
    top = np.argpartition(keys, -k, axis=1)[:, -k:] if len(columns) > k else np.broadcast_to(np.arange(len(columns)), level.shape)
    values = np.take_along_axis(level, top, axis=1)
    real = values > 0
    return np.broadcast_to(rows[:, None], top.shape)[real], columns[top][real], values[real]


def _moments(x: np.ndarray, y: np.ndarray) -> tuple[float, ...]:
    return len(x), x.sum(), y.sum(), x @ x, y @ y, x @ y


def _correlation(n: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """From sums; NaN where a side is constant."""
    if n == 0:
        return float("nan")
    spread_x, spread_y = xx - x * x / n, yy - y * y / n
    if min(spread_x / max(xx, 1e-300), spread_y / max(yy, 1e-300)) < 1e-9:
        return float("nan")
    return float((xy - x * y / n) / np.sqrt(spread_x * spread_y))


def of_graph(graph: HeteroData, tasks: np.ndarray) -> Similarity:
    """What the scheduler compares the observed `tasks` by: all views of a relation together."""

    def similarity(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return pair_similarity(graph, torch.from_numpy(tasks[rows]), torch.from_numpy(tasks[columns])).numpy()

    return similarity


def of_views(pool: Pool, tasks: np.ndarray) -> Iterator[tuple[Relation, str, Similarity | None]]:
    """(relation, name, similarity) of each view, one at a time; None where the pool has nothing to compare by in it."""
    readings = read_pool(pool, lambda stage, share: None)
    rows = shown_rows(pool)[tasks]
    for view in VIEWS:
        yield "within", view.name, _products(tfidf(view.counts(pool.tasks, readings)), rows)
    unique: dict[AbstractRecord, int] = {}
    record_index = np.array([unique.setdefault(reading.record, len(unique)) for reading in readings], dtype=np.int64)
    for name, block in record_blocks(tuple(unique), record_index).items():
        yield "cross", name, _products(block, record_index[rows])


def _products(vectors: sparse.csr_matrix | None, rows: np.ndarray) -> Similarity | None:
    """Inner products of unit vectors; each task's is `vectors[rows[task]]`."""
    if vectors is None:
        return None
    own = vectors[rows]
    if own.shape[1] <= CLOSED:
        dense = own.toarray()
        return lambda some, columns: dense[some] @ dense[columns].T
    return lambda some, columns: (own[some] @ own[columns].T).toarray()
