"""References to results: which call, which identifier, and what becomes of one that leads nowhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsched_gnn.pool.references import first_identifier, reference, resolve, result_of


@pytest.mark.parametrize(
    ("value", "call"),
    [
        (reference(3), 3),
        ({"$result": 0}, 0),
        ({"$result": "0"}, None),
        ({"$result": None}, None),
        ({"$result": 1, "more": 2}, None),
        ({"result": 1}, None),
        ({}, None),
        ([], None),
        ("$result", None),
        (3, None),
        (None, None),
    ],
)
def test_what_is_a_reference(value, call):
    assert result_of(value) == call


def test_references_are_replaced_and_nothing_else():
    found = ["I-1", "", "I-3"]
    arguments = {
        "a": reference(0),
        "b": reference(1),
        "c": reference(2),
        "d": reference(3),
        "e": "I-9",
        "f": [reference(0)],
        "g": {"$result": -1},
    }
    assert resolve(arguments, found) == {"a": "I-1", "b": "", "c": "I-3", "d": "", "e": "I-9", "f": [{"$result": 0}], "g": ""}
    assert arguments["a"] == {"$result": 0}
    assert resolve("no table", found) == "no table"
    assert resolve(None, found) is None


@pytest.mark.parametrize(
    ("result", "identifier"),
    [
        ({"item_id": "I-1", "owner_id": "O-1"}, "I-1"),
        ({"success": True, "data": {"name": "x", "id": "I-2"}}, "I-2"),
        ([{"title": "a"}, {"item_id": "I-3"}], "I-3"),
        (({"item_id": "I-4"},), "I-4"),
        ([{"item_id": "I-5", "is_active": False}, {"item_id": "I-6", "is_active": True}], "I-6"),
        ([{"item_id": "I-7", "is_active": False}, {"item_id": "I-8", "on": False}], "I-7"),
        ({"item_id": "", "next_id": "I-9"}, "I-9"),
        ({"item_id": 12, "data": {"item_id": "I-10"}}, "I-10"),
        ({3: "x", "id": "I-11"}, "I-11"),
        ({"item_ids": ["I-12"]}, ""),
        ({"success": False, "error": "Unknown item"}, ""),
        ("I-13", ""),
        (None, ""),
        ([], ""),
    ],
)
def test_the_first_identifier_of_a_result(result, identifier):
    assert first_identifier(result) == identifier


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=20
    )
)
def test_any_plain_result_has_a_text(result):
    assert isinstance(first_identifier(result), str)
