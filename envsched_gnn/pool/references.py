"""References in a plan: an argument that stands for an identifier which an earlier call of the same plan returns.

Knows: the form of a reference, which identifier of a result is meant.
Does not know: who writes plans, how calls are executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEY = "$result"
DEPTH = 8
"""Levels of a result that are searched for an identifier (ours)."""
LONGEST = 200
"""Characters of an identifier; a longer text is none (ours)."""


def reference(call: int) -> dict[str, int]:
    """The argument that stands for the first identifier in the result of call number `call`, from 0."""
    return {KEY: call}


def result_of(value: object) -> int | None:
    """The call that a reference points to; None if `value` is no reference."""
    number = value.get(KEY) if isinstance(value, Mapping) and len(value) == 1 else None
    return number if isinstance(number, int) else None


def resolve(arguments: Any, found: Sequence[str]) -> Any:
    """Arguments with every reference replaced by what that call's result held; one that leads nowhere becomes an empty text.

    Args:
        found: `first_identifier` of each result so far.
    """
    if not isinstance(arguments, Mapping):
        return arguments
    return {name: value if (call := result_of(value)) is None else _at(found, call) for name, value in arguments.items()}


def _at(found: Sequence[str], call: int) -> str:
    return found[call] if 0 <= call < len(found) else ""


def first_identifier(result: Any, depth: int = DEPTH) -> str:
    """The first text under a key that ends in `id`, depth first, in the order of the result; empty if there is none.

    Records of a list with a flag that is off (a value False, as in `"is_active": false`) come after those without.

    Args:
        depth: levels that are looked into, so that a result may hold itself.
    """
    if not depth:
        return ""
    if type(result) is dict:
        for key, value in result.items():
            text = value if isinstance(value, str) and str(key).endswith("id") else first_identifier(value, depth - 1)
            if text and len(text) <= LONGEST:
                return text
    elif type(result) is list or type(result) is tuple:
        return next(filter(None, (first_identifier(entry, depth - 1) for entry in sorted(result, key=_switched_off))), "")
    return ""


def _switched_off(record: Any) -> bool:
    return type(record) is dict and any(value is False for value in record.values())
