"""The abstract record of a task: what must be done, with names, fields and ids removed.

Knows: an environment's operations, a task's instruction, initial state and checks.
Does not know: gold trajectories (they are never read), similarities, how the record is weighted.

The rule: a task's operations are those that it needs, which are the operations whose written state keys (attributes, constants) meet
what its checks read and what does not hold at reset, in order of first mention in the instruction, each preceded by the lookups that
supply its id parameters. Where several operations meet the same, the best mentioned one counts. Where there are no checks or no source,
they are the operations that the instruction mentions (word overlap with the tool's name and description).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from envsched_gnn.features.checks import CHECK_KINDS, CheckFacts, Demand, read_check
from envsched_gnn.features.gates import GATES
from envsched_gnn.features.operations import OPS, Operation, OperationTable, mention, words
from envsched_gnn.features.places import ANY
from envsched_gnn.records import Task

MENTION = 0.6
"""Share of a tool's words from which an instruction counts as mentioning it (ours)."""
CLEAR_MENTION = 1.2
"""The same for an operation that meets a demand which a chosen one meets already; 1.5 is every word of name and description (ours)."""
MAX_INSTRUCTION = 100_000
"""Characters of an instruction that are read (ours)."""
COUNT_BINS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
"""Numbers of checks at which a reward feature starts (ours)."""
SHARE_BINS = (0.0, 0.25, 0.5, 0.75)
"""Shares of a kind of check above which a reward feature starts (ours)."""
MAX_DEPTH = 12


@dataclass(frozen=True, kw_only=True)
class AbstractRecord:
    """What a task demands, in closed vocabularies. Equal records have equal cross vectors."""

    ops: tuple[str, ...] = ()
    """Operation types in order."""
    gates: tuple[str, ...] = ()
    """Gate types of those operations, sorted, one entry an operation."""
    deps: tuple[tuple[str, str], ...] = ()
    """Typed dependency edges, sorted, each once: what the first supplies, the second uses."""
    reward: tuple[str, ...] = ()
    """Reward features that hold, sorted: `checks>=4`, `equality>0.25`, `depth>=2`."""

    def __post_init__(self) -> None:
        unknown = [op for op in (*self.ops, *(op for edge in self.deps for op in edge)) if op not in OPS]
        unknown += [gate for gate in self.gates if gate not in GATES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is neither an operation type ({', '.join(OPS)}) nor a gate type ({', '.join(GATES)})")


class Tool(NamedTuple):
    """What stays of an operation once its environment is read."""

    name: str
    description: str


@dataclass(frozen=True, kw_only=True)
class TaskReading:
    """A task's record, and what else was found on the way."""

    record: AbstractRecord
    operations: tuple[Tool, ...]
    """The concrete operations that it needs, in order."""
    structures: tuple[tuple[str, ...], ...]
    """AST node types of each check."""


def read_task(task: Task, table: OperationTable, weight: Mapping[str, float]) -> TaskReading:
    """Abstract a task; `weight` comes from `word_weights(table.operations)`."""
    facts = [read_check(check.code) for check in task.verifier.checks]
    positions = _first_positions(task.prompt)
    mentions = [mention(operation, positions, weight) for operation in table.operations]
    needed = _needed(facts, table, task.initial_state, mentions) if table.analysed else set()
    rows = sorted(needed or _mentioned(mentions), key=lambda row: (mentions[row][1], row))
    steps = _with_lookups(rows, table.operations, mentions)
    edges = _dependencies(steps, table.operations)
    operations = [table.operations[row] for row in steps]
    record = AbstractRecord(
        ops=tuple(operation.kind for operation in operations),
        gates=tuple(sorted(gate for operation in operations for gate in operation.gates)),
        deps=tuple(sorted({(table.operations[a].kind, table.operations[b].kind) for a, b in edges})),
        reward=reward_features(facts, _depth(steps, edges)),
    )
    tools = tuple(Tool(operation.name, operation.description) for operation in operations)
    return TaskReading(record=record, operations=tools, structures=tuple(fact.nodes for fact in facts))


def word_weights(operations: Sequence[Operation]) -> dict[str, float]:
    """Rarity of each word among an environment's tools: ln((1 + tools) / tools with the word)."""
    counts = Counter(word for operation in operations for word in operation.name_words | operation.description_words)
    return {word: math.log((1 + len(operations)) / count) for word, count in counts.items()}


def reward_features(facts: Sequence[CheckFacts], depth: int) -> tuple[str, ...]:
    """Binned reward topology: number of checks, shares of their kinds, length of the longest dependency chain.

    A feature says that a value reached a bin, so close values share most of their features.
    """
    features = [f"checks>={start}" for start in COUNT_BINS if len(facts) >= start]
    kinds = Counter(fact.kind for fact in facts)
    features += [f"{kind}>{start}" for kind in CHECK_KINDS for start in SHARE_BINS if kinds[kind] > start * len(facts)]
    features += [f"depth>={start}" for start in range(1, MAX_DEPTH + 1) if depth >= start]
    return tuple(sorted(features))


def _first_positions(text: str) -> dict[str, int]:
    positions: dict[str, int] = {}
    for place, word in enumerate(words(text[:MAX_INSTRUCTION])):
        positions.setdefault(word, place)
    return positions


def _mentioned(mentions: Sequence[tuple[float, int]]) -> set[int]:
    """Operations whose score reaches MENTION; else the best one, if any word of it occurs at all."""
    rows = {row for row, (score, _) in enumerate(mentions) if score >= MENTION}
    best = max(range(len(mentions)), key=lambda row: (mentions[row][0], -row), default=None)
    if not rows and best is not None and mentions[best][0] > 0:
        return {best}
    return rows


# Which operations a verifier demands


def _needed(facts: Iterable[CheckFacts], table: OperationTable, initial: Any, mentions: Sequence[tuple[float, int]]) -> set[int]:
    """Operations whose writes meet the demands of the checks.

    Demands that few operations meet come first. Each adds the operations that are clearly mentioned; if none of its operations is chosen
    by then, the best mentioned one.
    """
    state = initial if isinstance(initial, Mapping) else {}
    demands = dict.fromkeys(demand for fact in facts for demand in fact.demands)
    options = [candidates for demand in demands if (candidates := _candidates(demand, table, state))]
    chosen: set[int] = set()
    for candidates in sorted(options, key=len):
        chosen |= {row for row in candidates if mentions[row][0] >= CLEAR_MENTION}
        if not candidates & chosen:
            chosen.add(min(candidates, key=lambda row: (-mentions[row][0], row)))
    return chosen


def _candidates(demand: Demand, table: OperationTable, state: Mapping[Any, Any]) -> set[int]:
    """Operations that insert, remove, or set the attribute to a value that the check accepts; none if the demand holds at reset."""
    part = state.get(demand.key)
    entity, attribute = _split(demand.path, part)
    if demand.key not in table.state_keys or _holds(part, entity, attribute, demand.values):
        return set()
    is_new = isinstance(part, Mapping) and entity not in ("", ANY) and entity not in part
    return {row for row, operation in enumerate(table.operations) if _meets(operation, demand, entity, attribute, is_new)}


def _split(path: tuple[str, ...], part: Any) -> tuple[str, str]:
    """Entity and attribute of a demanded place. Entity ``: the state key holds a value or record; ANY: some entity."""
    if not path:
        return "", ""
    if isinstance(part, Mapping) and path[0] in part and not isinstance(part[path[0]], (Mapping, list, tuple)):
        return "", path[0]
    entity = path[0] if isinstance(part, Mapping) else ANY
    return entity, next((step for step in path[1:] if step != ANY), "")


def _holds(part: Any, entity: str, attribute: str, values: frozenset[object]) -> bool:
    """Whether a demanded value stands there already at reset."""
    holder = part.get(entity) if isinstance(part, Mapping) and entity else part
    return isinstance(holder, Mapping) and bool(attribute) and attribute in holder and any(holder[attribute] == value for value in values)


def _meets(operation: Operation, demand: Demand, entity: str, attribute: str, is_new: bool) -> bool:
    key = demand.key
    if is_new:
        return key in operation.inserts
    if not attribute:
        removes = key in operation.removes
        return removes or (entity in ("", ANY) and key in operation.inserts) or (not entity and (key, "") in operation.writes)
    if entity == ANY and key in operation.inserts and _accepted(operation.initial_values.get((key, attribute)), demand.values):
        return True
    if entity == ANY and key in operation.removes and not demand.values:
        return True
    if (key, ANY) in operation.writes or (key, "") in operation.writes:
        return True
    return (key, attribute) in operation.writes and _accepted(operation.values.get((key, attribute)), demand.values)


def _accepted(possible: frozenset[object] | None, demanded: frozenset[object]) -> bool:
    """Whether a value that an operation sets can be one that a check accepts; unknown values can."""
    return not possible or not demanded or bool(possible & demanded)


# What supplies what


def _with_lookups(rows: Sequence[int], operations: Sequence[Operation], mentions: Sequence[tuple[float, int]]) -> list[int]:
    """Each operation once, preceded by the lookups of its id parameters, which are preceded by theirs."""
    steps: list[int] = []
    for row in rows:
        _add_step(row, frozenset(), steps, operations, mentions)
    return steps


def _add_step(
    row: int, pending: frozenset[int], steps: list[int], operations: Sequence[Operation], mentions: Sequence[tuple[float, int]]
) -> None:
    if row in steps or row in pending:
        return
    for parameter, key in operations[row].id_parameters.items():
        supplier = _supplier(row, parameter, key, operations, mentions)
        if supplier is not None and not any(operations[step].kind == "create" and key in operations[step].inserts for step in steps):
            _add_step(supplier, pending | {row}, steps, operations, mentions)
    steps.append(row)


def _supplier(row: int, parameter: str, key: str, operations: Sequence[Operation], mentions: Sequence[tuple[float, int]]) -> int | None:
    """The lookup that finds an entity of `key` without being given it: fewest id parameters, then best mentioned, then first."""
    if operations[row].kind == "create" and key in operations[row].inserts:
        return None
    candidates = [
        other
        for other, operation in enumerate(operations)
        if other != row
        and operation.read_only
        and operation.kind in ("lookup", "search", "list")
        and any(read_key == key for read_key, _ in operation.reads)
        and parameter not in operation.parameters
        and key not in operation.id_parameters.values()
    ]
    return min(candidates, key=lambda other: (len(operations[other].id_parameters), -mentions[other][0], other), default=None)


def _dependencies(steps: Sequence[int], operations: Sequence[Operation]) -> list[tuple[int, int]]:
    """Edges a -> b between steps: a finds or creates what b's id parameters name, or writes an attribute that b reads."""
    return [(a, b) for place, b in enumerate(steps) for a in steps[:place] if _supplies(operations[a], operations[b])]


def _supplies(first: Operation, second: Operation) -> bool:
    named = frozenset(second.id_parameters.values())
    if first.read_only:
        found = {key for key, _ in first.reads} - set(first.id_parameters.values())
        return bool(found & named) and first.kind in ("lookup", "search", "list")
    return bool(first.inserts & named) or bool((first.writes - {(key, "*") for key in first.written_keys}) & second.reads)


def _depth(steps: Sequence[int], edges: Sequence[tuple[int, int]]) -> int:
    """Operations on the longest chain; 0 without operations."""
    longest = dict.fromkeys(steps, 1)
    for a, b in edges:
        longest[b] = max(longest[b], longest[a] + 1)
    return max(longest.values(), default=0)
