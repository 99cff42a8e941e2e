"""The template of one tool: a method of the environment's class and its schema.

Knows: the parts of a template. `$name` is a name of the world. A line that starts with `?feature ` stands only where the feature is on,
one that starts with `!feature ` only where it is off.
Does not know: any tool (they are in `methods_query`, `methods_change` and `methods_option`), any world.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One argument of a tool."""

    name: str
    kind: str
    """`str` or `int`."""
    text: str
    feature: str | None = None
    """It exists only where this feature is on."""
    values: tuple[str, ...] = ()
    """The legal values, where they are few."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One tool."""

    key: str
    """What patterns call it; its name in an environment is `t_key`."""
    query: bool
    verbs: tuple[str, ...]
    stem: str
    text: str
    """What it does."""
    body: str
    """Python, indented by nothing."""
    parameters: tuple[Parameter, ...] = ()
    rules: tuple[str, ...] = ()
    """Constraints in words; one that starts with `?feature ` stands only where the feature is on."""
    feature: str | None = None


def keep(text: str, features: frozenset[str]) -> str:
    """The lines of a template that stand under these features."""
    lines = []
    for line in text.strip("\n").split("\n"):
        indent, rest = line[: len(line) - len(line.lstrip())], line.lstrip()
        if rest[:1] in ("?", "!"):
            feature, _, rest = rest[1:].partition(" ")
            if (feature in features) != (line.lstrip()[0] == "?"):
                continue
        lines.append(indent + rest)
    return "\n".join(lines)
