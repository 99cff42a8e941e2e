"""Which kinds of records a task's state has, and which of them the task is about.

Knows: slots, traits, blockers. The mix of records of a state depends on the task's patterns only, never on its label: an impossible task
differs from a possible one in which records its instruction names.
Does not know: field values, text.

Traits: `live` (in good standing), `frozen` (closed, retired, shut or finished for good), `tight` (fixed limits too low for what is asked),
`absent` (named, but not there). No tool lifts the last three.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from envsched_gnn.pool.toolworld.operations import OPERATIONS
from envsched_gnn.pool.toolworld.outline import Outline, Unit
from envsched_gnn.pool.toolworld.world import World

TABLE_OF = {"owner": "o", "other": "o", "resource": "r", "place": "p", "origin": "p", "booking": "b"}
TIGHT_TABLES = "orb"
NO_APPROVER = 0.5
"""Chance that an impossible task whose first operations need approval has no approver on duty, where that alone blocks it (ours)."""


@dataclass(kw_only=True, eq=False)
class Part:
    """One record, or the lack of one."""

    table: str
    variant: str = ""
    trait: str = "live"
    case: Case | None = None
    """Whose slot it fills; None: it is there for others to be mistaken for."""
    record_id: str = ""
    name: str = ""


@dataclass(kw_only=True, eq=False)
class Case:
    """One application of a pattern's operations: a unit, or one record of a batch."""

    unit: Unit
    parts: dict[str, Part] = field(default_factory=dict)
    """By slot."""
    last_of_unit: bool = True
    values: dict[str, object] = field(default_factory=dict)

    @property
    def moves(self) -> bool:
        """Whether its resource changes place."""
        return "move" in self.unit.pattern.operations


@dataclass(frozen=True, kw_only=True)
class Cast:
    """All records of a task."""

    cases: list[Case]
    parts: list[Part]
    """Every record of the state, and the absent ones; those of cases first."""
    approver: bool
    """Whether one with the approving role is on duty."""


def needs_staff(world: World, operation: str) -> bool:
    """Whether an operation needs an approver here."""
    staff = OPERATIONS[operation].staff
    return staff is not None and (not staff or staff in world.features)


def cast(world: World, plan: Outline, rng: random.Random) -> Cast:
    """Cases with their parts, blocked where the task is impossible, among others of every kind."""
    cases = [case for unit in plan.units for case in _cases(unit)]
    own = [part for case in cases for part in case.parts.values()]
    staffed = [case for case in cases if needs_staff(world, case.unit.pattern.operations[0])]
    any_staff = any(needs_staff(world, key) for case in cases for key in case.unit.pattern.operations)
    approver = any_staff or rng.random() < 0.75
    if plan.label == "impossible" and staffed:
        approver = rng.random() >= NO_APPROVER
    supply = {table: _supply(table, own, rng) for table in "orpb"}
    if plan.label == "impossible":
        blocked = [case for case in cases if approver or case not in staffed]
        for case in sorted(blocked, key=lambda each: len(_blockers(world, each))):
            _block(world, case, supply, rng)
    return Cast(cases=cases, parts=own + _others(own, supply, rng), approver=approver)


def _cases(unit: Unit) -> list[Case]:
    pattern = unit.pattern
    if pattern.batch:
        cases = [Case(unit=unit, last_of_unit=i == unit.size - 1) for i in range(unit.size)]
        for case in cases:
            case.parts["resource"] = Part(table="r", case=case)
        return cases
    case = Case(unit=unit)
    slots = (*pattern.slots, "owner", "resource") if "booking" in pattern.slots else pattern.slots
    for slot in slots:
        wanted = (slot == "owner" and pattern.variant == "suspended") or (slot == "booking" and pattern.variant == "pending")
        case.parts[slot] = Part(table=TABLE_OF[slot], variant=pattern.variant if wanted else "", case=case)
    return [case]


def _supply(table: str, own: list[Part], rng: random.Random) -> Counter[str]:
    """How many records of each trait a table has: by number of slots, never by label."""
    slots = [part for part in own if part.table == table]
    deletions = sum(part.case is not None and "remove" in part.case.unit.pattern.operations for part in slots) if table == "o" else 0
    return Counter(
        live=len(slots) + 1 + rng.randrange(2),
        frozen=1 + len(slots) // 3 + deletions,
        tight=1 + len(slots) // 4 if table in TIGHT_TABLES else 0,
    )


def _blockers(world: World, case: Case) -> list[tuple[str, str]]:
    operation = OPERATIONS[case.unit.pattern.operations[0]]
    return [(slot, trait) for slot, trait, feature in operation.blockers if feature is None or feature in world.features]


def _block(world: World, case: Case, supply: dict[str, Counter[str]], rng: random.Random) -> None:
    """Give one part of the case a trait that makes its first operation impossible."""
    options = _blockers(world, case)
    rng.shuffle(options)
    for slot, trait in options:
        part = case.parts[slot]
        taken = supply[part.table]["taken " + trait]
        if trait == "absent" or taken < supply[part.table][trait]:
            supply[part.table]["taken " + trait] += 1
            part.trait = trait
            return
    raise AssertionError(f"{case.unit.pattern.name}: no blocker is left")


def _others(own: list[Part], supply: dict[str, Counter[str]], rng: random.Random) -> list[Part]:
    """The records of the mix that no case took."""
    others = []
    for table, counts in supply.items():
        mine = [part for part in own if part.table == table]
        free = [part.variant for part in mine if part.trait != "live"]
        left = {trait: counts[trait] - sum(part.trait == trait for part in mine) for trait in ("live", "frozen", "tight")}
        variants = free + [""] * (left["live"] - len(free))
        rng.shuffle(variants)
        others += [Part(table=table, variant=variant) for variant in variants]
        others += [Part(table=table, trait=trait) for trait in ("frozen", "tight") for _ in range(left[trait])]
    return others
