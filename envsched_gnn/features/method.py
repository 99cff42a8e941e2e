"""What one method or check does to the state, found by one walk in execution order. Nothing is executed.

Knows: Python statements and expressions; state lives in attributes of `self`, or in a mapping that is given as an argument.
Does not know: classes, how the facts of a helper method are found, what they are used for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from envsched_gnn.features.gates import guard_gates, is_failure
from envsched_gnn.features.places import ANY, Place, Places, expectations, filters, is_self
from envsched_gnn.features.syntax import children

Function = ast.FunctionDef | ast.AsyncFunctionDef

_GROWS = frozenset({"append", "add", "insert", "extend", "setdefault", "appendleft", "update"})
_SHRINKS = frozenset({"pop", "remove", "discard", "clear", "popitem", "popleft", "difference_update"})


@dataclass(kw_only=True)
class MethodFacts:
    """What one method does, helpers included."""

    parameters: tuple[str, ...] = ()
    docstring: str = ""
    reads: frozenset[tuple[str, str]] = frozenset()
    writes: frozenset[tuple[str, str]] = frozenset()
    inserts: frozenset[str] = frozenset()
    removes: frozenset[str] = frozenset()
    gates: frozenset[str] = frozenset()
    values: dict[tuple[str, str], frozenset[object]] = field(default_factory=dict)
    """What each attribute is set to, where only constants are."""
    initial_values: dict[tuple[str, str], frozenset[object]] = field(default_factory=dict)
    """Constants that attributes of new entities start with."""
    places: frozenset[Place] = frozenset()
    """What it reads, place by place."""
    compared: frozenset[tuple[Place, object]] = frozenset()
    """Constants that places are compared with by ==, is, or in."""
    id_parameters: dict[str, str] = field(default_factory=dict)
    returns: Place | None = None


Helpers = Callable[[str], MethodFacts | None]
"""Facts of the method of that name; None if the class has none."""


class Method:
    """One walk over a method in execution order, with the places that its variables stand for."""

    def __init__(self, function: Function, *, keys: frozenset[str], helpers: Helpers, state: str | None = None) -> None:
        self.helpers = helpers
        self.function = function
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        self.parameters = tuple(argument.arg for argument in arguments if argument.arg != "self")
        self.state = state
        self.places = Places(keys, lambda call: _returned(call, helpers), state)
        self.place = self.places.of
        self.reads: set[tuple[str, str]] = set()
        self.writes: set[tuple[str, str]] = set()
        self.inserts: set[str] = set()
        self.removes: set[str] = set()
        self.gates: set[str] = set()
        self.values: dict[tuple[str, str], set[object]] = {}
        self.initial_values: dict[tuple[str, str], set[object]] = {}
        self.read_places: set[Place] = set()
        self.compared: set[tuple[Place, object]] = set()
        self.id_parameters: dict[str, str] = {}
        self.returns: Place | None = None

    def read(self) -> MethodFacts:
        """The whole method, statement by statement. Call it once."""
        for statement in self.function.body:
            self.visit(statement)
        return MethodFacts(
            parameters=self.parameters,
            docstring=ast.get_docstring(self.function) or "",
            reads=frozenset(self.reads),
            writes=frozenset(self.writes),
            inserts=frozenset(self.inserts),
            removes=frozenset(self.removes),
            gates=frozenset(self.gates),
            values={place: frozenset(values) for place, values in self.values.items() if ANY not in values},
            initial_values={place: frozenset(values) for place, values in self.initial_values.items()},
            places=frozenset(self.read_places),
            compared=frozenset(self.compared),
            id_parameters=self.id_parameters,
            returns=self.returns,
        )

    # Walk

    def visit(self, node: ast.AST) -> None:
        """A node by its kind (_VISITS); of any other its children."""
        special = _VISITS.get(type(node))
        if special is not None:
            special(self, node)
        else:
            self.visit_all(children(node))

    def visit_assign(self, node: ast.Assign) -> None:
        """The value is read before its targets are written: `a = b = value`."""
        self.visit(node.value)
        for target in node.targets:
            self.assign(target, node.value)

    def visit_single_assign(self, node: ast.AnnAssign | ast.NamedExpr) -> None:
        """`name: type = value` and `(name := value)`; an annotation alone does nothing."""
        if node.value is not None:
            self.visit(node.value)
            self.assign(node.target, node.value)

    def visit_augmented(self, node: ast.AugAssign) -> None:
        """`target += value` reads its target and writes it."""
        self.visit(node.value)
        self.visit_load(node.target)
        self.write(node.target)

    def visit_delete(self, node: ast.Delete) -> None:
        """`del self.orders[p]` removes an entity, or a value of one."""
        for target in node.targets:
            self.shrink(self.place(target))

    def visit_for(self, node: ast.For | ast.AsyncFor) -> None:
        """The loop's variable stands for an element of what is run through."""
        self.visit(node.iter)
        self.places.bind_element(node.target, node.iter)
        self.visit_all([*node.body, *node.orelse])

    def visit_display(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        """Its loops come before what it collects, unlike in the source."""
        self.visit_all(node.generators)
        self.visit_all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """One loop of a display, as `visit_for`."""
        self.visit(node.iter)
        self.places.bind_element(node.target, node.iter)
        self.visit_all(node.ifs)

    def visit_if(self, node: ast.If) -> None:
        """A test whose body ends in failure is a gate. Functions of a verifier have none: there a state is given."""
        self.visit(node.test)
        if self.state is None and is_failure(node.body[-1]):
            self.gates |= guard_gates(node.test, node.body[-1], self)
        self.visit_all([*node.body, *node.orelse])

    def visit_handler(self, node: ast.ExceptHandler) -> None:
        """An exception that ends in failure: a look-up that found nothing."""
        if is_failure(node.body[-1]):
            self.gates.add("identifier_resolution")
        self.visit_all(node.body)

    def visit_return(self, node: ast.Return) -> None:
        """The first place that is returned counts."""
        if node.value is not None:
            self.visit(node.value)
            self.returns = self.returns or self.place(node.value)

    def visit_all(self, nodes: Iterable[ast.AST]) -> None:
        """Nodes in the order given."""
        for node in nodes:
            self.visit(node)

    def visit_load(self, node: ast.AST) -> None:
        """An attribute or an element is read; its key may show that a parameter names an entity."""
        place = self.place(node)
        self.reads_place(place)
        if isinstance(node, ast.Subscript):
            self.names_entity(self.place(node.value), node.slice)
        self.visit_all(children(node))

    def reads_place(self, place: Place | None) -> None:
        """Remember a place that is read; None is no place."""
        if place is not None:
            self.reads.add((place.key, place.attribute))
            self.read_places.add(place)

    def visit_compare(self, node: ast.Compare) -> None:
        """`p in self.orders` and `o["order_id"] == p` show that parameter p names an entity; `o["status"] == "open"` what is expected."""
        left, left_place = node.left, self.place(node.left)
        for operator, right in zip(node.ops, node.comparators, strict=True):
            right_place = self.place(right)
            sides = ((left_place, right), (right_place, left))
            if isinstance(operator, (ast.Eq, ast.In, ast.Is)):
                self.compared.update(pair for place, other in sides if place is not None for pair in expectations(place, other))
            if isinstance(operator, (ast.In, ast.NotIn)):
                key = self.places.constant(left)
                if key != ANY and right_place is not None and not right_place.path:
                    self.reads_place(right_place.below(key))
                self.names_entity(right_place, left)
            elif isinstance(operator, (ast.Eq, ast.NotEq)):
                for place, other in sides:
                    if place is not None and place.path[:1] == (ANY,) and len(place.path) == 2 and place.attribute.endswith("id"):
                        self.names_entity(Place(place.key), other)
            left, left_place = right, right_place
        self.visit_all(children(node))

    def visit_call(self, node: ast.Call) -> None:
        """A method of the class adds its own facts; one of a place may change or read it."""
        helper = _helper(node, self.helpers)
        if helper is not None:
            self.include(helper, node)
        if isinstance(node.func, ast.Attribute):
            place = self.place(node.func.value)
            if place is not None:
                self.mutate(place, node.func.attr, node.args)
                if node.func.attr in ("get", "pop") and node.args:
                    self.names_entity(place, node.args[0])
            self.reads_place(self.place(node))
        self.visit(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        self.visit_all([*node.args, *node.keywords])

    # Effects

    def assign(self, target: ast.AST, value: ast.expr) -> None:
        """A name comes to stand for what the value is; anything else is written; tuples part by part."""
        match target:
            case ast.Name(id=name):
                self.places.bind(name, value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = (
                    value.elts if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(targets) else [value] * len(targets)
                )
                for part, part_value in zip(targets, values, strict=True):
                    self.assign(part, part_value)
            case _:
                if isinstance(target, ast.Subscript):
                    self.names_entity(self.place(target.value), target.slice)
                self.write(target, value)

    def write(self, target: ast.AST, value: ast.expr | None = None) -> None:
        """A new value for a place: an attribute, a new entity, an old one put back (no write), a changed copy, what a filter left."""
        place = None if isinstance(target, ast.Name) else self.place(target)
        if place is None:
            return
        if place.attribute not in (ANY, ""):
            self.sets(place.key, place.attribute, value.value if isinstance(value, ast.Constant) else ANY)
        elif filters(value) or (isinstance(value, ast.Name) and value.id in self.places.filtered):
            self.removes.add(place.key)
        elif not place.path:
            self.sets(place.key, "")
        elif not isinstance(value, ast.Name) or place.key not in self.places.keys_behind(value.id):
            self.insert(place.key, value)
        elif value.id not in self.places.names:
            self.sets(place.key, ANY)

    def insert(self, key: str, entity: ast.expr | None) -> None:
        """A new entity; where it is written out, its attributes start with these constants."""
        self.inserts.add(key)
        if isinstance(entity, ast.Dict):
            for name, value in zip(entity.keys, entity.values, strict=True):
                if isinstance(name, ast.Constant) and isinstance(value, ast.Constant):
                    self.initial_values.setdefault((key, str(name.value)), set()).add(value.value)

    def shrink(self, place: Place | None) -> None:
        """Something of a place is gone: an entity, or a value in an attribute."""
        if place is None:
            return
        if place.attribute in (ANY, ""):
            self.removes.add(place.key)
        else:
            self.sets(place.key, place.attribute)

    def mutate(self, place: Place, method: str, arguments: list[ast.expr]) -> None:
        """What a method of dict, list or set does to a place: `pop`, `update`, `append` and their like."""
        if method in _SHRINKS:
            self.shrink(place)
        elif method == "update" and place.path:
            keys = arguments[0].keys if arguments and isinstance(arguments[0], ast.Dict) else [None]
            names = [key.value if isinstance(key, ast.Constant) else ANY for key in keys]
            for name in names:
                self.sets(place.key, str(name) if place.attribute == ANY else place.attribute)
        elif method in _GROWS:
            if place.attribute in (ANY, ""):
                self.insert(place.key, arguments[0] if arguments else None)
            else:
                self.sets(place.key, place.attribute)

    def sets(self, key: str, attribute: str, value: object = ANY) -> None:
        """An attribute gets a value; ANY where that is no constant."""
        self.writes.add((key, attribute))
        self.values.setdefault((key, attribute), set()).add(value)

    def names_entity(self, place: Place | None, key: ast.expr) -> None:
        """A parameter that looks up a whole table names one of its entities."""
        if place is not None and not place.path and isinstance(key, ast.Name) and key.id in self.parameters:
            self.id_parameters.setdefault(key.id, place.key)

    # Helpers of the class

    def include(self, facts: MethodFacts, node: ast.Call) -> None:
        """The facts of a called method, its parameters read as what they are given here."""
        self.reads |= facts.reads
        self.inserts |= facts.inserts
        self.removes |= facts.removes
        self.gates |= facts.gates
        for key, attribute in facts.writes:
            for value in facts.values.get((key, attribute), {ANY}):
                self.sets(key, attribute, value)
        for written, values in facts.initial_values.items():
            self.initial_values.setdefault(written, set()).update(values)
        given = dict(zip(facts.parameters, node.args, strict=False)) | {word.arg: word.value for word in node.keywords if word.arg}
        for parameter, key in facts.id_parameters.items():
            if parameter in given:
                self.names_entity(Place(key), given[parameter])


def _helper(node: ast.Call, helpers: Helpers) -> MethodFacts | None:
    """Facts of the method that `self.method(...)` calls."""
    return helpers(node.func.attr) if isinstance(node.func, ast.Attribute) and is_self(node.func.value) else None


def _returned(node: ast.Call, helpers: Helpers) -> Place | None:
    helper = _helper(node, helpers)
    return helper.returns if helper else None


_VISITS: dict[type, Callable[[Method, Any], None]] = {
    ast.Assign: Method.visit_assign,
    ast.AnnAssign: Method.visit_single_assign,
    ast.NamedExpr: Method.visit_single_assign,
    ast.AugAssign: Method.visit_augmented,
    ast.Delete: Method.visit_delete,
    ast.For: Method.visit_for,
    ast.AsyncFor: Method.visit_for,
    ast.ListComp: Method.visit_display,
    ast.SetComp: Method.visit_display,
    ast.GeneratorExp: Method.visit_display,
    ast.DictComp: Method.visit_display,
    ast.comprehension: Method.visit_comprehension,
    ast.If: Method.visit_if,
    ast.ExceptHandler: Method.visit_handler,
    ast.Return: Method.visit_return,
    ast.Call: Method.visit_call,
    ast.Compare: Method.visit_compare,
    ast.Attribute: Method.visit_load,
    ast.Subscript: Method.visit_load,
}
"""Any other node: its children, in source order."""
