"""The pocket policy's language: what it reads of a task, and the compact calls that it writes.

Knows: words, how names and numbers are numbered, references to earlier results, how a plan is written and read back.
Does not know: models, execution.

A task reads `search_client_by_name() ... <task> move n1 to n2 <plan>`: a token for each tool of its environment, then its instruction in
lower case and without punctuation, where names and numbers stand as `n1`, `n2`, ... and `k1`, `k2`, ... A plan writes calls as
`search_client_by_name() n1 delete_client() r1 <end>`: a tool and its arguments in schema order. A name, a number or a reference `r1` (the
first identifier in the result of the first call) is an argument by itself; neighbouring words are one argument, `_` joins two of them, `|`
parts two arguments of words. The policy writes the whole plan before anything is executed. Lists, tables and fractions cannot be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from envsched_gnn.pool.episode import policy_view
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.references import reference, result_of
from envsched_gnn.records import Environment, Task

PAD, UNKNOWN, TASK, PLAN, END = "<pad>", "<unk>", "<task>", "<plan>", "<end>"
PART, JOIN, TOOL = "|", "_", "()"
SLOTS = {"n": 24, "k": 24, "r": 40}
"""Names, numbers and references that a task can have (ours)."""
DIGITS = 15
"""Of a number; a longer one is a word (ours)."""
FIRST_WORDS = 3
"""Ways to go on after a word that only begins sentences, from which on it is no part of a name (ours)."""

Call = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A task as the policy reads it."""

    environment: Environment
    ids: list[int]
    """The prompt, in tokens."""
    names: list[str]
    """What `n1`, `n2`, ... stand for."""
    numbers: list[int]
    """What `k1`, `k2`, ... stand for."""


class Language:
    """Words of a pool: of its instructions and tools, so of nothing that the policy may not see."""

    def __init__(self, pool: Pool) -> None:
        functions = [tool["function"] for environment in pool.environments for tool in environment.tools]
        self._bare = {environment.env_id: replace(environment, tools=()) for environment in pool.environments}
        prompts = [self._prompt(task) for task in pool.tasks]
        named = (words_of(f"{function['name']} {function.get('description', '')}".lower()) for function in functions)
        self._common = frozenset(chain(*named, _first_words(prompts)))
        texts = [_Text(prompt, self._common).tokens for prompt in prompts]
        size = {environment.env_id: len(environment.tools) for environment in pool.environments}
        self.longest = max(
            (len(tokens) + size[task.env_id] + 2, row) for row, (tokens, task) in enumerate(zip(texts, pool.tasks, strict=True))
        )
        """(tokens, row) of the longest task; tools that are hidden at first count."""
        options = {word for function in functions for word in _option_words(function)}
        words = set(chain(*texts)) | options
        slots = [f"{letter}{number + 1}" for letter, count in SLOTS.items() for number in range(count)]
        self.tools = sorted({function["name"] + TOOL for function in functions})
        self._tokens = list(dict.fromkeys([PAD, UNKNOWN, TASK, PLAN, END, PART, JOIN, *slots, *self.tools, *sorted(words)]))
        self._rows = {token: row for row, token in enumerate(self._tokens)}
        self.pad, self.end = self._rows[PAD], self._rows[END]
        self.free = self.encode([END, PART, JOIN, *(slot for slot in slots if slot.startswith("r")), *sorted(options)])
        """Ids that can be written without being read: the end, separators, references, the values that schemas list."""

    @property
    def size(self) -> int:
        """Tokens of the vocabulary."""
        return len(self._tokens)

    @property
    def tokenizer(self) -> Tokenizer:
        """Of texts whose tokens are parted by spaces."""
        tokenizer = Tokenizer(WordLevel(dict(self._rows), unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        return tokenizer

    def row(self, token: str) -> int | None:
        """Id of a token, None if it is unknown."""
        return self._rows.get(token)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens; an unknown one is `<unk>`."""
        return [self._rows.get(token, self._rows[UNKNOWN]) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Tokens of ids."""
        return [self._tokens[row] for row in ids]

    def read(self, environment: Environment, task: Task) -> Reading:
        """What the policy reads, and what the numbered tokens in it stand for."""
        text = _Text(self._prompt(task), self._common)
        hidden = set(task.info.get("withheld_tools", ()))
        tools = (tool["function"]["name"] for tool in environment.tools)
        ids = self.encode([*(name + TOOL for name in tools if name not in hidden), TASK, *text.tokens, PLAN])
        return Reading(environment=environment, ids=ids, names=text.names, numbers=text.numbers)

    def _prompt(self, task: Task) -> str:
        return str(policy_view(self._bare[task.env_id], task)["prompt"])

    def plan(self, reading: Reading, ids: Sequence[int]) -> list[Call]:
        """Calls of a completion, read up to `<end>`. Words before the first tool are left out; the tools say whatever else is wrong."""
        calls: list[tuple[str, list[str]]] = []
        for token in self.decode(ids):
            if token == END:
                break
            if token.endswith(TOOL):
                calls.append((token.removesuffix(TOOL), []))
            elif calls:
                calls[-1][1].append(token)
        return [_call(reading, name, tokens) for name, tokens in calls]

    def write(self, reading: Reading, plan: Sequence[Call]) -> list[int] | None:
        """The completion that writes a plan; None where the language cannot write it or the policy could not know a word of it."""
        schemas = {tool["function"]["name"]: tool["function"] for tool in reading.environment.tools}
        tokens: list[str] = []
        for call in plan:
            if call["name"] not in schemas:
                return None
            order = _properties(schemas[call["name"]])
            arguments = [_written(reading, call["arguments"][name]) for name in order if name in call["arguments"]]
            if None in arguments:
                return None
            tokens += [call["name"] + TOOL, *_parted([argument for argument in arguments if argument])]
        ids = self.encode([*tokens, END])
        unreadable = self._rows[UNKNOWN] in ids or self.plan(reading, ids) != list(plan)
        return None if unreadable else ids


def words_of(text: str) -> list[str]:
    """Words and numbers of a text, without punctuation."""
    return re.findall(r"[^\W_](?:[^\W_]|['-])*", text)


PATTERN = re.compile(r"\"([^\"\n]+)\"|((?:[A-Z][\w'-]*+)(?: [A-Z][\w'-]*+)+)|(\d++)(?![\w.]*\w)|([^\W_](?:[^\W_]|['-])*)")
"""A quotation, capitalised words in a row, a number, a word."""


class _Text:
    """An instruction in tokens, with its names and numbers set apart.

    A name is what stands in quotes, or two or more capitalised words in a row; a common word is not the first of them.
    """

    def __init__(self, text: str, common: frozenset[str]) -> None:
        self.names: list[str] = []
        self.numbers: list[int] = []
        self.tokens: list[str] = []
        for match in PATTERN.finditer(text):
            quoted, run, number, word = match.groups()
            if run and run.split(" ", 1)[0].lower() in common:
                first, run = run.split(" ", 1)
                self.tokens.append(first.lower())
            if number and len(number) <= DIGITS:
                self.tokens.append(_numbered("k", self.numbers, int(number)))
            elif quoted or (run and " " in run):
                self.tokens.append(_numbered("n", self.names, quoted or run))
            else:
                self.tokens.extend(words_of((run or number or word).lower()))


def _first_words(texts: Iterable[str]) -> set[str]:
    """Words, in lower case, that are written with a capital only where a sentence begins, and before words of many kinds.

    So "Raise" in "Raise Garner Brothers to the next level." is told from "Garner", which stands within other sentences too.
    """
    followers: dict[str, set[str]] = {}
    within: set[str] = set()
    for text in texts:
        end = 0
        for match in PATTERN.finditer(text):
            words = (match[2] or "").split(" ")
            begins = not end or any(mark in ".!?:\n" for mark in text[end : match.start()])
            if begins and len(words) > 1:
                followers.setdefault(words[0], set()).add(words[1])
            within.update(words[begins:])
            end = match.end()
    return {word.lower() for word, after in followers.items() if len(after) >= FIRST_WORDS and word not in within}


def _numbered(letter: str, known: list[Any], value: Any) -> str:
    if value not in known:
        known.append(value)
    place = known.index(value) + 1
    return f"{letter}{place}" if place <= SLOTS[letter] else UNKNOWN


def _properties(function: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Schema of each parameter of a tool, in order; empty where the pool gives none."""
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    schemas = properties.items() if isinstance(properties, Mapping) else ()
    return {name: schema if isinstance(schema, Mapping) else {} for name, schema in schemas}


def _option_words(function: Mapping[str, Any]) -> Iterator[str]:
    """Words of the values that a schema lists."""
    for schema in _properties(function).values():
        options = schema.get("enum")
        for value in options if isinstance(options, Sequence) else ():
            yield from words_of(str(value))


def _written(reading: Reading, value: object) -> list[str] | None:
    """Tokens of an argument; None if it cannot be written."""
    number = result_of(value)
    if number is not None:
        return [f"r{number + 1}"] if number < SLOTS["r"] else None
    if value in reading.names:
        return [f"n{reading.names.index(str(value)) + 1}"]
    if type(value) is int:
        return [f"k{reading.numbers.index(value) + 1}"] if value in reading.numbers else None
    return (value.replace(JOIN, f" {JOIN} ").split() or None) if isinstance(value, str) else None


def _parted(arguments: Sequence[list[str]]) -> Iterator[str]:
    """Arguments in a row, `|` between two of words."""
    after_words = False
    for tokens in arguments:
        if after_words and not _slot(tokens[0]):
            yield PART
        yield from tokens
        after_words = not _slot(tokens[0])


def _slot(token: str) -> bool:
    """Whether a token is a numbered one, which is an argument by itself."""
    return re.fullmatch(r"[nkr][1-9][0-9]{0,3}", token) is not None


def _call(reading: Reading, name: str, tokens: Sequence[str]) -> Call:
    """A call with its arguments named in schema order; those too many get names that no tool has."""
    schemas = {tool["function"]["name"]: tool["function"] for tool in reading.environment.tools}
    kinds = _properties(schemas.get(name, {}))
    values = _arguments(reading, tokens)
    names = [*kinds, *(f"argument_{place}" for place in range(len(values)))]
    return {"name": name, "arguments": {key: _typed(kinds.get(key, {}), value) for key, value in zip(names, values, strict=False)}}


def _arguments(reading: Reading, tokens: Sequence[str]) -> list[Any]:
    values: list[Any] = []
    words: list[str] = []
    for token in [*tokens, PART]:
        if token != PART and not _slot(token):
            words.append(token)
            continue
        if words:
            values.append(" ".join(words).replace(f" {JOIN} ", JOIN))
            words = []
        if token != PART:
            values.append(_meant(reading, token))
    return values


def _meant(reading: Reading, token: str) -> Any:
    """What a numbered token stands for; one that stands for nothing is itself."""
    place = int(token[1:]) - 1
    if token[0] == "r":
        return reference(place)
    known: Sequence[Any] = reading.names if token[0] == "n" else reading.numbers
    return known[place] if place < len(known) else token


def _typed(schema: Mapping[str, Any], value: object) -> object:
    """A number where text is asked for is text."""
    return str(value) if schema.get("type") == "string" and isinstance(value, int) else value
