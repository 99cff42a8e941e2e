"""Python source as a syntax tree, whatever the source is.

Knows: what cannot be parsed.
Does not know: what the code means.
"""

from __future__ import annotations

import ast
import warnings

MAX_SOURCE = 2_000_000
"""Characters; longer source is treated as source that does not parse (ours)."""


def parse(source: str) -> ast.Module | None:
    """The syntax tree, or None for anything that Python cannot parse: broken, too long, too deep, or not encodable."""
    if len(source) > MAX_SOURCE:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_NO_NODES = frozenset({"ctx", "id", "attr", "arg", "kind", "type_comment", "is_async", "simple", "conversion", "asname", "module", "level"})
_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(name for name in kind._fields if name not in _NO_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""Fields of each node type that can hold nodes."""


def children(node: ast.AST) -> list[ast.AST]:
    """Child nodes in source order, without load / store contexts. `ast.iter_child_nodes`, but several times as fast."""
    found: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if type(value) is list:
            found += [child for child in value if isinstance(child, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def by_level(tree: ast.AST) -> list[ast.AST]:
    """All nodes but contexts, breadth first, as `ast.walk`."""
    nodes = [tree]
    for node in nodes:
        nodes += children(node)
    return nodes


def in_source_order(tree: ast.AST) -> list[ast.AST]:
    """All nodes but contexts, parents before children, left before right; any depth."""
    stack, nodes = [tree], []
    while stack:
        node = stack.pop()
        nodes.append(node)
        if _FIELDS[type(node)]:
            below = children(node)
            below.reverse()
            stack += below
    return nodes
