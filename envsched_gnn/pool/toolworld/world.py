"""One environment's variant of its domain: which nouns, field names, tool verbs, optional tools and guards it has.

Knows: how environment `index` of a seed is drawn, independently of how many environments there are.
Does not know: source code, state, tasks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from envsched_gnn.pool.toolworld.domain import Domain, plural, words
from envsched_gnn.pool.toolworld.domains_public import PUBLIC
from envsched_gnn.pool.toolworld.domains_trade import TRADE
from envsched_gnn.pool.toolworld.methods_change import CHANGES
from envsched_gnn.pool.toolworld.methods_option import OPTIONAL
from envsched_gnn.pool.toolworld.methods_query import QUERIES
from envsched_gnn.pool.toolworld.tool import Method

DOMAINS: tuple[Domain, ...] = PUBLIC + TRADE

GUARDS = ("due", "limit", "approved_cancel")
"""Optional preconditions and parameters; each holds in about two environments of three (ours)."""
OPTIONS = ("confirm", "reactivate", "tier", "access", "notice", "report", "remove")
"""Optional tools; an environment has 4 to 7 of them (ours)."""
STRICT = 1 / 3
"""Share of environments where an item of an instruction counts only if all items before it are done (ours)."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything about an environment that its tasks share."""

    index: int
    env_id: str
    domain: Domain
    features: frozenset[str]
    names: Mapping[str, str]
    """What each `$name` of a template stands for here."""
    methods: tuple[Method, ...]
    """In the order of the class."""
    voice: int
    """Style of its instructions."""
    strict: bool
    """Whether an item of an instruction counts only if all items before it are done."""
    preference: tuple[float, ...]
    """Weights in [0.25, 1.75] that tilt which patterns are common, indexed by pattern."""

    def fill(self, template: str) -> str:
        """The template with this world's names; other `$names` are left for the task."""
        return Template(template).safe_substitute(self.names)


def stream(*parts: object) -> random.Random:
    """A private random stream, the same in every process."""
    return random.Random("toolworld/" + "/".join(map(str, parts)))


def draw_world(seed: int, index: int, patterns: int) -> World:
    """Environment `index`: domains take turns in a seeded order, variants of the same domain take turns over its nouns."""
    rng = stream(seed, "world", index)
    order = stream(seed, "domains").sample(DOMAINS, len(DOMAINS))
    domain = order[index % len(DOMAINS)]
    features = frozenset(
        [guard for guard in GUARDS if rng.random() < 2 / 3] + rng.sample(OPTIONS, rng.randint(4, len(OPTIONS))),
    )
    names = _names(domain, index // len(DOMAINS), rng)
    methods = [m for m in QUERIES + CHANGES + OPTIONAL if m.feature is None or m.feature in features]
    names |= {"t_" + method.key: Template(rng.choice(method.verbs) + "_" + method.stem).substitute(names) for method in methods}
    rng.shuffle(methods)
    return World(
        index=index,
        env_id=f"{domain.name}_{index:05d}",
        domain=domain,
        features=features,
        names=names,
        methods=tuple(methods),
        voice=rng.randrange(4),
        preference=tuple(0.25 + 1.5 * rng.random() for _ in range(patterns)),
        strict=rng.random() < STRICT,
    )


def _names(domain: Domain, turn: int, rng: random.Random) -> dict[str, str]:
    """Nouns by turn, so that the first variants of a domain differ; field names at random."""
    roles = {"o": domain.owner, "r": domain.resource, "p": domain.place, "b": domain.booking, "s": domain.staff}
    names: dict[str, str] = {}
    for offset, (role, options) in enumerate(roles.items()):
        noun = options[(turn + offset * (turn // 3)) % len(options)]
        names |= {
            role: noun,
            role + "s": plural(noun),
            role + "id": noun + "_id",
            role.upper(): words(noun),
            role.upper() + "S": words(plural(noun)),
        }
        names[role + "code"] = noun[:3].upper()
    o, r, p, b = names["o"], names["r"], names["p"], names["b"]
    report = rng.choice(domain.report)
    names |= {
        "World": "".join(
            part.capitalize() for part in (domain.name + "_" + b + "_" + rng.choice(("system", "backend", "service", "desk"))).split("_")
        ),
        "ostate": rng.choice(("status", "standing", f"{o}_status")),
        "rstate": rng.choice(("status", "state", f"{r}_status")),
        "pstate": rng.choice(("status", "condition", f"{p}_status")),
        "bstate": rng.choice(("status", "stage", f"{b}_status")),
        "title": rng.choice(("title", "label", f"{r}_name")),
        "category": rng.choice(("category", "kind", "type")),
        "units": domain.units,
        "capacity": domain.capacity,
        "used": domain.used,
        "rate": rng.choice(domain.rate),
        "due": domain.due,
        "latest": "latest_" + domain.due,
        "extensions": rng.choice(("extensions", "renewals", "prolongations")),
        "amount": rng.choice(("amount", "total_price", "cost")),
        "count": rng.choice((f"open_{names['bs']}", f"{b}_count", f"current_{names['bs']}")),
        "limit": rng.choice((f"max_{names['bs']}", f"{b}_limit")),
        "tier": rng.choice(("tier", "level", "grade")),
        "points": rng.choice(("points", "score", "credits")),
        "notified": rng.choice(("notices_sent", "message_count", "times_notified")),
        "changed": rng.choice(("changed_on", "updated_on", "last_change_day")),
        "approved": rng.choice(("approved_by", "authorized_by", "signed_off_by")),
        "pcount": f"{r}_count",
        "pcapacity": f"max_{names['rs']}",
        "access": rng.choice(domain.access),
        "notice": rng.choice(("notice", "message", "reminder")),
        "report": report,
        "total": f"total_{rng.choice(('capacity', 'volume', 'size'))}",
        "rolefield": rng.choice(("role", "position_title", "function")),
        "duty": rng.choice(("on_duty", "is_active", "signed_in")),
        "approver": domain.roles[0],
        "APPROVER": words(domain.roles[0]),
    }
    names["cap"] = f"max_{names['rate']}"
    names["listed"] = f"{names['access']}_size"
    names["notices"], names["reports"] = plural(names["notice"]), plural(report)
    names |= {f"{role}{i}": state for role, states in _states(domain).items() for i, state in enumerate(states)}
    words_of = ("rate", "units", "due", "amount", "tier", "access", "notice", "report", "total", "capacity", "category", "used")
    names |= {"w_" + name: words(names[name]) for name in words_of}
    names |= {"w_" + state: words(names[state]) for state in ("o0", "o1", "o2", "r0", "r1", "r2", "p0", "p1", "b0", "b1", "b2", "b3")}
    return names


def _states(domain: Domain) -> dict[str, tuple[str, ...]]:
    return {
        "o": domain.owner_states,
        "r": domain.resource_states,
        "p": domain.place_states,
        "b": domain.booking_states,
        "topic": domain.topics,
        "tier": domain.tiers,
    }
