"""Where in the state an expression points: aliases of `self.orders`, followed through variables, loops and comprehensions.

Knows: Python expressions and plain assignments.
Does not know: what is done to a place.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ANY = "*"
"""An entity id or attribute that is known only at run time."""

_CONTAINERS = frozenset({"list", "sorted", "reversed", "tuple", "set", "iter", "next", "min", "max", "filter"})


@dataclass(frozen=True)
class Place:
    """A part of the state: a state key and the path below it (constants, or ANY)."""

    key: str
    path: tuple[str, ...] = ()

    def below(self, part: str) -> Place:
        """The place one step down; paths deeper than 4 are cut."""
        return Place(self.key, (*self.path, part)[:4])

    @property
    def attribute(self) -> str:
        """Its attribute: the first constant of the path; ANY for a whole entity, `` for the value itself."""
        return next((part for part in self.path if part != ANY), ANY if self.path else "")


class Places:
    """The variables of one function, and the places that they stand for.

    State keys are the attributes `keys` of `self`; or, if `state` is given, whatever indexes the variable of that name. `returned` says
    what a call of a method of `self` returns.
    """

    def __init__(self, keys: frozenset[str], returned: Callable[[ast.Call], Place | None], state: str | None = None) -> None:
        self.keys = keys
        self.state = state
        self.returned = returned
        self.names: dict[str, Place] = {}
        self.copies: dict[str, Place] = {}
        self.filtered: set[str] = set()
        self.strings: dict[str, str] = {}

    def bind(self, name: str, value: ast.expr) -> None:
        """`name = value`."""
        for table, found in ((self.names, self.of(value)), (self.copies, self.of(_copied(value)))):
            table.pop(name, None)
            if found is not None:
                table[name] = found
        if filters(value):
            self.filtered.add(name)
        self.strings.pop(name, None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            self.strings[name] = value.value

    def constant(self, node: ast.AST) -> str:
        """The string that a key is, directly or through a variable; else ANY."""
        if isinstance(node, ast.Name):
            return self.strings.get(node.id, ANY)
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ANY

    def keys_behind(self, name: str) -> set[str]:
        """State keys whose entity a variable is, or is a copy of."""
        return {table[name].key for table in (self.names, self.copies) if name in table}

    def of(self, node: ast.AST | None) -> Place | None:
        """The part of the state that an expression stands for, if it is one."""
        match node:
            case ast.Name(id=name):
                return self.names.get(name)
            case ast.Attribute(value=value, attr=attribute):
                if is_self(value):
                    return Place(attribute) if attribute in self.keys else None
                owner = self.of(value)
                return owner.below(attribute) if owner else None
            case ast.Subscript(value=value, slice=key):
                return self._at(value, key)
            case ast.BoolOp(values=values):
                return next((place for value in values if (place := self.of(value))), None)
            case ast.IfExp(body=body, orelse=orelse):
                return self.of(body) or self.of(orelse)
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                return self.of(value)
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                inner = self.of(element)
                return Place(inner.key, inner.path[:-1]) if inner and inner.path[-1:] == (ANY,) else None
            case ast.Call():
                return self._of_call(node)
        return None

    def _at(self, value: ast.expr, key: ast.expr) -> Place | None:
        """`value[key]`."""
        if isinstance(value, ast.Name) and value.id == self.state:
            name = self.constant(key)
            return None if name == ANY else Place(name)
        owner = self.of(value)
        return owner.below(self.constant(key)) if owner else None

    def _of_call(self, node: ast.Call) -> Place | None:
        if is_self_call(node):
            return self.returned(node)
        match node.func:
            case ast.Attribute(value=value, attr="get" | "pop" | "setdefault"):
                return self._at(value, node.args[0]) if node.args else None
            case ast.Attribute(value=value, attr="values" | "items"):
                return self.of(value)
            case ast.Name(id=name) if name in _CONTAINERS and node.args:
                inner = self.of(node.args[0])
                return inner.below(ANY) if inner and name in ("next", "min", "max") else inner
        return None

    def expectations(self, left: ast.expr, right: ast.expr) -> Iterator[tuple[Place, object]]:
        """Places of a comparison, with the constants on its other side."""
        for one, other in ((left, right), (right, left)):
            place = self.of(one)
            values = other.elts if isinstance(other, (ast.Tuple, ast.List, ast.Set)) else [other]
            if place is not None:
                yield from ((place, value.value) for value in values if isinstance(value, ast.Constant))

    def bind_element(self, target: ast.AST, iterable: ast.expr) -> None:
        """`for o in self.orders.values()`, `for id, o in self.orders.items()`, `for n, o in enumerate(...)`."""
        pair = isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == 2
        if pair and isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "enumerate":
            iterable = iterable.args[0] if iterable.args else iterable
        element = target.elts[1] if pair and isinstance(target, (ast.Tuple, ast.List)) else target
        place = self.of(iterable)
        for name in (node.id for node in ast.walk(target) if isinstance(node, ast.Name)):
            self.names.pop(name, None)
        if place is not None and isinstance(element, ast.Name):
            self.names[element.id] = place.below(ANY)


def is_self(node: ast.AST) -> bool:
    """The name `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def is_self_call(node: ast.Call) -> bool:
    """`self.method(...)`."""
    return isinstance(node.func, ast.Attribute) and is_self(node.func.value)


def filters(node: ast.expr | None) -> bool:
    return isinstance(node, (ast.ListComp, ast.DictComp, ast.SetComp)) and any(part.ifs for part in node.generators)


def _copied(node: ast.expr) -> ast.expr | None:
    """The original of `dict(x)`, `x.copy()`, `copy.deepcopy(x)`, `{**x, ...}`."""
    match node:
        case ast.Call(func=ast.Name(id="dict" | "deepcopy" | "copy"), args=[value, *_]):
            return value
        case ast.Call(func=ast.Attribute(attr="deepcopy" | "copy"), args=[value]):
            return value
        case ast.Call(func=ast.Attribute(value=value, attr="copy"), args=[]):
            return value
        case ast.Dict(keys=[None, *_], values=[value, *_]):
            return value
    return None
