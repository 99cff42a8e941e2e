"""A scripted stand-in for a language model: it replays a reference trajectory, and drops or corrupts calls.

Knows: references, a skill that grows with practice, how a call goes wrong.
Does not know: verifiers, how episodes are executed, which task comes next.

It is no language model and proves nothing about one. It gives real environments varying rewards in milliseconds, with the traits
that a scheduler meets in training: tasks that always fail or always succeed teach nothing, what is learned in one environment
helps its other tasks, and what is learned of one kind of tool helps in other environments.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

from envsched_gnn.errors import CheckpointError
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, RolloutGroup, Task
from envsched_gnn.train.policies.references import Turns, references

SPREAD = 1.0
"""Standard deviation, in logits, of the fixed difficulty of each environment, each kind of tool and each task (ours)."""
DROP = 0.5
"""Share of wrong calls that are left out; the others are made with a wrong argument (ours)."""
MAX_READS = 3
"""Read-only calls of an episode without a reference (ours)."""
READING = frozenset({"get", "list", "find", "search", "check", "view", "show", "count", "read", "lookup", "query", "display"})
"""First words of tools that only read, for environments that do not declare their operations (ours)."""


class ScriptedPolicy:
    """Chance of a call being right: `sigmoid(logit(skill_start) + difficulties + skill_gain * practice)`.

    `difficulties` are fixed: one of the environment, one of the kind of tool (the first word of its name), one of the task.
    `practice` is that of the environment plus that of the kind of tool; see `learn`.

    Args:
        pool: tasks, and where to find their references.
        seed: of difficulties and of every choice. An episode depends on (seed, group id, rollout, practice) and on nothing else.
        skill_start: chance at difficulty 0, before any practice.
        skill_gain: logits a unit of practice.
    """

    def __init__(self, pool: Pool, *, seed: int = 0, skill_start: float = 0.35, skill_gain: float = 0.02) -> None:
        self._environments = pool.environment_of
        self._references = references(pool)
        self._spans = dict(zip(pool.keys, pool.reward_ranges, strict=True))
        self._seed = seed
        self._base = math.inf if skill_start == 1 else -math.inf if skill_start == 0 else math.log(skill_start / (1 - skill_start))
        self._gain = skill_gain
        self._difficulties: dict[str, float] = {}
        self.version = 0
        """Number of times it has learned."""
        self._environment_practice: dict[str, int] = {}
        self._tool_practice: dict[str, float] = {}

    def skill(self, task: Task, tool: str) -> float:
        """Chance that a call of `tool` in this task is right."""
        kind = kind_of(tool)
        practice = self._environment_practice.get(task.env_id, 0) + self._tool_practice.get(kind, 0.0)
        difficulty = sum(self._difficulty(name) for name in (f"environment {task.env_id}", f"tool {kind}", f"task {task.key}"))
        return _sigmoid(self._base + difficulty + self._gain * practice)

    def act(self, task: Task, group_id: str, rollout: int) -> Turns:
        """All calls of one episode, turn by turn."""
        dice = random.Random(_digest(f"{self._seed}|{group_id}|{rollout}"))
        turns = self._references.get(task.key)
        if turns is None:
            return [read_only_calls(self._environments[task.env_id], task, dice)]
        words = [value for turn in turns for call in turn for value in call["arguments"].values() if isinstance(value, str)]
        return [[made for call in turn if (made := self._attempt(task, call, words, dice)) is not None] for turn in turns]

    def learn(self, groups: Iterable[RolloutGroup]) -> None:
        """Practise on the groups of one round, as GRPO would: a group whose rewards are all equal teaches nothing.

        Any other one adds 1 to its environment's practice, and 1 in all to the kinds of tool of its task's reference, in equal
        shares. Groups are taken in the order of their ids, so that the result does not depend on which finished first.
        """
        for group in sorted(groups, key=lambda group: group.group_id):
            turns = self._references.get(group.key)
            if turns is None or not _informative(group, self._spans[group.key]):
                continue
            kinds = sorted({kind_of(call["name"]) for turn in turns for call in turn})
            self._environment_practice[group.env_id] = self._environment_practice.get(group.env_id, 0) + 1
            for kind in kinds:
                self._tool_practice[kind] = self._tool_practice.get(kind, 0.0) + 1 / len(kinds)
        self.version += 1

    def state_dict(self) -> dict[str, Any]:
        """Practice and version; plain JSON values, exact."""
        return {"version": self.version, "environments": dict(self._environment_practice), "tools": dict(self._tool_practice)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave.

        Raises:
            CheckpointError: something is missing.
        """
        try:
            self.version = int(state["version"])
            self._environment_practice = {str(name): int(count) for name, count in state["environments"].items()}
            self._tool_practice = {str(name): float(share) for name, share in state["tools"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"state of the scripted policy: {error!r}; expected version, environments and tools.") from None

    def _difficulty(self, name: str) -> float:
        if name not in self._difficulties:
            self._difficulties[name] = random.Random(_digest(f"{self._seed}|{name}")).gauss(0.0, SPREAD)
        return self._difficulties[name]

    def _attempt(self, task: Task, call: dict[str, Any], words: Sequence[str], dice: random.Random) -> dict[str, Any] | None:
        """The call, right, wrong or left out (None)."""
        right, drop = dice.random() < self.skill(task, call["name"]), dice.random() < DROP
        if right:
            return call
        return None if drop or not call["arguments"] else corrupt(call, words, dice)


def corrupt(call: dict[str, Any], words: Sequence[str], dice: random.Random) -> dict[str, Any]:
    """The same call with one argument wrong: another value of the trajectory, a number one off, a negated truth, a list cut short."""
    name = dice.choice(sorted(call["arguments"]))
    value = call["arguments"][name]
    match value:
        case bool():
            wrong: Any = not value
        case int() | float():
            wrong = value + dice.choice((-1, 1))
        case str():
            wrong = dice.choice(sorted(set(words) - {value}) or [f"{value}?"])
        case list() if value:
            wrong = value[:-1]
        case _:
            wrong = "unknown"
    return {"name": call["name"], "arguments": {**call["arguments"], name: wrong}}


def read_only_calls(environment: Environment, task: Task, dice: random.Random) -> list[dict[str, Any]]:
    """What a weak policy does without a reference: up to MAX_READS reads with values found in the prompt."""
    reading = {operation["name"] for operation in environment.operations if operation.get("type") == "query"}
    functions = [tool["function"] for tool in environment.tools]
    if not environment.operations:
        reading = {function["name"] for function in functions if kind_of(function["name"]) in READING}
    candidates = [function for function in functions if function["name"] in reading]
    chosen = dice.sample(candidates, min(len(candidates), dice.randint(1, MAX_READS)))
    words = re.findall(r"\w*[\d_]\w*", task.prompt) or task.prompt.split() or ["unknown"]
    return [{"name": function["name"], "arguments": _guess(function, words, dice)} for function in chosen]


def _guess(function: dict[str, Any], words: Sequence[str], dice: random.Random) -> dict[str, Any]:
    """A value of the right type for each required parameter."""
    schema = function.get("parameters") or {}
    values = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    guessed = {}
    for name in schema.get("required", ()):
        kind = schema.get("properties", {}).get(name, {}).get("type", "string")
        guessed[name] = values.get(kind, dice.choice(words)) if isinstance(kind, str) else dice.choice(words)
    return guessed


def kind_of(tool: str) -> str:
    """First word of a tool's name in lower case: `update` of `update_user` and of `updateUser`."""
    found = re.match(r"[^A-Za-z]*([A-Za-z][a-z]*)", tool)
    return found.group(1).lower() if found else tool


def _informative(group: RolloutGroup, span: tuple[float, float]) -> bool:
    rewards = [reward for reward in group.rewards if reward is not None and not math.isnan(reward)]
    return len(rewards) >= 2 and max(rewards) - min(rewards) > 1e-9 * (span[1] - span[0])


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
