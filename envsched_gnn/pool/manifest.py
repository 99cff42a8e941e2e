"""The neutral form of a pool: two tables, `environments` and `tasks`, as JSONL or Parquet.

Knows: the fields of both tables, defaults, the two file forms. Parquet keeps nested fields as JSON text.
Does not know: other formats, execution.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import json
import typing
from pathlib import Path
from typing import Any, Literal

from envsched_gnn.errors import PoolError, message
from envsched_gnn.files import write_atomic
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.rows import Row, assemble, parse, read_text
from envsched_gnn.records import Check, Environment, EnvType, Task, Timeouts, Verifier

Form = Literal["jsonl", "parquet"]

NESTED = frozenset(
    {"tools", "rules", "state_schema", "operations", "reward_range", "timeouts", "initial_state", "verifier", "ground_truth", "info"}
)
"""Fields that are no plain text or number."""
_JSON_COLUMNS = b"envsched_json_columns"
"""Parquet metadata: columns that hold JSON text, the nested ones and those whose text is not valid Unicode."""


def read_manifest(directory: Path | str) -> Pool:
    """Read `environments.{jsonl,parquet}` and `tasks.{jsonl,parquet}`; file order is kept.

    Raises:
        PoolError: a file is missing, doubled or malformed; a record lacks a field, has an unknown one or one of the wrong type.
            The message names the line or row.
    """
    directory = Path(directory)
    environments, tasks = find_table(directory, "environments"), find_table(directory, "tasks")
    if environments is None or tasks is None:
        missing = "environments" if environments is None else "tasks"
        expected = "environments.jsonl and tasks.jsonl (or .parquet)"
        raise PoolError(message(str(directory), f"no {missing}.jsonl or {missing}.parquet", expected, "Add the missing file."))
    return assemble(
        ((row.where, environment_of(row)) for row in _read(environments)),
        ((row.where, task_of(row)) for row in _read(tasks)),
        str(directory),
    )


def find_table(directory: Path, name: str) -> Path | None:
    """The file of a table, or None; two are an error that names both."""
    paths = [path for path in (directory / f"{name}.jsonl", directory / f"{name}.parquet") if path.is_file()]
    if len(paths) > 1:
        raise PoolError(message(str(directory), f"{paths[0].name} and {paths[1].name}", "one of the two", "Move the other away."))
    return paths[0] if paths else None


def environment_of(row: Row) -> Environment:
    """An environment from a row with the fields of `Environment`."""
    _reject_unknown(row, Environment)
    env_type = row.text("env_type", "python_class")
    if env_type not in typing.get_args(EnvType):
        raise row.error("env_type", env_type, "one of " + ", ".join(typing.get_args(EnvType)))
    return Environment(
        env_id=_identity(row, "env_id"),
        name=row.text("name", ""),
        description=row.text("description", ""),
        env_type=typing.cast(EnvType, env_type),
        entry_point=row.text("entry_point", ""),
        source=row.text("source", ""),
        tools=row.tools(default=()),
        rules=row.items("rules", str, "a list of strings", ()),
        state_schema=row.values.get("state_schema"),
        operations=row.items("operations", dict, "a list of {'name', 'description', 'type'}", ()),
        reward_range=row.reward_range() or (0.0, 1.0),
        max_turns=_max_turns(row),
        timeouts=_timeouts(row),
        licence=row.text("licence", ""),
        revision=row.text("revision", ""),
    )


def task_of(row: Row) -> Task:
    """A task from a row with the fields of `Task`."""
    _reject_unknown(row, Task)
    return Task(
        env_id=_identity(row, "env_id"),
        task_id=_identity(row, "task_id"),
        prompt=row.text("prompt"),
        initial_state=row.values.get("initial_state"),
        verifier=_verifier(row),
        ground_truth=row.values.get("ground_truth"),
        reward_range=row.reward_range(),
        info=_info(row),
    )


def _identity(row: Row, name: str) -> str:
    text = row.text(name)
    if not text:
        raise row.error(name, text, "a string that is not empty")
    return text


def _info(row: Row) -> dict[str, Any]:
    """Passed through; only the mark that we read ourselves is checked, as the text "no" would count as true."""
    info = row.value("info", dict, "an object", {})
    if not isinstance(info.get("held_out"), bool | None):
        raise row.error("info.held_out", info["held_out"], "true or false")
    return dict(info)


def _max_turns(row: Row) -> int:
    turns = row.value("max_turns", int, "a whole number of at least 1", 40)
    if turns < 1:
        raise row.error("max_turns", turns, "a whole number of at least 1")
    return int(turns)


def _timeouts(row: Row) -> Timeouts:
    seconds = Row(where=f"{row.where}, timeouts", values=row.value("timeouts", dict, "an object of seconds", {}))
    _reject_unknown(seconds, Timeouts)
    return Timeouts(**{name: seconds.number(name, 0.001, default) for name, default in vars(Timeouts()).items()})


def _verifier(row: Row) -> Verifier:
    table = Row(where=f"{row.where}, verifier", values=row.value("verifier", dict, "an object {'kind', 'checks'}", {}))
    _reject_unknown(table, Verifier)
    checks = []
    for number, item in enumerate(table.items("checks", dict, "a list of {'description', 'code', 'weight'}", ())):
        check = Row(where=f"{row.where}, check {number}", values=item)
        _reject_unknown(check, Check)
        checks.append(
            Check(description=check.text("description", ""), code=check.text("code", ""), weight=check.number("weight", 0.0, 1.0))
        )
    return Verifier(kind=table.text("kind", "checks"), checks=tuple(checks))


def _reject_unknown(row: Row, cls: Any) -> None:
    known = [field.name for field in dataclasses.fields(cls)]
    unknown = [name for name in row.values if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        cure = f"Did you mean {near[0]!r}?" if near else "Drop it" + (", or move it into 'info'." if cls is Task else ".")
        raise PoolError(message(row.where, f"unknown field {unknown[0]!r}", ", ".join(known), cure))


def environment_table(environment: Environment) -> dict[str, Any]:
    """The plain table of an environment, without fields at their default."""
    return _without_defaults(environment)


def task_table(task: Task) -> dict[str, Any]:
    """The plain table of a task, without fields at their default."""
    return _without_defaults(task)


def _without_defaults(record: Environment | Task) -> dict[str, Any]:
    table = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if field.default is dataclasses.MISSING is field.default_factory or value != default:
            table[field.name] = _plain(value)
    return table


def _plain(value: Any) -> Any:
    match value:
        case Verifier():
            return {"kind": value.kind, "checks": [vars(check) for check in value.checks]}
        case Timeouts():
            return dict(vars(value))
        case tuple():
            return list(value)
        case _:
            return value


def write_manifest(pool: Pool, directory: Path | str, form: Form = "jsonl") -> None:
    """Write both tables, from which `read_manifest` makes an equal pool.

    Raises:
        PoolError: the directory holds a manifest of the other form.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tables = {
        "environments": [environment_table(environment) for environment in pool.environments],
        "tasks": [task_table(task) for task in pool.tasks],
    }
    for name in tables:
        there = find_table(directory, name)
        if there not in (None, directory / f"{name}.{form}"):
            raise PoolError(message(str(directory), f"{there.name} is there", f"none but {name}.{form}", "Choose an empty directory."))
    for name, table in tables.items():
        write_atomic(directory / f"{name}.{form}", _to_jsonl(table) if form == "jsonl" else _to_parquet(table))


def _to_jsonl(table: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in table).encode("ascii")


def _to_parquet(table: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for record in table for name in record))
    as_json = [name for name in names if name in NESTED or not all(_is_unicode(record.get(name)) for record in table)]
    columns = {}
    for name in names:
        values = [record.get(name) for record in table]
        columns[name] = [None if value is None else json.dumps(value) for value in values] if name in as_json else values
    arrow = pa.table(columns).replace_schema_metadata({_JSON_COLUMNS: json.dumps(as_json).encode()})
    buffer = io.BytesIO()
    pq.write_table(arrow, buffer, compression="zstd")
    return buffer.getvalue()


def _is_unicode(value: Any) -> bool:
    """Whether a text can be written as UTF-8: it holds no lone surrogate."""
    return not isinstance(value, str) or value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _read(path: Path) -> list[Row]:
    return _read_jsonl(path) if path.suffix == ".jsonl" else _read_parquet(path)


def _read_jsonl(path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        record = parse(line, f"{path}:{number}")
        if not isinstance(record, dict):
            raise PoolError(message(f"{path}:{number}", f"holds {type(record).__name__}", "a JSON object a line", "Correct this line."))
        rows.append(Row(where=f"{path}:{number}", values=record))
    return rows


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        arrow = pq.read_table(path, partitioning=None)
        as_json = set(json.loads((arrow.schema.metadata or {}).get(_JSON_COLUMNS, b"[]"))) | NESTED
        records = arrow.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise PoolError(message(str(path), f"cannot be read ({error})", "a Parquet file with UTF-8 text", "Write it again.")) from None
    rows = []
    for number, record in enumerate(records):
        row = Row(where=f"{path}, row {number}", values=record)
        decoded = {name: row.json(name, value) if name in as_json and isinstance(value, str) else value for name, value in record.items()}
        rows.append(Row(where=row.where, values=decoded))
    return rows
