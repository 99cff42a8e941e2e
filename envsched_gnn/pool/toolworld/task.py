"""One task: instruction, initial state, checks, gold trajectory.

Knows: how the operations' templates become text, code and calls.
Does not know: execution; the gold trajectory is right by construction, and tests run it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from string import Template
from typing import Any

from envsched_gnn.pool.toolworld.cast import Case, Cast, Part, cast, needs_staff
from envsched_gnn.pool.toolworld.operations import OPERATIONS, Operation
from envsched_gnn.pool.toolworld.outline import Outline
from envsched_gnn.pool.toolworld.prompt import instruction
from envsched_gnn.pool.toolworld.state import ASKED_DUE, RATE, UNITS, Record, build_state
from envsched_gnn.pool.toolworld.tool import keep
from envsched_gnn.pool.toolworld.world import World, stream
from envsched_gnn.records import Check, Task, Verifier

Call = dict[str, Any]

MAX_CHECKS = 16
GUARD_SHARE = 0.25
"""Share of tasks with one check that is true at reset and that no tool can break (ours)."""
TRIVIAL_LOOKUPS = 5
"""Look-ups that the gold trajectory of a trivial task makes at least; one would do (ours)."""
NUMBERED = ("create", "notice", "report")
"""Tools that give their record the next number of the sequence."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation of a case, with the look-ups that supply its identifiers."""

    case: Case
    operation: Operation
    call: Call
    lookups: list[Call]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A task's records and steps, before it is written down."""

    scene: Cast
    state: Record
    steps: list[Step]


def stage(world: World, plan: Outline, rng: random.Random) -> Stage:
    """Records and steps of a plan. The steps of an impossible task are what would solve it if nothing blocked them."""
    scene = cast(world, plan, rng)
    state, staff_id = build_state(world, scene, rng)
    batch_rates: dict[int, Any] = {}
    for case in scene.cases:
        case.values |= _values(world, case, state, staff_id, rng)
        if case.unit.pattern.batch:
            case.values["rate_value"] = batch_rates.setdefault(id(case.unit), case.values["rate_value"])
    return Stage(scene=scene, state=state, steps=_steps(world, scene, state))


def build_task(seed: int, world: World, plan: Outline, *, binary: bool, held_out: bool) -> Task:
    """The task that a plan describes."""
    rng = task_stream(seed, plan)
    made = stage(world, plan, rng)
    state = made.state | {"scheduled": _scheduled(world, made, plan.label == "trivial", rng)}
    return Task(
        env_id=plan.env_id,
        task_id=plan.task_id,
        prompt=instruction(world, [(step.case, step.operation) for step in made.steps], rng),
        initial_state=state,
        verifier=Verifier(checks=_checks(world, made.steps, rng)),
        ground_truth=_gold(world, plan.label, made),
        info={"held_out": held_out, "reward": "binary"} if binary else {"held_out": held_out},
    )


def task_stream(seed: int, plan: Outline) -> random.Random:
    """The random stream of a task's text and records."""
    return stream(seed, "task", plan.key)


def _values(world: World, case: Case, state: Record, staff_id: str, rng: random.Random) -> dict[str, Any]:
    """Everything that the templates of a case's operations may name."""
    n, today = world.names, state["today"]
    values: dict[str, Any] = {}
    for slot, part in case.parts.items():
        values[slot], values[slot + "_id"] = part.name, part.record_id
        for moment in ("final", "initial"):
            values[f"{moment}_{slot}"] = f'{moment}_state["{n[part.table + "s"]}"].get("{part.record_id}", {{}})'
    due = today + rng.randint(*ASKED_DUE)
    has_due = "due" in world.features
    contents = [r[n["capacity"]] for r in state[n["rs"]].values() if r[n["pid"]] == values.get("place_id")]
    return values | {
        "units_value": rng.randint(*UNITS),
        "due_value": due,
        "until": f", {n['w_due']} {due}" if has_due else "",
        "due_test": f' and entry["{n["due"]}"] == {due}' if has_due else "",
        "by": f" with the approval of a {n['APPROVER']}" if "approved_cancel" in world.features else "",
        "rate_value": _new_rate(world, state, rng),
        "tier_value": n[rng.choice(("tier1", "tier2"))],
        "topic_value": n[f"topic{rng.randrange(4)}"],
        "total_value": sum(contents) if values.get("place_id") in state[n["ps"]] else rng.randint(10, 40),
        "paused": n["r1"],
        "staff_id": staff_id,
    }


def _new_rate(world: World, state: Record, rng: random.Random) -> int:
    """A rate that no resource has."""
    taken = {record[world.names["rate"]] for record in state[world.names["rs"]].values()}
    return rng.choice([rate for rate in range(RATE[0], RATE[1] + 1) if rate not in taken])


def _steps(world: World, scene: Cast, state: Record) -> list[Step]:
    """All operations in order, each with the look-ups that no earlier one has made."""
    steps: list[Step] = []
    known: set[str] = set()
    number = state["sequence"]
    for case in scene.cases:
        for key in case.unit.pattern.operations:
            operation = OPERATIONS[key]
            lookups = [call for slot in operation.lookups for call in _look_up(world, case, slot)]
            if needs_staff(world, key):
                lookups.append(_call(world, "list_staff", rolefield=world.names["approver"]))
            lookups = [call for call in lookups if repr(call) not in known]
            known |= {repr(call) for call in lookups}
            steps.append(Step(case=case, operation=operation, call=_change(world, operation, case), lookups=lookups))
            number += operation.tool in NUMBERED
            if operation.tool == "create":
                case.values["new_id"] = f"{world.names['bcode']}-{number}"
    return steps


def _call(world: World, tool: str, **arguments: Any) -> Call:
    return {"name": world.names["t_" + tool], "arguments": {world.names.get(key, key): value for key, value in arguments.items()}}


def _look_up(world: World, case: Case, slot: str) -> list[Call]:
    values = case.values
    match slot:
        case "resource" if case.unit.pattern.batch:
            return [_call(world, "list_category", category=values["category_value"])]
        case "owner" | "other":
            return [_call(world, "find_owner", name=values[slot])]
        case "resource":
            return [_call(world, "find_resource", title=values[slot])]
        case "place" | "origin":
            return [_call(world, "find_place", name=values[slot])]
        case "booking":
            found = _look_up(world, case, "owner") + _look_up(world, case, "resource")
            return [*found, _call(world, "list_bookings", oid=values["owner_id"])]
        case _:
            return [_call(world, "list_place", pid=values["place_id"])]


def _change(world: World, operation: Operation, case: Case) -> Call:
    arguments = {}
    for name, value in operation.arguments:
        line = keep(name, world.features)
        if line:
            arguments[world.fill(line)] = case.values[value]
    return {"name": world.names["t_" + operation.tool], "arguments": arguments}


def _gold(world: World, label: str, made: Stage) -> list[Call] | None:
    """Look-ups and changes in order; of a trivial task look-ups alone; of an impossible task nothing."""
    if label == "impossible":
        return None
    if label == "possible":
        return [call for step in made.steps for call in (*step.lookups, step.call)]
    calls = [call for step in made.steps for call in step.lookups]
    tools = {"o": ("get_owner", "oid"), "r": ("get_resource", "rid"), "b": ("get_booking", "bid")}
    more = [
        _call(world, tools[part.table][0], **{tools[part.table][1]: part.record_id}) for part in made.scene.parts if part.table in tools
    ]
    return calls + more[: max(0, TRIVIAL_LOOKUPS - len(calls))]


def _scheduled(world: World, made: Stage, own: bool, rng: random.Random) -> Record:
    """As many operations as the task has: its own ones, due, where it is trivial; else ones on other records, not yet due.

    One more has the other kind of day and is refused whenever it is run.
    """
    today = made.state["today"]
    due, later = (lambda: today - rng.randrange(6)), (lambda: today + 1 + rng.randrange(6))
    calls = [(step.call if own else _elsewhere(step, made.scene, rng), due() if own else later()) for step in made.steps]
    refused = OPERATIONS["rate"]
    target = rng.choice([part for part in made.scene.parts if part.table == "r" and part.case is None])
    case = replace(made.steps[0].case, values={"resource_id": target.record_id, "rate_value": 0})
    calls.insert(rng.randrange(len(calls) + 1), (_change(world, refused, case), later() if own else due()))
    return {
        f"SCH-{i + 1}": {"day": day, "operation": call["name"], "arguments": dict(call["arguments"])} for i, (call, day) in enumerate(calls)
    }


def _elsewhere(step: Step, scene: Cast, rng: random.Random) -> Call:
    """The same call on records that no case is about."""
    swaps = {part.record_id: part.table for part in step.case.parts.values()}

    def other(value: Any) -> Any:
        """Another record of its table, where the value names one."""
        if value == step.case.values.get("new_id"):
            return value.split("-")[0] + f"-{rng.randint(1000, 8000)}"
        options: list[Part] = [
            part for part in scene.parts if part.table == swaps.get(value) and part.case is None and part.trait != "absent"
        ]
        return rng.choice(options).record_id if options else value

    return {"name": step.call["name"], "arguments": {key: other(value) for key, value in step.call["arguments"].items()}}


def _checks(world: World, steps: list[Step], rng: random.Random) -> tuple[Check, ...]:
    """Every operation's anchor, some of the details, at times a guard; 2 to 16."""
    found: list[tuple[bool, Check]] = []
    bases: list[str] = []
    for step in steps:
        first = step.operation.key == step.case.unit.pattern.operations[0]
        lines = [(True, step.operation.anchor)] + [(False, detail) for detail in step.operation.details]
        for essential, (text, expression) in lines:
            text = keep(text, world.features)
            if not text:
                continue
            names = {**world.names, **step.case.values}
            expression = Template(Template(expression).safe_substitute(names)).safe_substitute(names)
            if first and essential:
                bases = [*bases, expression] if world.strict else [expression]
            found.append((essential, Check(description=Template(text).safe_substitute(names), code=_code(world, bases, expression))))
    essential_count = sum(essential for essential, _ in found)
    details = [check for essential, check in found if not essential]
    room = min(len(details), MAX_CHECKS - essential_count)
    kept = rng.sample(details, rng.randint(max(0, min(room, 2 - essential_count)), room))
    checks = [check for essential, check in found if essential or any(check is other for other in kept)]
    if len(checks) < MAX_CHECKS and rng.random() < GUARD_SHARE:
        expression = world.fill('set(final_state["$ps"]) == set(initial_state["$ps"])')
        checks.append(Check(description=world.fill("Are the $PS the same ones as before?"), code=_code(world, [], expression)))
    return tuple(checks)


def _code(world: World, bases: list[str], expression: str) -> str:
    """A check passes only if the unit's first operation was done too; in a strict environment, those of all units before it as well."""
    bases = [base for base in bases if base != expression]
    if world.voice % 2 and len(bases) == 1:
        return f"def check_func(final_state):\n    return bool({bases[0]} and {expression})"
    guards = "".join(f"    if not ({base}):\n        return False\n" for base in bases)
    return f"def check_func(final_state):\n{guards}    return {expression}"
