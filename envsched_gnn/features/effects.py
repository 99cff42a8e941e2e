"""Static reading of an environment class: what every method reads, writes, guards and names by id. Nothing is executed.

Knows: Python syntax; state lives in attributes of `self`; aliases (`o = self.orders[id]`), helper methods, loops and comprehensions.
Does not know: tools, verbs, tasks. It follows plain assignments, not objects that escape into other classes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from envsched_gnn.features.gates import guard_gates, is_failure
from envsched_gnn.features.places import ANY, Place, Places, filters, is_self, is_self_call
from envsched_gnn.features.syntax import children, parse

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


@dataclass(frozen=True, kw_only=True)
class ClassFacts:
    """What an environment class does."""

    methods: dict[str, MethodFacts]
    """All methods but `__init__`, in source order."""
    state_keys: frozenset[str]
    """Attributes of `self` that are assigned somewhere."""


def read_class(source: str, name: str) -> ClassFacts | None:
    """Facts of class `name` (else of the class with the most methods); None if the source does not parse or has no class."""
    tree = parse(source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)] if tree else []
    if not classes:
        return None
    chosen = next((node for node in classes if node.name == name), None) or max(classes, key=lambda node: len(_functions(node)))
    functions = {function.name: function for function in _functions(chosen)}
    keys = frozenset(_assigned_attributes(chosen))
    reader = _Reader(functions, keys)
    methods = {method: reader.facts(method) for method in functions if method != "__init__"}
    return ClassFacts(methods=methods, state_keys=keys)


def read_function(function: ast.FunctionDef, state: str) -> MethodFacts:
    """Facts of one function that is given the state as a mapping in argument `state`. Guards are not read."""
    try:
        return _Method(_Reader({}, frozenset()), function, state).read()
    except RecursionError:
        return MethodFacts()


def _functions(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [child for child in node.body if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _assigned_attributes(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and is_self(child.value):
            yield child.attr


class _Reader:
    """Reads methods once each, helpers on demand."""

    def __init__(self, functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef], keys: frozenset[str]) -> None:
        self.functions = functions
        self.keys = keys
        self.done: dict[str, MethodFacts] = {}
        self.active: set[str] = set()

    def facts(self, name: str) -> MethodFacts:
        """Facts of one method; a recursive call and a method too deep to walk contribute nothing."""
        if name in self.done:
            return self.done[name]
        if name in self.active:
            return MethodFacts()
        self.active.add(name)
        function = self.functions[name]
        try:
            self.done[name] = _Method(self, function).read()
        except RecursionError:
            self.done[name] = MethodFacts()
        self.active.discard(name)
        return self.done[name]


class _Method:
    """One walk over a method in execution order, with the places that its variables stand for."""

    def __init__(self, reader: _Reader, function: ast.FunctionDef | ast.AsyncFunctionDef, state: str | None = None) -> None:
        self.reader = reader
        self.function = function
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        self.parameters = tuple(argument.arg for argument in arguments if argument.arg != "self")
        self.state = state
        self.places = Places(reader.keys, self.returned, state)
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
        match node:
            case ast.Assign(targets=targets, value=value):
                self.visit(value)
                for target in targets:
                    self.assign(target, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.visit(value)
                self.assign(target, value)
            case ast.NamedExpr(target=target, value=value):
                self.visit(value)
                self.assign(target, value)
            case ast.AugAssign(target=target, value=value):
                self.visit(value)
                self.visit_load(target)
                self.write(target)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.shrink(self.place(target))
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                self.visit(iterable)
                self.places.bind_element(target, iterable)
                self.visit_all([*node.body, *node.orelse])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self.visit_all(node.generators)
                self.visit_all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
            case ast.comprehension(target=target, iter=iterable, ifs=conditions):
                self.visit(iterable)
                self.places.bind_element(target, iterable)
                self.visit_all(conditions)
            case ast.If(test=test, body=body):
                self.visit(test)
                if self.state is None and is_failure(body[-1]):
                    self.gates |= guard_gates(test, body[-1], self)
                self.visit_all([*body, *node.orelse])
            case ast.ExceptHandler(body=body):
                if body and is_failure(body[-1]):
                    self.gates.add("identifier_resolution")
                self.visit_all(body)
            case ast.Return(value=value) if value is not None:
                self.visit(value)
                self.returns = self.returns or self.place(value)
            case ast.Call():
                self.call(node)
            case ast.Compare():
                self.compare(node)
            case ast.Attribute() | ast.Subscript():
                self.visit_load(node)
            case _:
                self.visit_all(children(node))

    def visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def visit_load(self, node: ast.AST) -> None:
        place = self.place(node)
        self.reads_place(place)
        if isinstance(node, ast.Subscript):
            self.names_entity(self.place(node.value), node.slice)
        self.visit_all(children(node))

    def reads_place(self, place: Place | None) -> None:
        if place is not None:
            self.reads.add((place.key, place.attribute))
            self.read_places.add(place)

    def compare(self, node: ast.Compare) -> None:
        """`p in self.orders` and `o["order_id"] == p` show that parameter p names an entity; `o["status"] == "open"` what is expected."""
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, (ast.Eq, ast.In, ast.Is)):
                self.compared |= set(self.places.expectations(left, right))
            if isinstance(operator, (ast.In, ast.NotIn)) and self.places.constant(left) != ANY:
                owner = self.place(right)
                self.reads_place(owner.below(self.places.constant(left)) if owner is not None and not owner.path else None)
            if isinstance(operator, (ast.In, ast.NotIn)):
                self.names_entity(self.place(right), left)
            elif isinstance(operator, (ast.Eq, ast.NotEq)):
                for one, other in ((left, right), (right, left)):
                    place = self.place(one)
                    if place is not None and place.path[:1] == (ANY,) and place.attribute.endswith("id") and len(place.path) == 2:
                        self.names_entity(Place(place.key), other)
            left = right
        self.visit_all(children(node))

    def call(self, node: ast.Call) -> None:
        helper = self.helper(node)
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
        if place is None:
            return
        if place.attribute in (ANY, ""):
            self.removes.add(place.key)
        else:
            self.sets(place.key, place.attribute)

    def mutate(self, place: Place, method: str, arguments: list[ast.expr]) -> None:
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
        self.writes.add((key, attribute))
        self.values.setdefault((key, attribute), set()).add(value)

    def names_entity(self, place: Place | None, key: ast.expr) -> None:
        if place is not None and not place.path and isinstance(key, ast.Name) and key.id in self.parameters:
            self.id_parameters.setdefault(key.id, place.key)

    # Helpers of the class

    def helper(self, node: ast.Call) -> str | None:
        if is_self_call(node) and isinstance(node.func, ast.Attribute) and node.func.attr in self.reader.functions:
            return node.func.attr
        return None

    def returned(self, node: ast.Call) -> Place | None:
        name = self.helper(node)
        return self.reader.facts(name).returns if name else None

    def include(self, name: str, node: ast.Call) -> None:
        facts = self.reader.facts(name)
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
