"""BFCL multi-turn tasks from an installed `bfcl-eval`.

Knows: the wheel's data files, how a set of API classes becomes an environment and an entry a task. Runs none of the wheel's code.
Does not know: execution (`bfcl_episode`), the other BFCL categories.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from envsched_gnn.errors import PoolError, message
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.rows import parse, read_text
from envsched_gnn.records import Environment, Task, Verifier

INSTALL = "pip install 'mpmath>=1.3' && pip install --no-deps bfcl-eval==2026.3.23"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
CLASSES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""Files of each API class: function documents `NAME.json`, source `NAME.py`."""

MORE_TOOLS = "More tools are available now. Please go on with them."
"""The user's words at a turn that only adds tools (ours)."""
_JSON_TYPES = {"dict": "object", "float": "number", "list": "array", "tuple": "array", "any": "string"}
_MUTATORS = frozenset({"append", "extend", "insert", "pop", "popitem", "remove", "clear", "update", "setdefault", "add", "discard"})


def read_bfcl(*, graded: bool = False) -> Pool:
    """The 800 multi-turn tasks over 20 sets of API classes; `graded` rewards the share of turns right, else all or nothing.

    A task's prompt is the user's turns in order; `info` holds them one by one (`turns`), and the tools that appear late
    (`withheld_tools`, `released_tools` by turn). The ground truth is a list of call texts a turn.

    Raises:
        PoolError: bfcl-eval is not installed, or its files are not as expected.
    """
    data = _package() / "data"
    entries = [entry for category in CATEGORIES for entry in _entries(data, category)]
    tools = {name: _tools(data / "multi_turn_func_doc" / f"{file}.json") for name, file in CLASSES.items()}
    changing = {name: _state_changing(name) for name in CLASSES}
    tasks = tuple(_task(entry, graded) for entry in entries)
    environments = tuple(_environment(env_id, tools, changing) for env_id in dict.fromkeys(task.env_id for task in tasks))
    return Pool(environments=environments, tasks=tasks, source="bfcl")


def gold_calls(task: Task, environment: Environment) -> list[list[dict[str, Any]]]:
    """The ground truth as `{"name", "arguments"}` a call, a list a turn; values by position get the names of the tool's parameters."""
    parameters = {tool["function"]["name"]: list(tool["function"]["parameters"]["properties"]) for tool in environment.tools}
    return [[_parse_call(text, parameters) for text in turn] for turn in task.ground_truth]


def _parse_call(text: str, parameters: dict[str, list[str]]) -> dict[str, Any]:
    call = ast.parse(text.strip(), mode="eval").body
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise PoolError(message("bfcl", f"ground truth {text!r}", "a call f(name=value)", f"Install the tested version: {INSTALL}"))
    by_position = zip(parameters[call.func.id], call.args, strict=False)
    by_name = ((keyword.arg, keyword.value) for keyword in call.keywords)
    return {"name": call.func.id, "arguments": {name: ast.literal_eval(value) for name, value in (*by_position, *by_name) if name}}


def _package() -> Path:
    """Folder of the installed package, found without importing it."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise PoolError(message("pool 'bfcl'", "bfcl-eval is not installed", "bfcl-eval 2026.3.23", f"Run: {INSTALL}"))
    return Path(spec.submodule_search_locations[0])


def _entries(data: Path, category: str) -> list[dict[str, Any]]:
    """Entries of a category, each with its `ground_truth` from the file of answers."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    answers = {answer["id"]: answer["ground_truth"] for answer in _lines(data / "possible_answer" / name)}
    return [{**entry, "category": category, "ground_truth": answers[entry["id"]]} for entry in _lines(data / name)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [parse(line, f"{path}:{number}") for number, line in enumerate(read_text(path).split("\n"), start=1) if line.strip()]


def _task(entry: dict[str, Any], graded: bool) -> Task:
    released = {int(turn): list(names) for turn, names in entry.get("missed_function", {}).items()}
    turns = [[message["content"] for message in turn] for turn in entry["question"]]
    turns = [turn or [MORE_TOOLS] for turn in turns]
    return Task(
        env_id="+".join(sorted(entry["involved_classes"])),
        task_id=entry["id"],
        prompt="\n".join(text for turn in turns for text in turn),
        initial_state=entry["initial_config"],
        verifier=Verifier(kind="bfcl"),
        ground_truth=entry["ground_truth"],
        info={
            "reward": "graded" if graded else "binary",
            "category": entry["category"],
            "classes": entry["involved_classes"],
            "turns": turns,
            "withheld_tools": [name for names in released.values() for name in names],
            "released_tools": {str(turn): names for turn, names in released.items()},
        },
    )


def _environment(env_id: str, tools: dict[str, list[dict[str, Any]]], changing: dict[str, frozenset[str]]) -> Environment:
    classes = env_id.split("+")
    functions = [(name, tool["function"]) for name in classes for tool in tools[name]]
    return Environment(
        env_id=env_id,
        description=f"Tools of {', '.join(classes)}.",
        env_type="bfcl",
        entry_point="bfcl_eval",
        tools=tuple(tool for name in classes for tool in tools[name]),
        operations=tuple(
            {
                "name": function["name"],
                "description": function["description"],
                "type": "state_change" if function["name"] in changing[name] else "query",
            }
            for name, function in functions
        ),
        max_turns=100,
        licence="Apache-2.0",
        revision=f"bfcl-eval {importlib.metadata.version('bfcl-eval')}",
    )


def _tools(path: Path) -> list[dict[str, Any]]:
    """OpenAI chat schemas of a class's function documents; what a function returns goes into its description."""
    return [
        {
            "type": "function",
            "function": {
                "name": document["name"],
                "description": f"{document['description']} Returns: {json.dumps(_json_schema(document['response']))}",
                "parameters": _json_schema(document["parameters"]),
            },
        }
        for document in _lines(path)
    ]


def _json_schema(schema: Any) -> Any:
    """The same schema with the type names of JSON schema. A property that is itself called `type` is an object, hence no type name."""
    if isinstance(schema, dict):
        return {
            key: _JSON_TYPES.get(value, value) if key == "type" and isinstance(value, str) else _json_schema(value)
            for key, value in schema.items()
        }
    return [_json_schema(item) for item in schema] if isinstance(schema, list) else schema


@lru_cache(maxsize=len(CLASSES))
def _state_changing(name: str) -> frozenset[str]:
    """Methods that write to `self`, by their own code or by that of a method of `self` that they call; parsed, not run."""
    path = _package() / "eval_checker" / "multi_turn_eval" / "func_source_code" / f"{CLASSES[name]}.py"
    classes = [node for node in ast.parse(read_text(path)).body if isinstance(node, ast.ClassDef)]
    methods = {node.name: node for cls in classes for node in cls.body if isinstance(node, ast.FunctionDef)}
    changing = {name for name, method in methods.items() if _writes(method)} - {"__init__"}
    while grown := {name for name, method in methods.items() if changing & _called(method)} - changing:
        changing |= grown
    return frozenset(changing)


def _writes(method: ast.FunctionDef) -> bool:
    """Whether a method assigns, deletes or mutates a part of `self`, or of a local name bound to something got from `self`."""
    roots = {"self"}
    for node in ast.walk(method):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _root(value) in roots:
                roots.add(name)
    for node in ast.walk(method):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                written = targets
            case ast.AugAssign(target=target):
                written = [target]
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in _MUTATORS:
                written = [node.func]
            case _:
                continue
        if any(not isinstance(target, ast.Name) and _root(target) in roots for target in written):
            return True
    return False


def _root(node: ast.AST) -> str:
    """The name at the left end of `name.attribute[index].method(...)`; nothing for a copy."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Attribute) and node.attr == "copy":
            return ""
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _called(method: ast.FunctionDef) -> set[str]:
    return {node.func.attr for node in ast.walk(method) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
