"""The six texts by which tasks of one environment are compared (paper: six TF-IDF views).

Knows: which parts of a task each view takes, in pieces, and how a piece becomes tokens.
Does not know: weights, vectors, gold trajectories (they are never read).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsched_gnn.features.abstract import TaskReading
from envsched_gnn.features.tfidf import character_tokens, ngrams, word_tokens
from envsched_gnn.records import Task

MAX_TEXT = 100_000
"""Characters of one text that are read (ours): a megabyte of prose says no more than its first tenth."""
MAX_LEAVES = 20_000
"""Values of one initial state that are read (ours)."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One view: a name, the pieces of a task, the tokens of a piece."""

    name: str
    pieces: Callable[[Task, TaskReading], Sequence[Any]]
    tokens: Callable[[Any], list[str]]


def _instruction(task: Task, reading: TaskReading) -> list[str]:
    return [task.prompt[:MAX_TEXT]]


def _verifier_text(task: Task, reading: TaskReading) -> list[str]:
    return [text[:MAX_TEXT] for check in task.verifier.checks for text in (check.description, check.code) if text]


def _verifier_structure(task: Task, reading: TaskReading) -> Sequence[tuple[str, ...]]:
    return reading.structures


def _initial_context(task: Task, reading: TaskReading) -> list[str]:
    """An entity a piece: the key path of each value below the first two keys, and the value."""
    state = task.initial_state
    if not isinstance(state, (Mapping, list, tuple)) or not state:
        return [] if state is None else [_dump(["", state])]
    pieces = []
    for key, value in _items(state):
        nested = isinstance(value, (Mapping, list, tuple)) and value
        pieces += [_dump([f"{key}.{inner}", leaf]) for inner, leaf in _items(value)] if nested else [_dump([key, value])]
        if len(pieces) > MAX_LEAVES:
            break
    return pieces


def _operations(task: Task, reading: TaskReading) -> list[str]:
    return [f"{operation.name}\n{operation.description}"[:MAX_TEXT] for operation in reading.operations]


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Children with the keys of their path; positions in a list are not part of a path."""
    if isinstance(value, Mapping):
        yield from ((str(key), child) for key, child in value.items())
    else:
        yield from (("[]", child) for child in value)


def _dump(piece: list[Any]) -> str:
    try:
        return json.dumps(piece, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys of mixed types, cycles
        return json.dumps([str(piece[0]), repr(type(piece[1]))])


def _context_tokens(piece: str) -> list[str]:
    """`orders.O1.status` and `status=shipped` of every value."""
    path, value = json.loads(piece)
    tokens: list[str] = []
    stack = [(path, value)]
    while stack and len(tokens) < 2 * MAX_LEAVES:
        path, value = stack.pop()
        if isinstance(value, (dict, list)) and value:
            stack.extend((f"{path}.{key}", child) for key, child in _items(value))
        else:
            tokens += [path, f"{path.rsplit('.', 1)[-1]}={str(value)[:MAX_TEXT]}"]
    return tokens


VIEWS = (
    View(name="instruction_words", pieces=_instruction, tokens=lambda text: word_tokens(text, (1, 2))),
    View(name="instruction_characters", pieces=_instruction, tokens=character_tokens),
    View(name="verifier_text", pieces=_verifier_text, tokens=word_tokens),
    View(name="verifier_structure", pieces=_verifier_structure, tokens=lambda nodes: ngrams(nodes, (1, 2, 3))),
    View(name="initial_context", pieces=_initial_context, tokens=_context_tokens),
    View(name="operations", pieces=_operations, tokens=word_tokens),
)
"""The paper's six views; a view that a task lacks is left out of its vector."""
