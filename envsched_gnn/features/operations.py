"""What the tools of an environment do, from their source (never executed) or from their schemas.

Knows: Python classes with state in `self`, tool schemas, the closed vocabularies of operation and gate types.
Does not know: tasks, which operations a task needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from envsched_gnn.features.effects import read_class
from envsched_gnn.features.method import MethodFacts
from envsched_gnn.records import Environment

OPS = (
    "lookup", "search", "list", "create", "update", "delete", "link", "unlink", "replace_relation", "transfer",
    "compute", "aggregate", "validate", "authorize", "notify", "terminate",
)  # fmt: skip
"""Operation types (ours)."""

READ_OPS = frozenset({"lookup", "search", "list", "compute", "aggregate", "validate"})

VERBS: Mapping[str, str] = {
    **dict.fromkeys(("get", "fetch", "read", "retrieve", "view", "show", "display", "lookup", "describe", "resolve", "cat"), "lookup"),
    **dict.fromkeys(("find", "search", "filter", "query", "grep", "match", "locate"), "search"),
    **dict.fromkeys(("list", "ls", "browse", "enumerate"), "list"),
    **dict.fromkeys(
        ("add", "create", "register", "insert", "schedule", "book", "reserve", "make", "open", "place", "submit", "post", "upload",
         "log", "record", "append", "mkdir", "touch", "new", "purchase", "order", "issue", "write", "reply", "comment"),
        "create",
    ),
    **dict.fromkeys(
        ("update", "set", "change", "modify", "edit", "mark", "adjust", "correct", "rename", "activate", "deactivate", "restore", "fill",
         "start", "lock", "unlock", "press", "reset", "toggle", "extend", "renew", "cancel", "process", "pay", "sort", "bulk"),
        "update",
    ),
    **dict.fromkeys(("delete", "remove", "erase", "drop", "purge", "rm", "rmdir", "dismiss", "clear"), "delete"),
    **dict.fromkeys(("link", "assign", "attach", "associate", "enroll", "join", "connect", "tag", "follow", "mention"), "link"),
    **dict.fromkeys(("unlink", "unassign", "detach", "disassociate", "withdraw", "leave", "disconnect", "unfollow"), "unlink"),
    **dict.fromkeys(("reassign", "replace", "swap", "move", "mv", "relocate", "switch"), "replace_relation"),
    **dict.fromkeys(("transfer", "send_money", "fund", "deposit", "refund", "exchange", "cp", "copy"), "transfer"),
    **dict.fromkeys(("calculate", "compute", "convert", "estimate", "generate", "diff", "gallon", "liter"), "compute"),
    **dict.fromkeys(("count", "sum", "total", "aggregate", "summarize", "average", "mean", "wc", "du"), "aggregate"),
    **dict.fromkeys(("check", "verify", "validate", "is", "has", "can", "confirm", "ensure", "test"), "validate"),
    **dict.fromkeys(("authorize", "approve", "grant", "revoke", "login", "logout", "authenticate", "permit", "restrict"), "authorize"),
    **dict.fromkeys(("notify", "send", "alert", "remind", "email", "message", "contact", "broadcast", "trigger"), "notify"),
    **dict.fromkeys(("terminate", "close", "end", "finish", "finalize", "complete", "archive", "retire", "stop", "shut"), "terminate"),
}  # fmt: skip
"""First word of a tool's name -> operation type (ours)."""

_STOP = frozenset(
    (
        "a",
        "an",
        "and",
        "as",
        "at",
        "by",
        "for",
        "from",
        "in",
        "into",
        "is",
        "it",
        "of",
        "on",
        "or",
        "the",
        "their",
        "this",
        "to",
        "with",
        "all",
        "any",
        "its",
        "be",
        "that",
        "if",
        "which",
        "using",
    )
)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One tool, abstracted."""

    name: str
    description: str = ""
    kind: str = "lookup"
    """One of OPS."""
    reads: frozenset[tuple[str, str]] = frozenset()
    """(state key, attribute); attribute `*`: whole entities, ``: the value itself."""
    writes: frozenset[tuple[str, str]] = frozenset()
    """The same, for attributes that are set."""
    inserts: frozenset[str] = frozenset()
    """State keys that gain entities."""
    removes: frozenset[str] = frozenset()
    """State keys that lose entities."""
    values: Mapping[tuple[str, str], frozenset[object]] = field(default_factory=dict)
    """What each attribute is set to, where only constants are."""
    initial_values: Mapping[tuple[str, str], frozenset[object]] = field(default_factory=dict)
    """Constants that attributes of inserted entities start with."""
    gates: tuple[str, ...] = ()
    """Gate types of its guard clauses, sorted, each once."""
    parameters: tuple[str, ...] = ()
    id_parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> state key whose entities it names."""
    name_words: frozenset[str] = frozenset()
    description_words: frozenset[str] = frozenset()

    @property
    def written_keys(self) -> frozenset[str]:
        """State keys that it changes in any way."""
        return self.inserts | self.removes | {key for key, _ in self.writes}

    @property
    def read_only(self) -> bool:
        """Whether it changes nothing."""
        return not self.written_keys and self.kind in READ_OPS


@dataclass(frozen=True, kw_only=True)
class OperationTable:
    """All operations of one environment."""

    operations: tuple[Operation, ...]
    """In the order of the environment's tools."""
    state_keys: frozenset[str] = frozenset()
    analysed: bool = False
    """Whether effects come from source; else from schemas and names."""


def read_operations(environment: Environment) -> OperationTable:
    """The operations of an environment: from its class if the source parses and holds the class, else from its tool schemas."""
    schemas = _schemas(environment)
    facts = read_class(environment.source, environment.name) if environment.source else None
    if facts is None:
        return OperationTable(operations=tuple(_from_schema(name, schema) for name, schema in schemas.items()))
    names = [name for name in schemas if name in facts.methods] or [name for name in facts.methods if not name.startswith("_")]
    return OperationTable(
        operations=tuple(_from_method(name, schemas.get(name, {}), facts.methods[name]) for name in names),
        state_keys=facts.state_keys,
        analysed=True,
    )


def words(text: str) -> list[str]:
    """Lower-case content words of prose, snake_case or CamelCase, roughly stemmed."""
    return [_stem(word) for word in _WORD.findall(text) if word.lower() not in _STOP]


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_A-Za-z]+")


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    word = word.lower()
    for suffix in ("ations", "ation", "ments", "ment", "ings", "ing", "ies", "ed", "es", "s", "e", "y"):
        if word.endswith(suffix) and len(word) - len(suffix) >= 4:
            return word[: -len(suffix)]
    return word[:-1] if len(word) == 4 and word.endswith("s") else word


def _schemas(environment: Environment) -> dict[str, dict[str, Any]]:
    """Tool name -> {"description", "parameters"}; operations that have no tool schema are included."""
    table: dict[str, dict[str, Any]] = {}
    for tool in environment.tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            table[function["name"]] = dict(function)
    for operation in environment.operations:
        name = operation.get("name") if isinstance(operation, Mapping) else None
        if isinstance(name, str):
            entry = table.setdefault(name, {})
            entry["effect"] = operation.get("type", "")
            entry["summary"] = operation.get("description", "")
    return table


def _description(schema: Mapping[str, Any]) -> str:
    text = schema.get("summary") or schema.get("description") or ""
    return text if isinstance(text, str) else ""


def verb_kind(name: str) -> str | None:
    """Operation type of a tool's name: of its first word that is a verb we know."""
    short = name.rsplit(".", 1)[-1]
    parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", short)]
    return next((VERBS[part] for part in parts if part in VERBS), None)


def _from_method(name: str, schema: Mapping[str, Any], facts: MethodFacts) -> Operation:
    description = _description(schema) or facts.docstring
    changes = bool(facts.writes or facts.inserts or facts.removes)
    return Operation(
        name=name,
        description=description,
        kind=_kind(name, facts, changes or schema.get("effect") == "state_change"),
        reads=facts.reads,
        writes=facts.writes,
        inserts=facts.inserts,
        removes=facts.removes,
        values=facts.values,
        initial_values=facts.initial_values,
        gates=tuple(sorted(facts.gates)),
        parameters=facts.parameters,
        id_parameters=dict(facts.id_parameters),
        name_words=frozenset(words(name)),
        description_words=frozenset(words(description[:2000])),
    )


def _kind(name: str, facts: MethodFacts, changes: bool) -> str:
    """Verb of the name, corrected by the read / write effect."""
    kind = verb_kind(name)
    if not changes:
        return kind if kind in READ_OPS else "compute" if kind else "lookup"
    if kind is not None and kind not in READ_OPS and kind not in ("create", "delete"):
        return kind
    if kind == "create" and (facts.inserts or not facts.removes):
        return "create" if facts.inserts or not facts.writes else "update"
    if kind == "delete" and not facts.removes:
        return "update" if facts.writes else "delete"
    if kind == "delete":
        return "delete"
    return "create" if facts.inserts else "delete" if facts.removes else "update"


def _from_schema(name: str, schema: Mapping[str, Any]) -> Operation:
    """Without source: verb of the name; identifiers and ranges from the parameter schema; nouns of the name stand for state keys."""
    raw = schema.get("parameters")
    properties = raw.get("properties") if isinstance(raw, Mapping) else None
    properties = properties if isinstance(properties, Mapping) else {}
    short = name.rsplit(".", 1)[-1]
    kind = verb_kind(name) or ("update" if schema.get("effect") == "state_change" else "lookup")
    nouns = [word for word in words(short) if word not in {_stem(verb) for verb in _WORD.findall(short) if verb.lower() in VERBS}]
    identifiers = {parameter: _noun(parameter) for parameter in properties if _ID.search(parameter)}
    description = _description(schema)
    keys = frozenset((noun, "*") for noun in nouns)
    return Operation(
        name=name,
        description=description,
        kind=kind,
        reads=keys,
        writes=keys if kind not in READ_OPS else frozenset(),
        gates=_schema_gates(properties, identifiers, description),
        parameters=tuple(properties),
        id_parameters=identifiers,
        name_words=frozenset(words(short)),
        description_words=frozenset(words(description[:2000])),
    )


_ID = re.compile(r"(^|_)(id|ids|number|code|token|symbol|name|username)$")
_LIMITS = frozenset({"enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "pattern"})


def _noun(parameter: str) -> str:
    return next(iter(words(_ID.sub("", parameter))), parameter)


def _schema_gates(properties: Mapping[str, Any], identifiers: Mapping[str, str], description: str) -> tuple[str, ...]:
    gates = set()
    if identifiers:
        gates.add("identifier_resolution")
    if any(isinstance(schema, Mapping) and _LIMITS & schema.keys() for schema in properties.values()):
        gates.add("value_range")
    if any("token" in parameter or "password" in parameter for parameter in properties):
        gates.add("authorization")
    if re.search(r"\b(date|time|until|deadline)\b", " ".join(properties).replace("_", " ")):
        gates.add("temporal")
    if re.search(r"\b(must|require[sd]?|only if|currently)\b", description):
        gates.add("state_precondition")
    return tuple(sorted(gates))


def mention(operation: Operation, text_words: Mapping[str, int], weight: Mapping[str, float]) -> tuple[float, int]:
    """How clearly an instruction mentions an operation, and where.

    `text_words`: word -> first position; `weight`: word -> rarity among the environment's tools. Returns the weighted share of the name's
    words that occur, plus half the description's share; and the position of the rarest name word that occurs (the end if none does).
    """
    found = [word for word in operation.name_words if word in text_words]
    share = _share(found, operation.name_words, weight)
    described = [word for word in operation.description_words if word in text_words]
    score = share + 0.5 * _share(described, operation.description_words, weight)
    end = len(text_words) + 1
    if not found:
        return score, min((text_words[word] for word in described), default=end) if share else end
    rarest = max(found, key=lambda word: (weight.get(word, 0.0), -text_words[word], word))
    return score, text_words[rarest]


def _share(found: Sequence[str], among: frozenset[str], weight: Mapping[str, float]) -> float:
    total = sum(weight.get(word, 0.0) for word in sorted(among))
    return sum(weight.get(word, 0.0) for word in sorted(found)) / total if total else 0.0
