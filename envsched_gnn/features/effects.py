"""Static reading of an environment class: what every method reads, writes, guards and names by id. Nothing is executed.

Knows: classes and the methods that they call on `self`.
Does not know: what a statement does (method), tools, verbs, tasks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from envsched_gnn.features.method import Function, Method, MethodFacts
from envsched_gnn.features.places import is_self
from envsched_gnn.features.syntax import in_source_order, parse


@dataclass(frozen=True, kw_only=True)
class ClassFacts:
    """What an environment class does."""

    methods: dict[str, MethodFacts]
    """All methods but `__init__`, in source order."""
    state_keys: frozenset[str]
    """Attributes of `self` that are assigned somewhere."""


@lru_cache(maxsize=64)
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
    methods = {name: facts for name in functions if name != "__init__" and (facts := reader.facts(name))}
    return ClassFacts(methods=methods, state_keys=keys)


def read_function(function: ast.FunctionDef, state: str) -> MethodFacts:
    """Facts of one function that is given the state as a mapping in argument `state`. Guards are not read."""
    try:
        return Method(function, keys=frozenset(), helpers=lambda name: None, state=state).read()
    except RecursionError:
        return MethodFacts()


def _functions(node: ast.ClassDef) -> list[Function]:
    return [child for child in node.body if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _assigned_attributes(node: ast.ClassDef) -> Iterator[str]:
    for child in in_source_order(node):
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and is_self(child.value):
            yield child.attr


class _Reader:
    """Reads methods once each, helpers on demand."""

    def __init__(self, functions: Mapping[str, Function], keys: frozenset[str]) -> None:
        self.functions = functions
        self.keys = keys
        self.done: dict[str, MethodFacts] = {}
        self.active: set[str] = set()

    def facts(self, name: str) -> MethodFacts | None:
        """Facts of one method, None if there is none; a recursive call and a method too deep to walk contribute nothing."""
        if name in self.done or name not in self.functions:
            return self.done.get(name)
        if name in self.active:
            return MethodFacts()
        self.active.add(name)
        try:
            self.done[name] = Method(self.functions[name], keys=self.keys, helpers=self.facts).read()
        except RecursionError:
            self.done[name] = MethodFacts()
        self.active.discard(name)
        return self.done[name]
