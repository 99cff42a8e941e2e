"""What a verifier's code says, read without running it.

Knows: the source of one check: its syntax, the state keys it reads, what kind of statement it makes.
Does not know: environments, whether a check is right, gold trajectories.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from functools import lru_cache

MAX_CODE = 200_000
"""Characters; a longer check is treated as one that does not parse (ours)."""

CHECK_KINDS = ("count", "aggregate", "comparison", "equality", "absence", "existence", "other")
"""What a check states about the final state; the first that fits (ours)."""

_AGGREGATES = frozenset({"all", "any", "max", "min", "sum", "sorted", "set"})


@dataclass(frozen=True, kw_only=True)
class CheckFacts:
    """The static reading of one check."""

    nodes: tuple[str, ...] = ()
    """AST node types in source order, without identifiers or values; empty if the code does not parse."""
    keys: frozenset[str] = frozenset()
    """Strings that index something: state keys, attributes, entity ids."""
    kind: str = "other"


def parse(source: str) -> ast.Module | None:
    """The syntax tree, or None for anything that Python cannot parse: broken, too long, too deep, or not encodable."""
    if len(source) > 10 * MAX_CODE:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=100_000)
def read_check(code: str) -> CheckFacts:
    """Facts of one check function; an unparsable one has none, and kind `other`."""
    tree = parse(code) if len(code) <= MAX_CODE else None
    if tree is None:
        return CheckFacts()
    nodes = _in_source_order(tree)
    return CheckFacts(
        nodes=tuple(type(node).__name__ for node in nodes if not isinstance(node, (ast.expr_context, ast.Module))),
        keys=frozenset(_keys(nodes)),
        kind=_kind(nodes),
    )


def _in_source_order(tree: ast.AST) -> list[ast.AST]:
    stack, nodes = [tree], []
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(reversed(list(ast.iter_child_nodes(node))))
    return nodes


def _keys(nodes: list[ast.AST]) -> set[str]:
    """Strings used as subscript, as first argument of `.get`, or left of `in`, directly or through a variable that holds one."""
    named = {
        target.id: node.value.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    keys = set()
    for node in nodes:
        for expression in _key_expressions(node):
            if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
                keys.add(expression.value)
            elif isinstance(expression, ast.Name) and expression.id in named:
                keys.add(named[expression.id])
    return keys


def _key_expressions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Subscript(slice=key):
            return [key]
        case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[key, *_]):
            return [key]
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn(), *_]):
            return [left]
    return []


def _kind(nodes: list[ast.AST]) -> str:
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    operators = {type(op) for node in nodes if isinstance(node, ast.Compare) for op in node.ops}
    if "len" in called:
        return "count"
    if called & _AGGREGATES:
        return "aggregate"
    if operators & {ast.Lt, ast.LtE, ast.Gt, ast.GtE}:
        return "comparison"
    if operators & {ast.Eq, ast.NotEq}:
        return "equality"
    returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    compares = [part for value in returned for part in ast.walk(value) if isinstance(part, ast.Compare)]
    if any(isinstance(op, ast.NotIn) for compare in compares for op in compare.ops):
        return "absence"
    return "existence" if operators & {ast.In, ast.NotIn, ast.Is, ast.IsNot} else "other"
