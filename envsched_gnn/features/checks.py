"""What a verifier's code says, read without running it.

Knows: the source of one check: its syntax, the parts of the final state that it reads and the values it expects there, its kind.
Does not know: environments, whether a check is right, gold trajectories.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from envsched_gnn.features.effects import read_function
from envsched_gnn.features.method import MethodFacts
from envsched_gnn.features.places import Place
from envsched_gnn.features.syntax import in_source_order, parse

MAX_CODE = 200_000
"""Characters; a longer check is treated as one that does not parse (ours)."""

CHECK_KINDS = ("count", "aggregate", "comparison", "equality", "absence", "existence", "other")
"""What a check states about the final state; the first that fits (ours)."""

_AGGREGATES = frozenset({"all", "any", "max", "min", "sum", "sorted", "set"})


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A part of the final state that a check reads."""

    key: str
    """State key."""
    path: tuple[str, ...] = ()
    """Below it: entity, attribute; `*` where only the run knows."""
    values: frozenset[object] = frozenset()
    """Constants that it is compared with by ==, is, or in."""


@dataclass(frozen=True, kw_only=True)
class CheckFacts:
    """The static reading of one check."""

    nodes: tuple[str, ...] = ()
    """AST node types in source order, without identifiers or values; empty if the code does not parse."""
    demands: tuple[Demand, ...] = ()
    """In a fixed order; a place above another demanded place is left out."""
    kind: str = "other"


@lru_cache(maxsize=20_000)
def read_check(code: str) -> CheckFacts:
    """Facts of one check function; an unparsable one has none, and kind `other`."""
    tree = parse(code) if len(code) <= MAX_CODE else None
    if tree is None:
        return CheckFacts()
    nodes = in_source_order(tree)
    return CheckFacts(
        nodes=_shared(tuple(type(node).__name__ for node in nodes[1:])),
        kind=_kind(nodes),
        demands=_demands(tree),
    )


@lru_cache(maxsize=20_000)
def _shared(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """One object for equal structures: a pool has many checks and few structures."""
    return nodes


def _demands(tree: ast.Module) -> tuple[Demand, ...]:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.args.args]
    function = next((node for node in functions if node.name == "check_func"), functions[0] if functions else None)
    if function is None:
        return ()
    facts = read_function(function, state=function.args.args[0].arg)
    return tuple(Demand(key=place.key, path=place.path, values=_values(place, facts)) for place in _lowest(facts.places))


def _lowest(places: Iterable[Place]) -> list[Place]:
    """Places that are not above another one, sorted."""
    found = sorted(set(places), key=lambda place: (place.key, place.path))
    above = {Place(place.key, place.path[:length]) for place in found for length in range(len(place.path))}
    return [place for place in found if place not in above]


def _values(place: Place, facts: MethodFacts) -> frozenset[object]:
    return frozenset(value for compared, value in facts.compared if compared == place)


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
