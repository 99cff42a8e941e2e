"""What a peer is made of: a rule that says which tasks come next, and all that it remembers.

Knows: what a rule is asked, what it answers, what it may keep.
Does not know: identities, requests, what is in flight (peer); any rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.records import Phase, Use
from envsched_gnn.schedule.keys import task_keys
from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups


@dataclass(kw_only=True)
class Memory:
    """All that a rule remembers of the rounds so far, as tensors; the host saves it by identity and restores it, rule by rule alike."""

    tasks: dict[str, Tensor] = field(default_factory=dict)
    """Tables of a row a task, [tasks, ...]."""
    environments: dict[str, Tensor] = field(default_factory=dict)
    """Tables of a row an environment, [environments, ...]."""
    shared: dict[str, Tensor] = field(default_factory=dict)
    """Whatever belongs to no task and no environment."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """The question: which of these tasks at this step."""

    step: int
    count: int
    """Tasks wanted to train on."""
    rows: Int[Tensor, " eligible"]
    """Tasks that may be picked, ascending."""
    identity: Int[Tensor, " eligible"]
    seed: int
    trip: int
    """Requests of this step that were answered before."""
    looked: Groups
    """What came back of them at this step, of selections that are not simply trained on."""

    def key(self) -> Int[Tensor, " eligible"]:
        """The seeded key that breaks ties; drawn anew for each step."""
        return task_keys(self.identity, self.seed, self.step)

    def draws(self, stream: int) -> Float[Tensor, " eligible"]:
        """A uniform number for each task, in (0, 1); drawn anew for each step and stream."""
        return chance.draws(self.identity, self.seed, self.step, stream)

    def candidates(self, size: int) -> Int[Tensor, " n"]:
        """Positions of min(size, eligible) tasks drawn without replacement, ascending."""
        if size >= len(self.rows):
            return chance.everyone(len(self.rows))
        return self.draws(chance.CANDIDATES).topk(size).indices.sort().values

    def best(self, score: Float[Tensor, " n"], among: Int[Tensor, " n"] | None = None) -> Plan:
        """The `count` tasks of highest score, ties by the key; `among` are the positions that `score` belongs to (default: all)."""
        at = chance.everyone(len(self.rows)) if among is None else among
        order = chance.ranked(score, self.key()[at], self.count)
        return Plan(rows=self.rows[at[order]], score=score[order])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer: tasks in rank order, without repeats; none if the step is over."""

    rows: Int[Tensor, " n"]
    score: Float[Tensor, " n"]
    phase: Phase = "exploitation"
    """`uniform` where chance alone chose."""
    use: Use = "train"
    num_rollouts: int | None = None
    more: bool = False
    """Ask again when these groups have reported."""


class Rule(Protocol):
    """A way to choose. Rows are those of the graph; everything it learns stands in `memory`."""

    memory: Memory

    def start(self) -> Memory:
        """The memory before any round."""
        ...

    def choose(self, ask: Ask) -> Plan:
        """Which tasks; asked once a request."""
        ...

    def learn(self, step: int, groups: Groups) -> None:
        """The round of `step` is over: all groups that reported since the last call, none with fewer than two rewards, a task at most once.

        Called once a round, also when nothing came back. A group that comes later than its round counts in the round it comes in.
        """
        ...

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Take a saved memory; tasks and environments that it did not know have the rows of `start`."""
        ...

    def metrics(self) -> dict[str, float]:
        """A few figures of its own."""
        ...
