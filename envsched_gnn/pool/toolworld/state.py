"""The initial state of a task: records with relations and consistent derived state.

Knows: fields and values of every kind of record.
Does not know: labels, instructions, checks.
"""

from __future__ import annotations

import random
from typing import Any

from envsched_gnn.pool.toolworld.cast import Cast, Part
from envsched_gnn.pool.toolworld.domain import Domain
from envsched_gnn.pool.toolworld.methods_option import TIER_POINTS
from envsched_gnn.pool.toolworld.names import ADJECTIVES, FIRM_FORMS, FIRST_NAMES, LAST_NAMES
from envsched_gnn.pool.toolworld.world import World

Record = dict[str, Any]

UNITS = (3, 6)
"""Units that a booking takes; more than a tight resource has."""
TIGHT_CAPACITY = (1, 2)
RATE = (20, 60)
"""Rates now and to be; more than a tight resource's ceiling."""
TIGHT_CAP = (8, 18)
ASKED_DUE = (15, 25)
"""Days from today that a new due day lies; later than a tight booking allows."""
HELD_DUE = (2, 9)


def build_state(world: World, cast: Cast, rng: random.Random) -> tuple[Record, str]:
    """The state, and the identifier of the staff member who approves (or would).

    Sets `record_id` and `name` of every part, absent ones included.
    """
    names = world.names
    _christen(world, cast, rng)
    present = {table: [part for part in cast.parts if part.table == table and part.trait != "absent"] for table in "oprb"}
    state: dict[str, Any] = {"today": rng.randint(100, 300), "sequence": rng.randint(1000, 8000)}
    today = state["today"]
    places = {part.record_id: _place(world, part, rng) for part in present["p"]}
    resources = {part.record_id: _resource(world, part, today, rng) for part in present["r"]}
    owners = {part.record_id: _owner(world, part, today, rng) for part in present["o"]}
    _settle(world, cast, places, rng, resources)
    bookings = {}
    for part in present["b"]:
        owner_id, resource_id = _parties(part, present, rng)
        record = _booking(world, part, today, rng)
        record |= {
            names["oid"]: owner_id,
            names["rid"]: resource_id,
            names["amount"]: record[names["units"]] * resources[resource_id][names["rate"]],
        }
        bookings[part.record_id] = record
        if part.trait != "frozen":
            resources[resource_id][names["used"]] += record[names["units"]]
            owners[owner_id][names["count"]] += 1
    for part in present["r"]:
        if part.trait != "tight":
            resources[part.record_id][names["capacity"]] += resources[part.record_id][names["used"]]
    for part in present["o"]:
        if part.trait != "tight":
            owners[part.record_id][names["limit"]] += owners[part.record_id][names["count"]]
    staff, staff_id = _staff(world, cast.approver, rng)
    _enlist(world, cast, places, present["o"], rng)
    tables = {"os": owners, "rs": resources, "ps": places, "bs": bookings, "ss": staff}
    state |= {names[key]: _shuffled(table, rng) for key, table in tables.items()}
    state |= {names[key]: {} for key, feature in (("notices", "notice"), ("reports", "report")) if feature in world.features}
    return state, staff_id


def _christen(world: World, cast: Cast, rng: random.Random) -> None:
    for table in "oprb":
        parts = [part for part in cast.parts if part.table == table]
        numbers = rng.sample(range(100, 1000), len(parts))
        given = _names(world.domain, table, len(parts), rng) if table != "b" else [""] * len(parts)
        for part, number, name in zip(parts, numbers, given, strict=True):
            part.record_id, part.name = f"{world.names[table + 'code']}-{number}", name


def _names(domain: Domain, table: str, count: int, rng: random.Random) -> list[str]:
    """Distinct names; first words are distinct as long as there are enough."""
    match table:
        case "p":
            first, last = ADJECTIVES, domain.place_heads
        case "r":
            first, last = ADJECTIVES, domain.heads
        case _:
            first, last = (LAST_NAMES, FIRM_FORMS) if domain.firms else (FIRST_NAMES, LAST_NAMES)
    pairs = list(range(len(first) * len(last)))
    return [f"{first[i // len(last)]} {last[i % len(last)]}" for i in rng.sample(pairs, count)]


def _place(world: World, part: Part, rng: random.Random) -> Record:
    n = world.names
    record: Record = {
        n["pid"]: part.record_id,
        "name": part.name,
        n["pstate"]: n["p1"] if part.trait == "frozen" else n["p0"],
        n["pcount"]: 0,
        n["pcapacity"]: rng.randint(2, 5),
    }
    if "access" in world.features:
        record |= {n["access"]: [], n["listed"]: 0}
    if "report" in world.features:
        record["last_" + n["total"]] = None
    return record


def _resource(world: World, part: Part, today: int, rng: random.Random) -> Record:
    n, tight = world.names, part.trait == "tight"
    state = n["r2"] if part.trait == "frozen" else n["r0"]
    if part.case is None and part.trait == "live" and rng.random() < 0.2:
        state = n["r1"]
    return {
        n["rid"]: part.record_id,
        n["title"]: part.name,
        n["category"]: "",
        n["rstate"]: state,
        n["pid"]: "",
        n["capacity"]: rng.randint(*TIGHT_CAPACITY) if tight else rng.randint(6, 11),
        n["used"]: 0,
        n["rate"]: rng.randint(3, 7) if tight else rng.randint(*RATE),
        n["cap"]: rng.randint(*TIGHT_CAP) if tight else rng.randint(70, 99),
        n["changed"]: today - rng.randint(1, 60),
    }


def _owner(world: World, part: Part, today: int, rng: random.Random) -> Record:
    n, tight = world.names, part.trait == "tight"
    state = n["o2"] if part.trait == "frozen" else n["o1"] if part.variant == "suspended" else n["o0"]
    record: Record = {n["oid"]: part.record_id, "name": part.name, n["ostate"]: state, n["tier"]: n["tier0"]}
    record[n["points"]] = rng.randint(10, TIER_POINTS[1] - 50) if tight else rng.randint(TIER_POINTS[2], 900)
    record |= {n["count"]: 0, n["limit"]: 0 if tight else rng.randint(2, 4), n["changed"]: today - rng.randint(1, 60)}
    if "notice" in world.features:
        record[n["notified"]] = 0
    return record


def _booking(world: World, part: Part, today: int, rng: random.Random) -> Record:
    n = world.names
    state = n["b2"] if part.trait == "frozen" else n["b0"] if part.variant == "pending" else n["b1"]
    record: Record = {n["bid"]: part.record_id, n["oid"]: "", n["rid"]: "", n["units"]: rng.randint(*UNITS), n["amount"]: 0}
    if "due" in world.features:
        due = today + rng.randint(*HELD_DUE)
        record |= {n["due"]: due, n["latest"]: due + (rng.randint(1, 3) if part.trait == "tight" else 30), n["extensions"]: 0}
    return record | {n["bstate"]: state, n["approved"]: ""}


def _settle(world: World, cast: Cast, places: dict[str, Record], rng: random.Random, resources: dict[str, Record]) -> None:
    """Give every resource a category and a place. What moves does not come from a place that a case is about."""
    n = world.names
    batch = rng.choice(world.domain.categories)
    shared = any(case.unit.pattern.batch for case in cast.cases)
    rest = [category for category in world.domain.categories if category != batch]
    about = {part.record_id for case in cast.cases for part in case.parts.values() if part.table == "p"}
    free = [place for place in places if place not in about]
    audited = [case.parts["place"].record_id for case in cast.cases if case.unit.pattern.operations[0] == "report"]
    audited = [place for place in audited if place in places]
    for part in cast.parts:
        if part.table != "r":
            continue
        in_batch = part.case is not None and part.case.unit.pattern.batch
        if part.case is not None:
            part.case.values["category_value"] = batch
        if part.trait == "absent":
            continue
        stays = part.case is None or not part.case.moves
        place = audited.pop() if stays and audited else rng.choice(list(places) if stays else free)
        resources[part.record_id] |= {
            n["category"]: batch if in_batch else rng.choice(rest if shared else world.domain.categories),
            n["pid"]: place,
        }
        places[place][n["pcount"]] += 1
    for record in places.values():
        record[n["pcapacity"]] += record[n["pcount"]]


def _parties(part: Part, present: dict[str, list[Part]], rng: random.Random) -> tuple[str, str]:
    """Owner and resource of a booking: the case's own, or ones that no case is about; current ones are of live records."""
    if part.case is not None:
        return part.case.parts["owner"].record_id, part.case.parts["resource"].record_id
    found = []
    for table in "or":
        options = [other for other in present[table] if other.case is None]
        if part.trait != "frozen":
            options = [other for other in options if other.trait == "live"]
        found.append(rng.choice(options).record_id)
    return found[0], found[1]


def _staff(world: World, approver: bool, rng: random.Random) -> tuple[dict[str, Record], str]:
    """Two of four are on duty; one of the two approvers, or none."""
    n, roles = world.names, world.domain.roles
    duty = [True, False, True, False] if approver else [False, False, True, True]
    numbers = rng.sample(range(100, 1000), 4)
    staff: dict[str, Record] = {}
    for role, on_duty, number, name in zip((roles[0], roles[0], *roles[1:]), duty, numbers, rng.sample(LAST_NAMES, 4), strict=True):
        staff_id = f"{n['scode']}-{number}"
        staff[staff_id] = {n["sid"]: staff_id, "name": f"{rng.choice(FIRST_NAMES)} {name}", n["rolefield"]: role, n["duty"]: on_duty}
    return staff, next(iter(staff))


def _enlist(world: World, cast: Cast, places: dict[str, Record], owners: list[Part], rng: random.Random) -> None:
    """Put owners on the lists of places: those who are to leave one, and a few that no case is about."""
    if "access" not in world.features:
        return
    n = world.names
    others = [part.record_id for part in owners if part.case is None]
    for case in cast.cases:
        if "origin" in case.parts:
            leaver = case.parts["owner"]
            leaver_id = rng.choice(others) if leaver.trait == "absent" else leaver.record_id
            places[case.parts["origin"].record_id][n["access"]].append(leaver_id)
    for place in places.values():
        more = [other for other in others if other not in place[n["access"]]]
        place[n["access"]] += rng.sample(more, min(len(more), rng.randrange(3)))
        rng.shuffle(place[n["access"]])
        place[n["listed"]] = len(place[n["access"]])


def _shuffled(table: dict[str, Record], rng: random.Random) -> dict[str, Record]:
    return {key: table[key] for key in rng.sample(list(table), len(table))}
