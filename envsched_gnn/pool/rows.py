"""Records as they stand in a file, checked field by field, and their assembly into a pool.

Knows: text and JSON of files, the place of every record, types and ranges of fields.
Does not know: the names of any file format's fields.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsched_gnn.errors import PoolError, message
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task

LARGEST = sys.float_info.max
"""An integer of JSON may be larger than any float."""
_SHOWN = 80
"""Characters of a wrong value that a message quotes."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One record and the place it stands in. A field that is null counts as missing."""

    where: str
    values: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A string field; without a default it is required."""
        return self.value(name, str, "a string", default)

    def items(self, name: str, kind: type, expected: str, default: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """A list of `kind`, decoded or as JSON text."""
        items = self.value(name, list, expected, default)
        for item in items:
            if not isinstance(item, kind):
                raise self.error(name, item, expected)
        return tuple(items)

    def value(self, name: str, kind: type | tuple[type, ...], expected: str, default: Any = None) -> Any:
        """A field of one kind; JSON text stands for the list or object it holds."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise PoolError(message(f"{self.where}: field {name!r}", "missing", expected, f"Add {name!r} to this record."))
            return default
        if isinstance(value, str) and kind is not str:
            value = self.json(name, value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (int, float))):
            raise self.error(name, value, expected)
        return value

    def json(self, name: str, text: str) -> Any:
        """The value that JSON text holds."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PoolError(message(f"{self.where}: field {name!r}", f"no JSON ({error})", "JSON text", "Write the field again.")) from None

    def number(self, name: str, low: float, default: float) -> float:
        """A finite number of at least `low`."""
        value = self.value(name, (int, float), f"a number of at least {low:g}", default)
        if not low <= value <= LARGEST:
            raise self.error(name, value, f"a finite number of at least {low:g}")
        return float(value)

    def reward_range(self, name: str = "reward_range") -> tuple[float, float] | None:
        """[lowest, highest], finite and in this order; None where it is missing."""
        expected = "two finite numbers [lowest, highest]"
        if self.values.get(name) is None:
            return None
        value = self.value(name, (list, tuple), expected)
        if len(value) != 2 or any(isinstance(end, bool) or not isinstance(end, int | float) for end in value):
            raise self.error(name, value, expected)
        if not all(abs(end) <= LARGEST for end in value) or not 0 < float(value[1]) - float(value[0]) <= LARGEST:
            raise self.error(name, value, expected)
        return float(value[0]), float(value[1])

    def tools(self, name: str = "tools", default: Sequence[Any] | None = None) -> tuple[dict[str, Any], ...]:
        """OpenAI chat function schemas, each with a name of its own."""
        expected = "a list of OpenAI function schemas {'type': 'function', 'function': {'name', 'description', 'parameters'}}"
        tools = self.items(name, dict, expected, default)
        for tool in tools:
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise self.error(name, tool, expected)
        return tools

    def error(self, name: str, value: Any, expected: str) -> PoolError:
        """The error for a field of the wrong type or value."""
        shown = ascii(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        return PoolError(message(f"{self.where}: field {name!r}", f"found {shown}", expected, "Correct this record."))


def read_text(path: Path) -> str:
    """A whole file of UTF-8 text, with or without a byte order mark."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at offset {error.start}"
        raise PoolError(message(str(path), found, "UTF-8 text", "Save the file as UTF-8, for example with iconv.")) from None
    except OSError as error:
        raise PoolError(message(str(path), f"cannot be read ({error.strerror})", "a readable file", "Check its name and rights.")) from None


def parse(text: str, where: str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of JSON text."""
    try:
        return json.loads(text, object_pairs_hook=hook)
    except (ValueError, RecursionError) as error:
        raise PoolError(message(where, f"malformed ({error})", "JSON", "Write it again, or download it again if it was cut.")) from None


def assemble(environments: Iterable[tuple[str, Environment]], tasks: Iterable[tuple[str, Task]], source: str) -> Pool:
    """The pool of records that come with their places.

    Raises:
        PoolError: an identity stands twice, or a task's environment is not there; names the places.
    """
    env_places: dict[str, str] = {}
    task_places: dict[str, str] = {}
    all_environments, all_tasks = [], []
    for where, environment in environments:
        _note(env_places, environment.env_id, where, "environment")
        all_environments.append(environment)
    for where, task in tasks:
        _note(task_places, task.key, where, "task")
        if task.env_id not in env_places:
            found = f"task {task.task_id!r} belongs to environment {task.env_id!r}, which is not in the pool"
            raise PoolError(message(where, found, "the env_id of a listed environment", "Add the environment or drop the task."))
        all_tasks.append(task)
    return Pool(environments=tuple(all_environments), tasks=tuple(all_tasks), source=source)


def _note(places: dict[str, str], name: str, where: str, what: str) -> None:
    if name in places:
        found = f"{what} {name!r} stands already at {places[name]}"
        raise PoolError(message(where, found, "an identity of its own", "Rename or drop one of the two."))
    places[name] = where
