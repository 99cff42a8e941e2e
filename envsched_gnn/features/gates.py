"""Which kind of precondition a guard clause enforces.

Knows: `if test: return failure` / `raise`, and the closed vocabulary of gate types.
Does not know: tasks, tools, whether a guard is ever reached.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from envsched_gnn.features.syntax import by_level

if TYPE_CHECKING:
    from envsched_gnn.features.places import Places

GATES = (
    "identifier_resolution", "state_precondition", "eligibility", "authorization", "uniqueness",
    "capacity_or_limit", "temporal", "value_range", "referential_integrity",
)  # fmt: skip
"""Gate types (ours)."""

_AUTHORIZATION = re.compile(r"permission|authori[sz]|forbidden|\brole\b|\badmin|\bowner|password|credential|log(ged)? ?in\b")
_ELIGIBILITY = re.compile(r"eligib|qualif|prerequisite|not allowed|entitled|certified|must be (a |an )?(registered|verified)")
_CAPACITY = re.compile(r"capacit|limit|maximum|\bmax\b|\bfull\b|insufficient|enough|exceed|stock|balance|quota|available|quantit|budget")
_TEMPORAL = re.compile(r"\bdates?\b|\btimes?\b|timestamp|deadline|expir|overdue|\bbefore\b|\bafter\b|\bdue\b|period|schedul|\bpast\b")
_UNIQUE = re.compile(r"already exist|duplicate|unique|already (in|has|registered|assigned|enrolled)|exists already|taken")
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Context(Protocol):
    """What a guard needs to know of its method."""

    parameters: tuple[str, ...]
    places: Places


def is_failure(statement: ast.stmt) -> bool:
    """Whether a statement ends a method with failure: raise, or return of False, None, or a value that says `success: False` or `error`."""
    match statement:
        case ast.Raise():
            return True
        case ast.Return(value=None) | ast.Return(value=ast.Constant(value=False | None)):
            return True
        case ast.Return(value=ast.Tuple(elts=[ast.Constant(value=False), *_])):
            return True
        case ast.Return(value=ast.Dict(keys=keys, values=values)):
            return any(_says_failure(key, value) for key, value in zip(keys, values, strict=True))
        case ast.Return(value=ast.Call(func=function)):
            return bool(re.search(r"err|fail|reject|deny", _name(function)))
    return False


def _says_failure(key: ast.expr | None, value: ast.expr) -> bool:
    if not isinstance(key, ast.Constant):
        return False
    return key.value == "error" or (key.value in ("success", "ok") and isinstance(value, ast.Constant) and value.value is False)


def _name(node: ast.AST) -> str:
    return node.attr.lower() if isinstance(node, ast.Attribute) else node.id.lower() if isinstance(node, ast.Name) else ""


def guard_gates(test: ast.expr, failure: ast.stmt, context: Context) -> set[str]:
    """Gate types of one guard: of each operand of its and / or, with the failure's message as a hint."""
    message = _text(by_level(failure))
    operands = test.values if isinstance(test, ast.BoolOp) else [test]
    return {_gate(operand, message, context) for operand in operands}


def _gate(test: ast.expr, message: str, context: Context) -> str:
    nodes = by_level(test)
    own = _text(nodes)
    text = f"{own} {message}"
    if _AUTHORIZATION.search(text):
        return "authorization"
    if _ELIGIBILITY.search(text):
        return "eligibility"
    missing = _missing(test, context)
    if missing is not None:
        return missing
    if _UNIQUE.search(message) or _present(test, context):
        return "uniqueness"
    ordered = any(isinstance(op, _ORDERED) for node in nodes if isinstance(node, ast.Compare) for op in node.ops)
    if ordered and _TEMPORAL.search(own):
        return "temporal"
    touched = any(context.places.of(node) is not None for node in nodes)
    if ordered and (touched or _CAPACITY.search(text)):
        return "capacity_or_limit"
    if touched:
        return "state_precondition"
    return "temporal" if _TEMPORAL.search(own) else "value_range"


def _missing(test: ast.expr, context: Context) -> str | None:
    """`id not in self.orders`, `order is None`, `not order`: a reference that does not resolve."""
    match test:
        case ast.Compare(left=key, ops=[ast.NotIn()], comparators=[container]):
            place = context.places.of(container)
            if place is None or place.attribute not in ("", "*"):
                return None
            return "identifier_resolution" if isinstance(key, ast.Name) and key.id in context.parameters else "referential_integrity"
        case ast.Compare(left=value, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None)]):
            return "identifier_resolution" if _is_entity(value, context) else None
        case ast.UnaryOp(op=ast.Not(), operand=value):
            return "identifier_resolution" if _is_entity(value, context) else None
    return None


def _is_entity(node: ast.AST, context: Context) -> bool:
    place = context.places.of(node)
    return place is not None and place.attribute in ("", "*")


def _present(test: ast.expr, context: Context) -> bool:
    """`id in self.orders`, `any(o["name"] == name for o in ...)`: something that must not be there yet."""
    match test:
        case ast.Compare(ops=[ast.In()], comparators=[container]):
            return _is_entity(container, context)
        case ast.Call(func=ast.Name(id="any")):
            return True
    return False


def _text(nodes: Sequence[ast.AST]) -> str:
    return " ".join(_strings(nodes)).replace("_", " ").lower()


def _strings(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
