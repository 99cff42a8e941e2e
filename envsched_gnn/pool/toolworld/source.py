"""The environment record of a world: class source, tool schemas, rules, state schema, operations.

Knows: how templates become Python and OpenAI function schemas.
Does not know: tasks, what the tools mean.
"""

from __future__ import annotations

from typing import Any

from envsched_gnn.pool.toolworld.tool import Method, Parameter, keep
from envsched_gnn.pool.toolworld.world import World
from envsched_gnn.records import Environment

MAX_TURNS = 60
"""Tool calls an episode: half as many again as the longest gold trajectory needs (ours)."""

HEADER = '''def carry_out_due(world) -> None:
    """Carry out the scheduled operations whose day has come; one that is refused is dropped."""
    for key in list(world.scheduled):
        entry = world.scheduled[key]
        if entry["day"] <= world.today:
            del world.scheduled[key]
            getattr(world, entry["operation"])(**entry["arguments"])


class $World:
    """Backend of the $SUMMARY."""

    def __init__(self, init_config: dict):
        self.today = 0
        self.sequence = 0
        self.$os = {}
        self.$rs = {}
        self.$ps = {}
        self.$bs = {}
        self.$ss = {}
        ?notice self.$notices = {}
        ?report self.$reports = {}
        self.scheduled = {}
'''

ENTITIES = (
    ("$o", "name, $ostate, $tier, $points, $count, $limit, $notified, $changed", "A $O, with the number of current $BS."),
    ("$r", "$title, $category, $rstate, $pid, $capacity, $used, $rate, $cap, $changed", "A $R that belongs to a $P."),
    ("$p", "name, $pstate, $pcapacity, $pcount, $access, $listed", "A $P, with the number of $RS in it."),
    ("$b", "$oid, $rid, $units, $amount, $bstate, $approved", "A $B of a $R for a $O."),
    ("$s", "name, $rolefield, $duty", "A $S who may approve."),
)


def environment(world: World) -> Environment:
    """The record of one environment, in EnvScaler's conventions."""
    rules = [world.fill(line) for m in world.methods for rule in m.rules if (line := keep(rule, world.features))]
    return Environment(
        env_id=world.env_id,
        name=world.names["World"],
        description=f"This environment is the {world.domain.summary}. {_introduction(world)}",
        source=source(world),
        tools=tuple(_schema(world, method) for method in world.methods),
        rules=tuple(dict.fromkeys(rules)),
        state_schema=[
            {"entity": world.fill(noun), "attributes": world.fill(f"{noun}_id, {fields}"), "description": world.fill(text)}
            for noun, fields, text in _braced(ENTITIES)
        ],
        operations=tuple(
            {
                "name": world.names["t_" + method.key],
                "description": world.fill(method.text),
                "type": "query" if method.query else "state_change",
            }
            for method in world.methods
        ),
        max_turns=MAX_TURNS,
        licence="Apache-2.0",
    )


def source(world: World) -> str:
    """Python source of the environment's class."""
    parts = [keep(HEADER, world.features).replace("$SUMMARY", world.domain.summary)]
    parts += [_method(world, method) for method in world.methods]
    return world.fill("\n".join(parts))


def _introduction(world: World) -> str:
    strict = " Items of a request are taken in order: one counts only when all before it are done." if world.strict else ""
    return world.fill(
        "It keeps $OS, $RS, $PS, $BS and $SS: a $B gives a $O some $w_units of a $R, and every $R belongs to a $P. "
        "Operations may be scheduled for a day; those that are due are carried out as soon as anything is looked up." + strict
    )


def _method(world: World, method: Method) -> str:
    parameters = _parameters(world, method)
    signature = ", ".join(["self", *(f"{p.name}: {p.kind}" for p in parameters)])
    body = "\n".join("        " + line for line in keep(method.body, world.features).split("\n"))
    return f'    def $t_{method.key}({signature}) -> dict:\n        """{method.text}"""\n{body}\n'


def _schema(world: World, method: Method) -> dict[str, Any]:
    parameters = _parameters(world, method)
    properties: dict[str, Any] = {}
    for parameter in parameters:
        entry: dict[str, Any] = {"type": "string" if parameter.kind == "str" else "integer", "description": world.fill(parameter.text)}
        if parameter.values:
            entry["enum"] = [world.fill(value) for value in parameter.values]
        properties[world.fill(parameter.name)] = entry
    return {
        "type": "function",
        "function": {
            "name": world.names["t_" + method.key],
            "description": world.fill(method.text),
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }


def _parameters(world: World, method: Method) -> list[Parameter]:
    return [p for p in method.parameters if p.feature is None or p.feature in world.features]


def _braced(entities: tuple[tuple[str, str, str], ...]) -> list[tuple[str, str, str]]:
    return [("${" + noun[1:] + "}", fields, text) for noun, fields, text in entities]
