"""EnvScaler pools: one file of environments, one of tasks ("scenarios").

Knows: the field names of EnvScaler, in every published variant (list or dict, decoded or JSON text), read and written.
Does not know: execution, other formats.

What EnvScaler has no field for (held-out marks, gold trajectories, weights, reward ranges, limits) travels in one extra key of a
record, `envsched`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envsched_gnn.errors import PoolError, message
from envsched_gnn.files import write_atomic
from envsched_gnn.pool.manifest import environment_of, environment_table, task_of, task_table
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.rows import Row, assemble, parse, read_text
from envsched_gnn.records import Environment, Task

ENVIRONMENTS = "*env_metadata*.json"
TASKS = "*scenario*.json"
EXTRA = "envsched"
"""The key of a record for what EnvScaler has no field for."""

_NO_FIELD = ("entry_point", "reward_range", "max_turns", "timeouts", "licence", "revision", "ground_truth", "info")
_OPERATION = {"operation_name": "name", "operation_description": "description", "operation_type": "type"}


def read_envscaler(directory: Path | str) -> Pool:
    """Read the directory's `*env_metadata*.json` and `*scenario*.json`; file order is kept.

    Raises:
        PoolError: a file is missing, doubled or malformed; a record lacks a field or has one of the wrong type; names the record.
    """
    directory = Path(directory)
    environments, tasks = find_one(directory, ENVIRONMENTS), find_one(directory, TASKS)
    if environments is None or tasks is None:
        missing = ENVIRONMENTS if environments is None else TASKS
        raise PoolError(message(str(directory), f"no {missing}", f"one {ENVIRONMENTS} and one {TASKS}", "Add the missing file."))
    return assemble(
        ((row.where, _environment(row)) for row in _environment_rows(environments)),
        ((row.where, _task(row)) for row in _rows(_parse_list(tasks), str(tasks), "task_id")),
        str(directory),
    )


def find_one(directory: Path, pattern: str) -> Path | None:
    """The only file of the directory that matches, or None; two are an error that names both."""
    matches = sorted(path for path in directory.glob(pattern) if path.is_file())
    if len(matches) > 1:
        names = " and ".join(path.name for path in matches)
        raise PoolError(message(str(directory), f"{names} both match {pattern}", "one such file", "Move the others away."))
    return matches[0] if matches else None


def _environment_rows(path: Path) -> list[Row]:
    """Records of a list, or of a dict by env_id."""
    table = parse(read_text(path), str(path), _unique_environments)
    if not isinstance(table, dict):
        return _rows(_as_list(table, path), str(path), "env_id")
    rows = []
    for key, row in zip(table, _rows(list(table.values()), str(path), "env_id"), strict=True):
        env_id = row.text("env_id", key)
        if env_id != key:
            raise PoolError(message(row.where, f"env_id {env_id!r} stands under key {key!r}", "the same id twice", "Correct one of them."))
        rows.append(Row(where=row.where, values={**row.values, "env_id": key}))
    return rows


def _unique_environments(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; refuses one that holds two environments of one name, of which JSON would silently keep the last."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, value in pairs if isinstance(value, dict) and "env_class_code" in value]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"environment {twice[0]!r} stands more than once; identities must be unique")
    return table


def _parse_list(path: Path) -> list[Any]:
    return _as_list(parse(read_text(path), str(path)), path)


def _as_list(table: Any, path: Path) -> list[Any]:
    if not isinstance(table, list):
        raise PoolError(message(str(path), f"holds {type(table).__name__}", "a JSON list of records", "Check that this is the right file."))
    return table


def _rows(records: list[Any], path: str, identity: str) -> list[Row]:
    rows = []
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            found = f"holds {type(record).__name__}"
            raise PoolError(message(f"{path}, record {number}", found, "an object", "Correct this record."))
        name = f" ({record[identity]})" if isinstance(record.get(identity), str) else ""
        rows.append(Row(where=f"{path}, record {number}{name}", values=record))
    return rows


def _environment(row: Row) -> Environment:
    operations = row.items("operation_list", dict, "a list of operations", ())
    return environment_of(
        Row(
            where=row.where,
            values={
                "env_id": row.text("env_id"),
                "name": row.text("env_class_name"),
                "description": row.text("environment_introduction", "") or row.text("environment_summary", ""),
                "source": row.text("env_class_code"),
                "tools": list(row.tools()),
                "rules": list(row.items("constraints_rules", str, "a list of strings", ())),
                "state_schema": _decoded(row, "state_space_definition"),
                "operations": [{_OPERATION.get(key, key): value for key, value in operation.items()} for operation in operations],
                **_extra(row),
            },
        )
    )


def _task(row: Row) -> Task:
    items = row.items("checklist_with_func", dict, "a list of {'check_item', 'check_func'}", ())
    checks = []
    for number, item in enumerate(items):
        check = Row(where=f"{row.where}, check {number}", values=item)
        checks.append({"description": check.text("check_item", ""), "code": check.text("check_func")})
    extra = _extra(row)
    weights = extra.pop("weights", None)
    if weights is not None:
        if not isinstance(weights, list) or len(weights) != len(checks):
            raise row.error(f"{EXTRA}.weights", weights, f"a list of {len(checks)} numbers")
        checks = [{**check, "weight": weight} for check, weight in zip(checks, weights, strict=True)]
    if "init_config" not in row.values:
        raise PoolError(
            message(f"{row.where}: field 'init_config'", "missing", "an object of attributes", "Add 'init_config' to this record.")
        )
    return task_of(
        Row(
            where=row.where,
            values={
                "env_id": row.text("env_id"),
                "task_id": row.text("task_id"),
                "prompt": row.text("task"),
                "initial_state": _decoded(row, "init_config"),
                "verifier": {"kind": extra.pop("kind", "checks"), "checks": checks},
                **extra,
            },
        )
    )


def _decoded(row: Row, name: str) -> Any:
    value = row.values.get(name)
    return row.json(name, value) if isinstance(value, str) and value else value


def _encoded(value: Any) -> Any:
    """A text must be written as JSON text, because the reader decodes every text it finds."""
    return json.dumps(value) if isinstance(value, str) else value


def _extra(row: Row) -> dict[str, Any]:
    return dict(row.value(EXTRA, dict, "an object", {}))


def write_envscaler(pool: Pool, directory: Path | str) -> None:
    """Write `env_metadata.json` and `rl_scenario.json`, from which `read_envscaler` makes an equal pool.

    Raises:
        PoolError: an environment is no `python_class`, or the directory holds another EnvScaler pool.
    """
    directory = Path(directory)
    for environment in pool.environments:
        if environment.env_type != "python_class":
            found = f"env_type {environment.env_type!r}"
            raise PoolError(message(environment.env_id, found, "'python_class'", "EnvScaler has no other; write a manifest instead."))
    directory.mkdir(parents=True, exist_ok=True)
    targets = directory / "env_metadata.json", directory / "rl_scenario.json"
    for pattern, target in zip((ENVIRONMENTS, TASKS), targets, strict=True):
        there = find_one(directory, pattern)
        if there not in (None, target):
            raise PoolError(message(str(directory), f"{there.name} is there", "no other EnvScaler pool", "Choose an empty directory."))
    names = {environment.env_id: environment.name for environment in pool.environments}
    write_atomic(targets[0], _dump([_environment_record(environment) for environment in pool.environments]))
    write_atomic(targets[1], _dump([_task_record(task, names[task.env_id]) for task in pool.tasks]))


def _dump(records: list[dict[str, Any]]) -> bytes:
    return ("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n").encode("ascii")


def _environment_record(environment: Environment) -> dict[str, Any]:
    back = {ours: theirs for theirs, ours in _OPERATION.items()}
    extra = {name: value for name, value in environment_table(environment).items() if name in _NO_FIELD}
    return {
        "env_id": environment.env_id,
        "environment_summary": environment.description.partition("\n")[0],
        "environment_introduction": environment.description,
        "state_space_definition": _encoded(environment.state_schema),
        "constraints_rules": list(environment.rules),
        "operation_list": [{back.get(key, key): value for key, value in operation.items()} for operation in environment.operations],
        "env_class_name": environment.name,
        "env_class_code": environment.source,
        "tools": list(environment.tools),
        **({EXTRA: extra} if extra else {}),
    }


def _task_record(task: Task, class_name: str) -> dict[str, Any]:
    extra = {name: value for name, value in task_table(task).items() if name in _NO_FIELD}
    checks = task.verifier.checks
    if any(check.weight != 1 for check in checks):
        extra["weights"] = [check.weight for check in checks]
    if task.verifier.kind != "checks":
        extra["kind"] = task.verifier.kind
    return {
        "env_id": task.env_id,
        "env_class_name": class_name,
        "task_id": task.task_id,
        "init_config": _encoded(task.initial_state),
        "task": task.prompt,
        "checklist_with_func": [{"check_item": check.description, "check_func": check.code} for check in checks],
        **({EXTRA: extra} if extra else {}),
    }
