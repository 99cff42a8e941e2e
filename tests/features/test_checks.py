"""Reading check functions."""

import pytest

from envsched_gnn.features.checks import CheckFacts, Demand, read_check
from tests.features.shop import SHIP, check


def test_nodes_and_keys() -> None:
    facts = read_check(SHIP.verifier.checks[0].code)
    assert facts.demands == (Demand(key="orders", path=("O1", "status"), values=frozenset({"shipped"})),)
    expected = "FunctionDef arguments arg Return Compare Subscript Subscript Subscript Name Constant Constant Constant Eq Constant"
    assert " ".join(facts.nodes) == expected


def test_structure_has_no_identifiers() -> None:
    other = read_check('def check_func(final_state):\n    return final_state["loans"]["L9"]["state"] == "x"')
    assert other.nodes == read_check(SHIP.verifier.checks[0].code).nodes


@pytest.mark.parametrize(
    ("body", "demands"),
    [
        ('"O2" in final_state.get("orders", {})', [("orders", ("O2",), set())]),
        ('final_state["today"] == 2', [("today", (), {2})]),
        ('final_state["o"]["O1"].get("s") in ("a", "b")', [("o", ("O1", "s"), {"a", "b"})]),
        ('any(o["x"] == 1 and o["y"] != 2 for o in final_state["o"].values())', [("o", ("*", "x"), {1}), ("o", ("*", "y"), set())]),
        ('final_state["n"] == initial_state["m"]', [("n", (), set())]),
        ("True", []),
    ],
)
def test_demands(body: str, demands: list) -> None:
    found = [(demand.key, demand.path, set(demand.values)) for demand in read_check(check(body).code).demands]
    assert found == demands


def test_demands_through_variables() -> None:
    code = """
def check_func(state):
    order_id = "O7"
    order = state.get("orders", {}).get(order_id)
    if not order:
        return False
    return order_id in state["orders"] and order.get("n") == 1
"""
    assert read_check(code).demands == (Demand(key="orders", path=("O7", "n"), values=frozenset({1})),)


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
    assert facts.demands == ()
    assert facts == CheckFacts() or code == ""
