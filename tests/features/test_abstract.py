"""Which operations a task needs, and its record."""

import dataclasses

import pytest

from envsched_gnn.config import ToolWorldConfig
from envsched_gnn.features.abstract import AbstractRecord, TaskReading, read_task, reward_features, word_weights
from envsched_gnn.features.checks import CheckFacts
from envsched_gnn.features.operations import read_operations
from envsched_gnn.pool.toolworld import generate
from envsched_gnn.records import Environment, Task
from tests.features.shop import DROP, KEEP, LIBRARY_ENVIRONMENT, PLACE, RETURN, SHIP, SHOP_ENVIRONMENT, SHOP_STATE, check, task, tool


def _read(some: Task, environment: Environment = SHOP_ENVIRONMENT) -> TaskReading:
    table = read_operations(environment)
    return read_task(some, table, word_weights(table.operations))


def _names(some: Task, environment: Environment = SHOP_ENVIRONMENT) -> list[str]:
    return [operation.name for operation in _read(some, environment).operations]


def test_writers_of_the_checked_attribute_after_their_lookups() -> None:
    assert _names(SHIP) == ["find_customer_by_name", "list_orders_of_customer", "update_order_status"]


def test_new_and_gone_entities() -> None:
    assert _names(PLACE) == ["find_customer_by_name", "create_order"]
    assert _names(DROP) == ["find_customer_by_name", "list_orders_of_customer", "delete_order"]


def test_order_of_first_mention() -> None:
    checks = (check('"O1" not in final_state["orders"]'), check('final_state["today"] == 2'))
    assert _names(task("shop", "a", "Advance the day, then delete order O1.", *checks))[0] == "advance_day"
    assert _names(task("shop", "b", "Delete order O1, then advance the day.", *checks))[-1] == "advance_day"


def test_record_by_hand() -> None:
    assert _read(SHIP).record == AbstractRecord(
        ops=("search", "list", "update"),
        gates=("identifier_resolution", "identifier_resolution", "state_precondition", "value_range"),
        deps=(("list", "update"), ("search", "list")),
        reward=tuple(sorted(["checks>=1", "depth>=1", "depth>=2", "depth>=3"] + [f"equality>{s}" for s in (0.0, 0.25, 0.5, 0.75)])),
    )


def test_same_demands_elsewhere_give_the_same_record() -> None:
    assert _read(SHIP).record == _read(RETURN, LIBRARY_ENVIRONMENT).record == _read(KEEP, LIBRARY_ENVIRONMENT).record


def test_ground_truth_is_never_read() -> None:
    with_gold = dataclasses.replace(SHIP, ground_truth=[{"name": "delete_order", "arguments": {"order_id": "O1"}}])
    assert _read(with_gold) == _read(SHIP)


def test_what_a_chosen_operation_changes_too_adds_none() -> None:
    """The counter is written by `create_order` alone here, the status by both; one operation meets all three demands."""
    checks = (check('"O2" in final_state["orders"]'), check('final_state["orders"].get("O2", {}).get("status") == "open"'))
    assert _names(task("shop", "x", "Place order O2 for Ann.", *checks)) == ["find_customer_by_name", "create_order"]


def test_constants_tell_operations_apart() -> None:
    """Any order that is shipped: a new one starts as open, so the status has to be updated."""
    some = task("shop", "x", "One order has to go out.", check('any(o["status"] == "shipped" for o in final_state["orders"].values())'))
    assert _names(some)[-1] == "update_order_status"


def test_what_holds_at_reset_demands_nothing() -> None:
    kept = check('final_state["orders"]["O1"]["status"] == "open"')
    assert _names(task("shop", "x", "Advance one day.", kept, check('final_state["today"] == 2'))) == ["advance_day"]


def test_without_checks_the_mentioned_operations() -> None:
    assert _names(task("shop", "m", "Please delete the order.")) == ["find_customer_by_name", "list_orders_of_customer", "delete_order"]
    assert _names(task("shop", "n", "")) == []


def test_check_of_no_known_key_falls_back_to_mentions() -> None:
    assert "delete_order" in _names(task("shop", "m", "Please delete the order.", check('final_state["nowhere"]["x"] == 1')))


def test_schemas_only() -> None:
    environment = Environment(
        env_id="e", tools=(tool("get_price", "Price of a stock", symbol={}), tool("send_mail", "Write a mail to someone"))
    )
    assert _names(Task(env_id="e", task_id="t", prompt="What is the price of ACME?"), environment) == ["get_price"]


@pytest.mark.parametrize("state", [None, [], "text", 3, {"orders": None}, {"orders": [1, 2]}, {1: 2}, SHOP_STATE])
def test_any_initial_state(state: object) -> None:
    some = dataclasses.replace(SHIP, initial_state=state)
    assert "update_order_status" in _names(some)


def test_reward_features_by_bins() -> None:
    facts = [CheckFacts(kind="equality")] * 3 + [CheckFacts(kind="count")]
    assert reward_features(facts, 2) == (
        "checks>=1", "checks>=2", "checks>=3", "checks>=4", "count>0.0", "depth>=1", "depth>=2",
        "equality>0.0", "equality>0.25", "equality>0.5",
    )  # fmt: skip
    assert reward_features([], 0) == ()
    assert "checks>=256" in reward_features([CheckFacts()] * 445, 0)


@pytest.mark.parametrize("field", [{"ops": ("dance",)}, {"gates": ("moat",)}, {"deps": (("lookup", "dance"),)}])
def test_closed_vocabularies(field: dict) -> None:
    with pytest.raises(ValueError, match=r"dance|moat"):
        AbstractRecord(**field)


def test_operations_found_in_generated_worlds() -> None:
    """What the analysis says a task needs, against what its gold trajectory changes (read by this test only)."""
    pool = generate(ToolWorldConfig(environments=6, tasks=20))
    found = wanted = both = 0
    for environment in pool.environments:
        table = read_operations(environment)
        weight = word_weights(table.operations)
        changes = {operation.name for operation in table.operations if not operation.read_only}
        for some in pool.tasks:
            if some.env_id != environment.env_id or not some.ground_truth:
                continue
            gold = {call["name"] for call in some.ground_truth} & changes
            ours = {operation.name for operation in read_task(some, table, weight).operations} & changes
            found, wanted, both = found + len(ours), wanted + len(gold), both + len(ours & gold)
    assert wanted > 200
    assert both / wanted > 0.9
    assert both / found > 0.8
