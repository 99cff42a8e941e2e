"""The instruction of a task, in the voice of its environment. Names, never identifiers.

Knows: clauses, openings, lists, closings.
Does not know: labels, checks.
"""

from __future__ import annotations

import random
from string import Template

from envsched_gnn.pool.toolworld.cast import Case
from envsched_gnn.pool.toolworld.operations import Operation
from envsched_gnn.pool.toolworld.world import World

OPENINGS = (
    "Please take care of the following.",
    "The $S on shift left this for you.",
    "Here is today's work for the $BS desk.",
    "These requests came in this morning.",
    "Some $BS, $RS and $OS need attention.",
    "Work through this list for us.",
)
CLOSINGS = (
    "Look up whatever you need, and change nothing else.",
    "Use the tools; nobody else is going to do it.",
    "Leave everything else as it is.",
    "Tell us when it is done.",
    "",
)
JOINERS = (" Then: ", " Also: ", " Next: ", " Besides: ")


def instruction(world: World, steps: list[tuple[Case, Operation]], rng: random.Random) -> str:
    """Opening, one clause an operation (one a batch), closing."""
    clauses = []
    for case, operation in steps:
        if case.unit.pattern.batch and not case.last_of_unit:
            continue
        template = operation.batch_clause if case.unit.pattern.batch else rng.choice(operation.clauses)
        clauses.append(_capital(Template(template).substitute({**world.names, **case.values})))
    return "".join((world.fill(rng.choice(OPENINGS)), _body(world.voice, clauses, rng), world.fill(rng.choice(CLOSINGS)))).strip()


def _body(voice: int, clauses: list[str], rng: random.Random) -> str:
    match voice:
        case 0:
            return "\n" + "\n".join(f"{i + 1}. {clause}" for i, clause in enumerate(clauses)) + "\n"
        case 1:
            return "\n" + "\n".join(f"- {clause}" for clause in clauses) + "\n"
        case 2:
            return " " + clauses[0] + "".join(rng.choice(JOINERS) + clause for clause in clauses[1:]) + " "
        case _:
            return " " + " ".join(clauses) + " "


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
