"""The six texts by which tasks of one environment are compared (paper: six TF-IDF views).

Knows: which part of a task each view takes, in pieces, and how a piece becomes tokens.
Does not know: weights, vectors, gold trajectories (they are never read).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy import sparse

from envsched_gnn.features.abstract import TaskReading
from envsched_gnn.features.states import count_states
from envsched_gnn.features.tfidf import character_tokens, count, ngrams, word_tokens
from envsched_gnn.records import Task

MAX_TEXT = 100_000
"""Characters of one text that are read (ours): a megabyte of prose says no more than its first tenth."""

Tasks = Sequence[Task]
Readings = Sequence[TaskReading]


@dataclass(frozen=True, kw_only=True)
class View:
    """One view: a name, and the token counts of tasks, [tasks, tokens]; None if no task has a token."""

    name: str
    counts: Callable[[Tasks, Readings], sparse.csr_matrix | None]


def _instruction_words(tasks: Tasks, readings: Readings) -> sparse.csr_matrix | None:
    return count([[task.prompt[:MAX_TEXT]] for task in tasks], lambda text: word_tokens(text, (1, 2)))


def _instruction_characters(tasks: Tasks, readings: Readings) -> sparse.csr_matrix | None:
    return count([[task.prompt[:MAX_TEXT]] for task in tasks], character_tokens)


def _verifier_text(tasks: Tasks, readings: Readings) -> sparse.csr_matrix | None:
    return count([_check_texts(task) for task in tasks], word_tokens)


def _check_texts(task: Task) -> list[str]:
    return [text[:MAX_TEXT] for check in task.verifier.checks for text in (check.description, check.code) if text]


def _verifier_structure(tasks: Tasks, readings: Readings) -> sparse.csr_matrix | None:
    return count([reading.structures for reading in readings], lambda nodes: ngrams(nodes, (1, 2, 3)))


def _initial_context(tasks: Tasks, readings: Readings) -> sparse.csr_matrix | None:
    return count_states(task.initial_state for task in tasks)


def _operations(tasks: Tasks, readings: Readings) -> sparse.csr_matrix | None:
    return count([_operation_texts(reading) for reading in readings], word_tokens)


def _operation_texts(reading: TaskReading) -> list[str]:
    return [f"{operation.name}\n{operation.description}"[:MAX_TEXT] for operation in reading.operations]


VIEWS = (
    View(name="initial_context", counts=_initial_context),
    View(name="instruction_words", counts=_instruction_words),
    View(name="instruction_characters", counts=_instruction_characters),
    View(name="verifier_text", counts=_verifier_text),
    View(name="verifier_structure", counts=_verifier_structure),
    View(name="operations", counts=_operations),
)
"""The paper's six views; a view that a task lacks is left out of its vector. The one that needs most memory comes first."""
