"""Ways to try a generated task without its gold trajectory: a bounded search, and the attempt that its plan implies.

Knows: the tools, the initial state, the instruction and the score of a state (so far more than a policy). What the search never solves
supports that a task is impossible.
Does not know: gold trajectories.
"""

from __future__ import annotations

import itertools
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from envsched_gnn.pool.episode import Episode, ToolError, run_check, share_passed
from envsched_gnn.pool.toolworld.outline import Outline
from envsched_gnn.pool.toolworld.task import stage, task_stream
from envsched_gnn.pool.toolworld.world import World
from envsched_gnn.records import Environment, Task

Call = dict[str, Any]
State = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best trajectory of a search."""

    score: float
    trajectory: tuple[Call, ...]
    evaluated: int
    """States that were scored."""


def solve(environment: Environment, task: Task, budget: int = 1000) -> Found:
    """Best-first search: expand the state with the highest score, the shallower first; descend into the first child that scores more.

    Tries every state-changing tool with identifiers of the state, legal values, numbers of the instruction and sums over the state.
    """
    episode = Episode(environment, task)
    lookup = _first_lookup(environment, episode.state())
    episode.call(lookup["name"], lookup["arguments"])
    start = episode.state()
    best = Found(score=_score(task, start), trajectory=(lookup,), evaluated=1)
    frontier = [(best.score, best.trajectory, _children(environment, task, start))]
    seen = {repr(start)}
    evaluated = 1
    while frontier and evaluated < budget and best.score < 1.0:
        frontier.sort(key=lambda node: (-node[0], len(node[1])))
        _, trajectory, children = frontier[0]
        found = next((pair for pair in children if repr(pair[1]) not in seen), None)
        if found is None:
            frontier.pop(0)
            continue
        call, state = found
        seen.add(repr(state))
        evaluated += 1
        reached = _score(task, state)
        frontier.append((reached, (*trajectory, call), _children(environment, task, state)))
        if reached > best.score:
            best = Found(score=reached, trajectory=(*trajectory, call), evaluated=evaluated)
    return replace(best, evaluated=evaluated)


def reference(seed: int, world: World, plan: Outline) -> list[Call]:
    """Look-ups and changes in the order of the instruction: the gold trajectory of a possible task, a vain attempt at an impossible one."""
    steps = stage(world, plan, task_stream(seed, plan)).steps
    return [call for step in steps for call in (*step.lookups, step.call)]


def candidates(environment: Environment, task: Task, state: State) -> Iterator[Call]:
    """Every state-changing call with arguments that the state or the instruction supplies."""
    changing = {operation["name"] for operation in environment.operations if operation["type"] == "state_change"}
    numbers = sorted({int(number) for number in re.findall(r"\d+", task.prompt)})
    strings = _strings(state)
    sums = _sums(state)
    for tool in environment.tools:
        function = tool["function"]
        if function["name"] not in changing:
            continue
        options: dict[str, list[Any]] = {}
        for name, schema in function["parameters"]["properties"].items():
            if schema["type"] == "integer":
                options[name] = sums if schema["description"].startswith("Sum") else numbers
            else:
                legal: list[str] = schema.get("enum") or list(strings[name])
                options[name] = sorted(legal, key=lambda value: (value not in task.prompt, value))
        for values in itertools.product(*options.values()):
            yield {"name": function["name"], "arguments": dict(zip(options, values, strict=True))}


def _children(environment: Environment, task: Task, state: State) -> Iterator[tuple[Call, State]]:
    """Calls that succeed in a state, with the state after each. A refused call changes nothing: only after a success is it set back."""
    episode = Episode(environment, replace(task, initial_state=state))
    before = pickle.dumps(state)
    for call in candidates(environment, task, state):
        try:
            outcome = episode.call(call["name"], call["arguments"])
        except ToolError:
            continue
        if outcome["success"]:
            yield call, episode.state()
            vars(episode._instance).update(pickle.loads(before))


def _score(task: Task, state: State) -> float:
    return share_passed(task, [run_check(check.code, state, task.initial_state) for check in task.verifier.checks])


def _first_lookup(environment: Environment, state: State) -> Call:
    """A read-only call, which has the due operations carried out."""
    strings = _strings(state)
    queries = {operation["name"] for operation in environment.operations if operation["type"] == "query"}
    for tool in environment.tools:
        names = list(tool["function"]["parameters"]["properties"])
        if tool["function"]["name"] in queries and all(strings[name] for name in names):
            return {"name": tool["function"]["name"], "arguments": {name: min(strings[name]) for name in names}}
    raise AssertionError(f"{environment.env_id}: no look-up can be called")


def _records(state: State) -> Iterator[dict[str, Any]]:
    for name, table in state.items():
        if isinstance(table, dict) and name != "scheduled":
            yield from table.values()


def _strings(state: State) -> dict[str, set[str]]:
    """Field name -> its values in the state."""
    found: dict[str, set[str]] = defaultdict(set)
    for record in _records(state):
        for name, value in record.items():
            if isinstance(value, str) and value:
                found[name].add(value)
    return found


def _sums(state: State) -> list[int]:
    """Sums of every whole-number field over the records of a table that share an identifier."""
    totals: dict[tuple[str, str, str], int] = defaultdict(int)
    for record in _records(state):
        for name, value in record.items():
            if isinstance(value, int) and not isinstance(value, bool):
                for other, group in record.items():
                    if isinstance(group, str) and other.endswith("_id"):
                        totals[(name, other, group)] += value
    return sorted(set(totals.values()))
