"""Static analysis of environment classes and tool schemas."""

import pytest

from envsched_gnn.features.operations import Operation, OperationTable, read_operations, verb_kind, words
from envsched_gnn.records import Environment
from tests.features.shop import SHOP_ENVIRONMENT, tool


def _of(source: str, *names: str) -> dict[str, Operation]:
    environment = Environment(env_id="e", name="E", source=source, tools=tuple(tool(name) for name in names))
    return {operation.name: operation for operation in read_operations(environment).operations}


@pytest.fixture
def shop() -> dict[str, Operation]:
    return {operation.name: operation for operation in read_operations(SHOP_ENVIRONMENT).operations}


def test_kinds(shop: dict[str, Operation]) -> None:
    assert {name: operation.kind for name, operation in shop.items()} == {
        "find_customer_by_name": "search",
        "list_orders_of_customer": "list",
        "get_order": "lookup",
        "update_order_status": "update",
        "create_order": "create",
        "delete_order": "delete",
        "advance_day": "update",
    }


def test_effects_through_aliases_and_helpers(shop: dict[str, Operation]) -> None:
    assert shop["update_order_status"].writes == {("orders", "status")}
    assert ("orders", "status") in shop["update_order_status"].reads
    assert shop["create_order"].inserts == {"orders"}
    assert shop["delete_order"].removes == {"orders"}
    assert shop["advance_day"].writes == {("today", "")}
    assert all(shop[name].read_only for name in ("find_customer_by_name", "list_orders_of_customer", "get_order"))


def test_id_parameters_through_helpers(shop: dict[str, Operation]) -> None:
    assert shop["update_order_status"].id_parameters == {"order_id": "orders"}
    assert shop["create_order"].id_parameters == {"order_id": "orders", "customer_id": "customers"}
    assert shop["find_customer_by_name"].id_parameters == {}


def test_gates(shop: dict[str, Operation]) -> None:
    assert shop["update_order_status"].gates == ("identifier_resolution", "state_precondition", "value_range")
    assert shop["create_order"].gates == ("capacity_or_limit", "identifier_resolution", "uniqueness")
    assert shop["advance_day"].gates == ()


FORMS = """
import copy
class E:
    def __init__(self, config):
        self.items = {}
        self.groups = {}
        self.log = []
        self.settings = {}
    def loop(self):
        for key, item in self.items.items():
            item["seen"] = True
    def chosen(self, name):
        item = next((x for x in self.items.values() if x["name"] == name), None)
        item["picked"] = 1
    def nested(self, g, x):
        self.groups[g]["members"].append(x)
    def merge(self, g):
        self.groups[g].update({"open": True})
    def note(self, text):
        self.log.append(text)
    def drop(self, i):
        self.items.pop(i)
    def keep(self, i):
        self.items = {k: v for k, v in self.items.items() if k != i}
    def back(self, i):
        item = self.items[i]
        item["n"] += 1
        self.items[i] = item
    def copied(self, i, changes):
        item = copy.deepcopy(self.items[i])
        item["n"] = changes
        self.items[i] = item
    def mode(self, value):
        self.settings["mode"] = value
    def pair(self, i):
        a, b = self.items[i], self.groups
        a["x"] = 1
    def local(self, i):
        item = dict(self.items[i])
        item["shown"] = True
        return item
    def rebound(self, i):
        item = self.items[i]
        item = {}
        item["n"] = 1
    def a(self):
        self.b()
    def b(self):
        self.a()
        self.log.clear()
"""


@pytest.mark.parametrize(
    ("method", "writes", "inserts", "removes"),
    [
        ("loop", {("items", "seen")}, set(), set()),
        ("chosen", {("items", "picked")}, set(), set()),
        ("nested", {("groups", "members")}, set(), set()),
        ("merge", {("groups", "open")}, set(), set()),
        ("note", set(), {"log"}, set()),
        ("drop", set(), set(), {"items"}),
        ("keep", set(), set(), {"items"}),
        ("back", {("items", "n")}, set(), set()),
        ("copied", {("items", "*")}, set(), set()),
        ("mode", {("settings", "mode")}, set(), set()),
        ("pair", {("items", "x")}, set(), set()),
        ("local", set(), set(), set()),
        ("rebound", set(), set(), set()),
        ("b", set(), set(), {"log"}),
        ("a", set(), set(), {"log"}),
    ],
)
def test_forms_of_writing(method: str, writes: set, inserts: set, removes: set) -> None:
    operation = _of(FORMS, method)[method]
    assert (operation.writes, operation.inserts, operation.removes) == (writes, inserts, removes)


GUARDS = """
class E:
    def __init__(self, config):
        self.users = {}
        self.rooms = {}
    def role(self, u):
        if self.users[u]["role"] != "admin":
            raise PermissionError("no")
    def eligible(self, u):
        if not self.users[u]["eligible"]:
            return False
    def late(self, u, now):
        if now > self.users[u]["due_date"]:
            return None
    def reference(self, u):
        room = self.users[u]["room"]
        if room not in self.rooms:
            return {"error": "gone"}
    def size(self, n):
        if n <= 0 or n > 9:
            return {"success": False}
    def unique(self, name):
        if any(u["name"] == name for u in self.users.values()):
            return {"success": False, "error": "name in use"}
    def soft(self, n):
        if n > 3:
            n = 3
        return {"success": True}
    def caught(self, u):
        try:
            return self.users[u]
        except KeyError:
            return {"success": False, "error": "no"}
"""


@pytest.mark.parametrize(
    ("method", "gates"),
    [
        ("role", ("authorization",)),
        ("eligible", ("eligibility",)),
        ("late", ("temporal",)),
        ("reference", ("referential_integrity",)),
        ("size", ("value_range",)),
        ("unique", ("uniqueness",)),
        ("soft", ()),
        ("caught", ("identifier_resolution",)),
    ],
)
def test_forms_of_guards(method: str, gates: tuple[str, ...]) -> None:
    assert _of(GUARDS, method)[method].gates == gates


def test_without_source_from_schemas() -> None:
    tools = (tool("TradingBot.place_order", "Place an order.", order_type={"enum": ["buy"]}, symbol={}), tool("get_stock_info", symbol={}))
    table = read_operations(Environment(env_id="e", env_type="bfcl", tools=tools))
    assert not table.analysed
    assert [operation.kind for operation in table.operations] == ["create", "lookup"]
    assert table.operations[0].gates == ("identifier_resolution", "value_range")
    assert list(table.operations[0].id_parameters) == ["symbol"]


@pytest.mark.parametrize("source", ["class E:\n  def", "x = 1", "\x00", "\udc80", "class E:\n    x = " + "(" * 5000 + ")" * 5000])
def test_source_that_does_not_parse_falls_back_to_schemas(source: str) -> None:
    table = read_operations(Environment(env_id="e", name="E", source=source, tools=(tool("list_things"),)))
    assert [operation.kind for operation in table.operations] == ["list"]


def test_class_without_methods_tools_without_schema_and_no_tools() -> None:
    assert read_operations(Environment(env_id="e", name="E", source="class E:\n    pass")) == OperationTable(operations=(), analysed=True)
    assert read_operations(Environment(env_id="e")).operations == ()
    listed = read_operations(
        Environment(env_id="e", operations=({"name": "wipe", "type": "state_change", "description": "All"}, {"odd": 1}))
    )
    assert [(operation.name, operation.kind) for operation in listed.operations] == [("wipe", "update")]


def test_words_and_verbs() -> None:
    assert words("Update the customerOrders of user_id 42") == ["updat", "customer", "order", "user", "id", "42"]
    assert [verb_kind(name) for name in ("getOrder", "bulk_delete", "frobnicate", "API.send_message")] == [
        "lookup",
        "update",
        None,
        "notify",
    ]
