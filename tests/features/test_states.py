"""Initial states as counts of places and values."""

import pytest

from envsched_gnn.features import states
from envsched_gnn.features.states import count_states


def test_places_and_values_by_hand() -> None:
    """Columns: places (key qty: O1, O2; key tags[]: O1), then values (qty=3, []=new)."""
    first = {"orders": {"O1": {"qty": 3, "tags": ["new", "new"]}}}
    counts = count_states([first, None, {"orders": {"O1": {"qty": 3}, "O2": {"qty": 3}}}])
    assert counts is not None
    assert counts.toarray().tolist() == [[2, 1, 0, 2, 1], [0, 0, 0, 0, 0], [0, 1, 1, 0, 2]]


def test_columns_do_not_depend_on_the_order_of_states() -> None:
    some = [{"a": {"x": 1}}, {"b": {"x": 2}}, {"a": {"y": 1}}]
    forward, backward = count_states(some), count_states(some[::-1])
    assert forward is not None
    assert backward is not None
    assert forward.toarray().tolist() == backward.toarray()[::-1].tolist()


def test_forms_of_states() -> None:
    assert count_states([]) is None
    assert count_states([None, None]) is None
    forms: tuple[object, ...] = ("text", 3, {}, [], {"empty": {}}, (1, 1), {1: True})
    for state in forms:
        counts = count_states([state])
        assert counts is not None
        assert counts.sum() == (4 if state == (1, 1) else 2)


def test_cycles_and_size_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cyclic: dict = {}
    cyclic["self"] = cyclic
    counts = count_states([cyclic])
    assert counts is not None
    assert counts.sum() == 2
    monkeypatch.setattr(states, "MAX_LEAVES", 5)
    counts = count_states([list(range(100))])
    assert counts is not None
    assert counts.sum() == 10  # five places, five values
