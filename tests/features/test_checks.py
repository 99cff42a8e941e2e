"""Reading check functions."""

import pytest

from envsched_gnn.features.checks import CheckFacts, read_check
from tests.features.shop import SHIP, check


def test_nodes_and_keys() -> None:
    facts = read_check(SHIP.verifier.checks[0].code)
    assert facts.keys == {"orders", "O1", "status"}
    expected = "FunctionDef arguments arg Return Compare Subscript Subscript Subscript Name Constant Constant Constant Eq Constant"
    assert " ".join(facts.nodes) == expected


def test_structure_has_no_identifiers() -> None:
    other = read_check('def check_func(final_state):\n    return final_state["loans"]["L9"]["state"] == "x"')
    assert other.nodes == read_check(SHIP.verifier.checks[0].code).nodes


def test_key_in_a_variable() -> None:
    code = 'def check_func(s):\n    i = "O7"\n    return i in s.get("orders", {}) and s["orders"][i].get("n") == 1'
    assert read_check(code).keys == {"O7", "orders", "n"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('len(final_state["o"]) == 2', "count"),
        ('any(o["x"] == 1 for o in final_state["o"])', "aggregate"),
        ('final_state["n"] >= 2', "comparison"),
        ('final_state["n"] == 2', "equality"),
        ('"k" not in final_state["o"]', "absence"),
        ('"k" in final_state["o"]', "existence"),
        ('final_state["flag"]', "other"),
    ],
)
def test_kinds(body: str, kind: str) -> None:
    assert read_check(check(body).code).kind == kind


@pytest.mark.parametrize("code", ["", "def (", "\x00", "\udc80", "x = '\\d'\n(", "y" * 300_000, "-" * 100_000 + "1"])
def test_code_that_says_nothing(code: str) -> None:
    facts = read_check(code)
    assert facts.keys == frozenset()
    assert facts == CheckFacts() or code == ""
