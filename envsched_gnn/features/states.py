"""Initial states as counts of where their values stand and what they are.

Knows: states of any nesting, without any schema; how their values become columns.
Does not know: what a state means, weights, the other views.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from scipy import sparse

MAX_LEAVES = 20_000
"""Values of one state that are read (ours)."""
MAX_DEPTH = 64
"""Nesting below which only the type of a value is read (ours)."""
MAX_TEXT = 100_000
"""Characters of one value that are read (ours)."""

Columns = defaultdict[str, dict[str, int]]
"""A table a key: what goes with it -> column. A pool has millions of places: their text is kept once for all keys below it."""


def count_states(states: Iterable[Any]) -> sparse.csr_matrix | None:
    """Counts of `orders.O1.status` and `status=shipped` of every value. [states, columns] float64; None if no state holds a value.

    The columns are sorted, so they do not depend on the order of the states. A missing state is an empty row.
    """
    places: Columns = defaultdict(dict)
    values: Columns = defaultdict(dict)
    found, starts, size = array("i"), array("q", [0]), 0
    for state in states:
        for number, (path, key, value) in enumerate(_leaves(state)):
            if number == MAX_LEAVES:
                break
            place = places[key].setdefault(path, size)
            size += place == size
            named = values[key.rpartition(".")[2]].setdefault(str(value)[:MAX_TEXT], size)
            size += named == size
            found.append(place)
            found.append(named)
        starts.append(len(found))
    if not size:
        return None
    indices = _ranks(size, places, values)[np.frombuffer(found, dtype=np.int32)]
    counts = sparse.csr_matrix((np.ones(len(indices)), indices, np.array(starts)), shape=(len(starts) - 1, size))
    counts.sum_duplicates()
    return counts


def _ranks(size: int, *tables: Columns) -> np.ndarray:
    """Position of each column among the sorted ones, [size] int32."""
    order = (columns[item] for table in tables for _, columns in sorted(table.items()) for item in sorted(columns))
    ranks = np.empty(size, dtype=np.int32)
    ranks[np.fromiter(order, dtype=np.int32, count=size)] = np.arange(size, dtype=np.int32)
    return ranks


def _leaves(state: Any) -> Iterator[tuple[str, str, Any]]:
    """Path, last key and value of everything that holds no other value; positions in a list are not part of a path."""
    stack = [] if state is None else [("", "", state, 0)]
    while stack:
        path, key, value, depth = stack.pop()
        if not isinstance(value, (Mapping, list, tuple)) or not value:
            yield path, key, value
        elif depth == MAX_DEPTH:
            yield path, key, type(value)
        else:
            below = f"{path}.{key}"
            pairs = value.items() if isinstance(value, Mapping) else (("[]", child) for child in value)
            stack += [(below, str(name), child, depth + 1) for name, child in pairs]
