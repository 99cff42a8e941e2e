"""Tools as methods: what TRL looks for on the class of an environment.

Knows: TRL's rules for tool methods, how transformers reads a JSON schema out of a signature and a docstring.
Does not know: what happens in a call.

A signature cannot say all that a schema says (descriptions inside nested objects, a description with an "Args:" of its own), so
`attach_environments` hands the trainer the schemas themselves. The signatures serve trainers that know methods alone.
"""

from __future__ import annotations

import inspect
import keyword
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import reduce
from operator import or_
from typing import Any, Literal

from envsched_gnn.errors import PoolError, message
from envsched_gnn.records import Environment

END_TURN = "end_turn"
"""The tool by which a policy ends its turn in a task of several."""
END_TURN_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": END_TURN,
        "description": "Say that all the user has asked for so far is done. Returns what the user says next.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "float": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "dict": dict,
    "null": None,
}

Schema = dict[str, Any]
Answer = Callable[[Any, str, dict[str, Any]], Coroutine[Any, Any, str]]


def tool_schemas(environment: Environment, several_turns: bool) -> tuple[Schema, ...]:
    """The schemas of all tools of an environment, with END_TURN where its tasks have several turns.

    Raises:
        PoolError: two tools have one name, or a tool has the name that END_TURN needs.
    """
    schemas = (*environment.tools, *([END_TURN_SCHEMA] if several_turns else []))
    twice = [name for name, count in Counter(name_of(schema) for schema in schemas).items() if count > 1]
    if twice:
        expected = "different names" + (f"; {END_TURN} is ours: it asks for the user's next turn" if twice[0] == END_TURN else "")
        raise PoolError(message(f"environment {environment.env_id!r}", f"two tools {twice[0]!r}", expected, "Rename one of them."))
    return schemas


def name_of(schema: Schema) -> str:
    """A tool's name."""
    return str(schema["function"]["name"])


def tool_methods(schemas: tuple[Schema, ...], reserved: set[str], answer: Answer) -> dict[str, Callable[..., Any]]:
    """Attribute name -> async method of each tool; `answer(self, tool, arguments)` serves the call.

    TRL lists public attributes and calls a tool by its `__name__`: any name will do; one that is `reserved` or begins with an underscore
    stands under another attribute.
    """
    methods = {}
    for schema in schemas:
        name = name_of(schema)
        attribute = f"tool {name}" if name in reserved or name.startswith("_") else name
        methods[attribute] = _method(name, schema["function"], answer)
    return methods


def _method(name: str, function: Schema, answer: Answer) -> Callable[..., Any]:
    async def tool(self: Any, /, **arguments: Any) -> str:
        return await answer(self, name, arguments)

    parameters = function.get("parameters") or {}
    properties = {
        key: value for key, value in (parameters.get("properties") or {}).items() if key.isidentifier() and not keyword.iskeyword(key)
    }
    required = set(parameters.get("required") or ())
    hints = {key: _hint(value) for key, value in properties.items()}
    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = _docstring(function.get("description") or name, properties)
    tool.__annotations__ = hints
    tool.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
        + [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=inspect.Parameter.empty if key in required else None
            )
            for key, hint in hints.items()
        ]
    )
    return tool


def _docstring(description: str, properties: Mapping[str, Schema]) -> str:
    lines = [f"    {key}: {' '.join(str(value.get('description') or key).split())}" for key, value in properties.items()]
    return "\n".join([description, "", "Args:", *lines]) if lines else description


def _hint(schema: Schema) -> Any:
    """The nearest Python type of a JSON schema."""
    if schema.get("enum"):
        return Literal[tuple(schema["enum"])]
    kinds = schema.get("type")
    if isinstance(kinds, list) and kinds:
        return reduce(or_, (_hint({**schema, "type": kind}) for kind in kinds))
    if kinds == "array" and isinstance(schema.get("items"), dict):
        return list[_hint(schema["items"])]  # type: ignore[misc]
    return TYPES.get(str(kinds), Any)
