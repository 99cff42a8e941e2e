"""Abstract records by a language model, through any OpenAI-compatible endpoint.

Knows: the chat-completions protocol, the closed vocabularies, a cache by content hash.
Does not know: which model is good. It never sends gold trajectories. Records that fail are left to the static analysis.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsched_gnn.errors import ConfigError
from envsched_gnn.features.abstract import AbstractRecord, TaskReading
from envsched_gnn.features.build import Report, read_pool
from envsched_gnn.features.gates import GATES
from envsched_gnn.features.operations import OPS
from envsched_gnn.files import write_atomic
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task

MAX_ITEMS = 200
"""Operations, gates or edges that one answer may hold (ours)."""

GIVE_UP = 10
"""Tasks in a row without a valid answer after which no more are asked (ours)."""

INSTRUCTIONS = f"""You abstract one task of a tool-using agent. Answer with one JSON object and nothing else:
{{"ops": [...], "gates": [...], "deps": [[a, b], ...]}}
ops: the operations that a correct solution needs, in order, each one of: {", ".join(OPS)}.
gates: for each precondition that those operations enforce, one of: {", ".join(GATES)}.
deps: pairs [a, b] of positions in ops, from 0, a before b, where b uses what a found or changed.
Use no tool names, field names or identifiers."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the model answers."""

    base_url: str
    """For example `http://localhost:8000/v1`."""
    model: str
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; unset: no key is sent."""
    timeout: float = 60.0
    """Seconds an answer may take."""
    attempts: int = 3
    """Requests a task, bad answers included."""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url = {self.base_url!r}: expected an http or https address, for example http://localhost:8000/v1.")
        if self.attempts < 1:
            raise ConfigError(f"attempts = {self.attempts}: expected at least 1.")


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What came back."""

    records: Mapping[str, AbstractRecord]
    """Task key -> record; hand it to `build_graph(pool, records=...)`."""
    failed: Mapping[str, str]
    """Task key -> what went wrong; these tasks keep their static record."""


def extract_records(pool: Pool, endpoint: Endpoint, cache: str | Path, *, report: Report | None = None) -> Extraction:
    """Ask for the record of every task, one request a distinct task text; answers are kept in `cache` as JSON files by content hash."""
    report = report or (lambda stage, share: None)
    folder = Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    readings = read_pool(pool, report)
    records: dict[str, AbstractRecord] = {}
    failed: dict[str, str] = {}
    in_a_row = 0
    for number, (task, env, reading) in enumerate(zip(pool.tasks, pool.env_index.tolist(), readings, strict=True)):
        if in_a_row == GIVE_UP:
            failed[task.key] = f"not asked: {GIVE_UP} tasks in a row had no valid answer"
            continue
        try:
            answer = _cached_answer(task, pool.environments[env], reading, endpoint, folder)
            records[task.key], in_a_row = to_record(answer, reading.record), 0
        except ValueError as error:
            failed[task.key], in_a_row = str(error), in_a_row + 1
        report("language model", (number + 1) / len(pool.tasks))
    return Extraction(records=records, failed=failed)


def to_record(answer: Any, static: AbstractRecord) -> AbstractRecord:
    """Validate one answer against the closed vocabularies; its reward features are the static ones.

    Raises:
        ValueError: not an object with `ops`, `gates`, `deps`; a word outside the vocabularies; a dependency that names no operation.
    """
    if not isinstance(answer, dict) or set(answer) != {"ops", "gates", "deps"}:
        raise ValueError(f"expected an object with ops, gates and deps, found {str(answer)[:80]!r}")
    for name, vocabulary in (("ops", OPS), ("gates", GATES)):
        values = answer[name]
        if not isinstance(values, list) or len(values) > MAX_ITEMS:
            raise ValueError(f"{name} = {str(values)[:80]!r}: expected a list of at most {MAX_ITEMS}")
        unknown = [value for value in values if value not in vocabulary]
        if unknown:
            raise ValueError(f"{name} holds {str(unknown[0])[:80]!r}: expected one of {', '.join(vocabulary)}")
    ops = answer["ops"]
    edges = {(ops[a], ops[b]) for a, b in _positions(answer["deps"], len(ops))}
    return dataclasses.replace(static, ops=tuple(ops), gates=tuple(sorted(answer["gates"])), deps=tuple(sorted(edges)))


def _positions(deps: Any, length: int) -> list[tuple[int, int]]:
    if not isinstance(deps, list) or len(deps) > MAX_ITEMS:
        raise ValueError(f"deps = {str(deps)[:80]!r}: expected a list of at most {MAX_ITEMS} pairs")
    for pair in deps:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair) and 0 <= pair[0] < pair[1] < length):
            raise ValueError(f"deps holds {str(pair)[:80]!r}: expected [a, b] with 0 <= a < b < {length}")
    return [(a, b) for a, b in deps]


def _cached_answer(task: Task, environment: Environment, reading: TaskReading, endpoint: Endpoint, folder: Path) -> Any:
    question = _question(task, environment)
    digest = hashlib.sha256(json.dumps([endpoint.model, INSTRUCTIONS, question]).encode()).hexdigest()
    path = folder / f"{digest}.json"
    if path.is_file():
        try:
            answer = json.loads(path.read_text(encoding="utf-8"))
            to_record(answer, reading.record)
            return answer
        except ValueError:  # damaged: ask again
            path.unlink()
    answer = _ask(question, reading, endpoint)
    write_atomic(path, json.dumps(answer).encode())
    return answer


def _question(task: Task, environment: Environment) -> str:
    """What the model reads: tools, rules, instruction, checks. Never the gold trajectory."""
    functions = [tool.get("function", tool) for tool in environment.tools]
    content = {
        "tools": [{"name": function.get("name"), "description": str(function.get("description", ""))[:500]} for function in functions],
        "rules": environment.rules,
        "instruction": task.prompt[:20_000],
        "checks": [check.description or check.code[:1000] for check in task.verifier.checks[:100]],
    }
    return json.dumps(content)


def _ask(question: str, reading: TaskReading, endpoint: Endpoint) -> Any:
    """Up to `attempts` requests until an answer is valid.

    Raises:
        ValueError: none was; says what the last one lacked.
    """
    problem = ""
    for _ in range(endpoint.attempts):
        try:
            answer = json.loads(_unfenced(_complete(question, endpoint)))
            to_record(answer, reading.record)
            return answer
        except (ValueError, OSError, RecursionError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
    raise ValueError(f"{endpoint.base_url}: no valid record in {endpoint.attempts} attempts; the last: {problem}")


def _complete(question: str, endpoint: Endpoint) -> str:
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}]
    body = json.dumps({"model": endpoint.model, "messages": messages, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json"}
    key = os.environ.get(endpoint.key_variable)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{endpoint.base_url.rstrip('/')}/chat/completions", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=endpoint.timeout) as response:
            payload = json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"HTTP {error.code}: {error.read(200).decode(errors='replace')}") from None
    try:
        return str(payload["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"not a chat completion: {str(payload)[:80]!r}") from None


def _unfenced(text: str) -> str:
    """The JSON inside a Markdown fence, if there is one."""
    text = text.strip()
    return text.split("\n", 1)[-1].rsplit("```", 1)[0] if text.startswith("```") else text
