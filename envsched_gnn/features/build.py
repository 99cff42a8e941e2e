"""Feature vectors of a pool: one per task within environments, one per unique abstract record across them.

Knows: views, records, TF-IDF, embeddings, the unit-vector rule.
Does not know: similarities, the graph, torch, rewards. Gold trajectories are never read.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

from envsched_gnn.features.abstract import AbstractRecord, TaskReading, read_task, word_weights
from envsched_gnn.features.embed import Embedded, Encoder, embed_pool, unit_rows
from envsched_gnn.features.operations import OperationTable, read_operations
from envsched_gnn.features.tfidf import count, join_blocks, ngrams, tfidf
from envsched_gnn.features.views import VIEWS
from envsched_gnn.pool.pool import Pool

VERSION = 1
"""Raised when a change of this folder changes similarities."""

SimilarityKind = Literal["tfidf", "dense", "both"]

Report = Callable[[str, float], None]
"""Called with the name of a stage and the share of it that is done."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """What the graph is built from. Rows have length 1, or 0 where a task says nothing. TF-IDF is non-negative, embeddings are not."""

    within: sparse.csr_matrix
    """[tasks, columns] float64: the within views joined; no columns where tasks are compared by embeddings alone."""
    cross_vectors: np.ndarray
    """[records, d] float64: one row a unique record, in order of first appearance."""
    record_index: np.ndarray
    """[tasks] int64: row of each task's record."""
    records: tuple[AbstractRecord, ...]
    embedded: Embedded | None
    """Of the tasks and records; None where nothing asked for it."""
    config: dict[str, Any]
    """How they were made; stored in the graph."""


def build_features(
    pool: Pool,
    *,
    records: Mapping[str, AbstractRecord] | None = None,
    similarity: SimilarityKind = "tfidf",
    encoder: Encoder | None = None,
    report: Report | None = None,
) -> Features:
    """All vectors of a pool, deterministic, without executing anything.

    `records` (task key -> record, for example from `features.llm`) replace the static ones where they stand. `similarity` says by which
    vectors tasks are compared; all but `tfidf` need an `encoder`.
    """
    with _no_collector():
        return _build(pool, records or {}, similarity, encoder, report or (lambda stage, share: None))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Syntax trees set the garbage collector off over and over, on a whole pool, for nothing: no tree or table here refers to itself."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _build(
    pool: Pool, records: Mapping[str, AbstractRecord], similarity: SimilarityKind, encoder: Encoder | None, report: Report
) -> Features:
    readings = read_pool(pool, report)
    chosen = [records.get(key, reading.record) for key, reading in zip(pool.keys, readings, strict=True)]
    unique: dict[AbstractRecord, int] = {}
    record_index = np.array([unique.setdefault(record, len(unique)) for record in chosen], dtype=np.int64)
    embedded = embed_pool(pool.tasks, readings, tuple(unique), encoder, report) if encoder else None
    dense = similarity == "dense"
    within = sparse.csr_matrix((len(pool.tasks), 0)) if dense else within_vectors(pool, readings, report)
    cross = [] if dense else [record_vectors(tuple(unique), record_index)]
    if similarity != "tfidf":
        assert embedded is not None, "similarities of embeddings need an encoder"
        cross.append(embedded.records.astype(np.float64))
    return Features(
        within=within,
        cross_vectors=cross[0] if len(cross) == 1 else unit_rows(np.hstack(cross)),
        record_index=record_index,
        records=tuple(unique),
        embedded=embedded,
        config={
            "version": VERSION,
            "views": [] if dense else [view.name for view in VIEWS],
            "records": "given" if records else "static",
            "similarity": similarity,
            "embedding": embedded.model if embedded else "",
        },
    )


def read_pool(pool: Pool, report: Report) -> list[TaskReading]:
    """The abstract reading of every task, in pool order. One environment at a time: their operations need not all be in memory."""
    readings: dict[int, TaskReading] = {}
    rows = np.argsort(pool.env_index, kind="stable")
    environment, table, weight = None, OperationTable(operations=()), {}
    for row in rows.tolist():
        if environment is not pool.environments[pool.env_index[row]]:
            environment = pool.environments[pool.env_index[row]]
            table = read_operations(environment)
            weight = word_weights(table.operations)
            report("tasks", len(readings) / len(pool.tasks))
        readings[row] = read_task(pool.tasks[row], table, weight)
    report("tasks", 1.0)
    return [readings[row] for row in range(len(pool.tasks))]


def within_vectors(pool: Pool, readings: Sequence[TaskReading], report: Report) -> sparse.csr_matrix:
    """The six views joined, [tasks, columns] float64."""
    blocks = []
    for number, view in enumerate(VIEWS):
        blocks.append(tfidf(view.counts(pool.tasks, readings)))
        report("views", (number + 1) / len(VIEWS))
    return join_blocks(blocks, len(pool.tasks))


def record_vectors(records: Sequence[AbstractRecord], record_index: np.ndarray) -> np.ndarray:
    """The four blocks of each record joined, [records, d] float64."""
    return join_blocks(list(record_blocks(records, record_index).values()), len(records)).toarray()


def record_blocks(records: Sequence[AbstractRecord], record_index: np.ndarray) -> dict[str, sparse.csr_matrix | None]:
    """Four blocks a record: TF-IDF of op 1-2-grams, TF-IDF of gates, dependency edges, reward features; each [records, d] float64 or None.

    IDF counts tasks, not records: a record of a hundred tasks counts a hundred times.
    """
    return {
        "ops": _weighted(count([[record.ops] for record in records], lambda ops: ngrams(ops, (1, 2))), record_index),
        "gates": _weighted(count([[record.gates] for record in records], list), record_index),
        "deps": _unit(count([[record.deps] for record in records], lambda deps: [f"{a}>{b}" for a, b in deps])),
        "reward": _unit(count([[record.reward] for record in records], list)),
    }


def _weighted(counts: sparse.csr_matrix | None, record_index: np.ndarray) -> sparse.csr_matrix | None:
    if counts is None:
        return None
    return TfidfTransformer(sublinear_tf=True).fit(counts[record_index]).transform(counts)


def _unit(counts: sparse.csr_matrix | None) -> sparse.csr_matrix | None:
    return None if counts is None else join_blocks([counts], counts.shape[0])
