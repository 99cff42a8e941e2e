"""Where in the state an expression points: aliases of `self.orders`, followed through variables, loops and comprehensions.

Knows: Python expressions and plain assignments.
Does not know: what is done to a place.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ANY = "*"
"""An entity id or attribute that is known only at run time."""

_CONTAINERS = frozenset({"list", "sorted", "reversed", "tuple", "set", "iter", "next", "min", "max", "filter"})


class Place(NamedTuple):
    """A part of the state: a state key and the path below it (constants, or ANY)."""

    key: str
    path: tuple[str, ...] = ()

    def below(self, part: str) -> Place:
        """The place one step down; paths deeper than 4 are cut."""
        return Place(self.key, (*self.path, part)[:4])

    @property
    def attribute(self) -> str:
        """Its attribute: the first constant of the path; ANY for a whole entity, `` for the value itself."""
        for part in self.path:
            if part != ANY:
                return part
        return ANY if self.path else ""


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
        look = _LOOKS.get(type(node))
        return look(self, node) if look is not None else None

    def _of_name(self, node: ast.Name) -> Place | None:
        return self.names.get(node.id)

    def _of_attribute(self, node: ast.Attribute) -> Place | None:
        if is_self(node.value):
            return Place(node.attr) if node.attr in self.keys else None
        owner = self.of(node.value)
        return owner.below(node.attr) if owner else None

    def _of_subscript(self, node: ast.Subscript) -> Place | None:
        return self._at(node.value, node.slice)

    def _of_choice(self, node: ast.BoolOp | ast.IfExp) -> Place | None:
        values = node.values if isinstance(node, ast.BoolOp) else (node.body, node.orelse)
        return next((place for value in values if (place := self.of(value))), None)

    def _of_value(self, node: ast.NamedExpr | ast.Await | ast.Starred) -> Place | None:
        return self.of(node.value)

    def _of_display(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Place | None:
        inner = self.of(node.elt)
        return Place(inner.key, inner.path[:-1]) if inner and inner.path[-1:] == (ANY,) else None

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


_LOOKS: dict[type, Callable[[Places, Any], Place | None]] = {
    ast.Name: Places._of_name,
    ast.Attribute: Places._of_attribute,
    ast.Subscript: Places._of_subscript,
    ast.BoolOp: Places._of_choice,
    ast.IfExp: Places._of_choice,
    ast.NamedExpr: Places._of_value,
    ast.Await: Places._of_value,
    ast.Starred: Places._of_value,
    ast.ListComp: Places._of_display,
    ast.SetComp: Places._of_display,
    ast.GeneratorExp: Places._of_display,
    ast.Call: Places._of_call,
}


def expectations(place: Place, other: ast.expr) -> Iterator[tuple[Place, object]]:
    """A place with the constants that it is compared with."""
    values = other.elts if isinstance(other, (ast.Tuple, ast.List, ast.Set)) else [other]
    return ((place, value.value) for value in values if isinstance(value, ast.Constant))


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
