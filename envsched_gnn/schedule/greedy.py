"""The greedy pass: take the best task, let it lower the scores of its likes, take the next.

Knows: base scores, quotas, penalties; how to find the exact greedy batch while looking at few tasks.
Does not know: where scores come from, which tasks are eligible and why.

Only a shortlist is rescored after a pick: the tasks of highest base score. Within a round scores only fall and quotas only tighten.
So no task outside the shortlist can beat a pick that, as it stands, is still above the base of the shortlist's last.
Where that fails the shortlist grows, up to all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envsched_gnn.records import Phase, Quota
from envsched_gnn.schedule.quotas import RELAXED, Quotas
from envsched_gnn.schedule.redundancy import Redundancy

SCALE = 2.0**32
"""Scores are compared as integers round(score SCALE), so that rounding noise orders nothing (ours)."""
BLOCKED = -(2**62)
"""Integer score of a task that may not be picked."""
WHOLE_POOL = 4096
"""Up to so many tasks the shortlist is the whole pool."""
SHORTLIST = 256
"""Tasks a phase on the first shortlist of a larger pool, or `crowd` a pick if that is more."""
COMPARED = 256
"""Candidates compared with the picks at once, or a 32nd of the shortlist if that is more; WHOLE_POOL where it is but a look-up (ours)."""
GROWTH = 8
"""Factor by which the shortlist grows."""


@dataclass(frozen=True, kw_only=True)
class PhaseScore:
    """One phase of the pass: `count` picks by `base` score."""

    phase: Phase
    base: Float[Tensor, " tasks"]
    """Score before penalty and before any pick of this round; float64."""
    count: int
    spread: bool = False
    """Divide by (1 + picks of the task's environment in this round)."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One pick of the pass."""

    task: int
    phase: Phase
    score: float
    broken: tuple[Quota, ...] = ()
    """Quotas that the pick breaks."""


Column = Callable[[Tensor], Tensor]
"""Rows of tasks -> one int64 each."""
Triple = tuple[int, int, int]
"""(score, first tie-breaker, second)."""


class GreedyPass:
    """Fills one round: `choose()` gives the picks in order, never fewer than asked while eligible tasks are left."""

    def __init__(
        self,
        phases: Sequence[PhaseScore],
        *,
        eligible: Bool[Tensor, " tasks"],
        ties: tuple[Column, Column],
        env_index: Int[Tensor, " tasks"],
        quotas: Quotas,
        redundancy: Redundancy | None,
        earlier: Sequence[int] = (),
        crowd: int = 4,
    ) -> None:
        """`ties` break equal scores, the first one first, higher wins. `earlier`: tasks picked by earlier requests of this round.

        No `redundancy`, no penalty. `crowd`: how many tasks one pick typically pushes down, those of its record or of its environment.
        """
        self.phases = phases
        self.eligible, self.ties, self.env_index = eligible, ties, env_index
        self.quotas, self.redundancy = quotas, redundancy
        self.picked = list(earlier)
        self.relaxed = 0
        self.size = max(SHORTLIST, crowd * max((phase.count for phase in phases), default=0))
        if len(eligible) <= WHOLE_POOL:
            self.size = len(eligible)

    def choose(self) -> list[Choice]:
        """All picks of all phases."""
        choices: list[Choice] = []
        if not self.phases:
            return choices
        shortlist = self._shortlist(0)
        for at, phase in enumerate(self.phases):
            shortlist.enter(at)
            for _ in range(phase.count):
                while not shortlist.holds_best():
                    if shortlist.is_final and self.relaxed == len(RELAXED):
                        return choices
                    if shortlist.is_final:
                        self.relaxed += 1
                    else:
                        self.size *= GROWTH
                    shortlist = self._shortlist(at)
                    shortlist.enter(at)
                choices.append(shortlist.pick())
        return choices

    def _shortlist(self, first_phase: int) -> Shortlist:
        """The tasks of highest base score in each phase from `first_phase` on, in one copy from the device."""
        allowed = self._allowed()
        listed = torch.zeros_like(allowed)
        bounds: dict[int, Triple] = {}
        for at, phase in enumerate(self.phases[first_phase:], first_phase):
            rows, bound = top_rows(torch.round(self._base(phase) * SCALE).long(), self.ties, allowed, self.size)
            listed[rows] = True
            if bound is None:
                break
            bounds[at] = bound
        rows = torch.nonzero(listed).flatten()
        columns = [self.env_index[rows], *(phase.base[rows].view(torch.int64) for phase in self.phases)]
        host = torch.stack([rows, *(tie(rows) for tie in self.ties), *columns]).cpu().numpy()
        return Shortlist(self, host, bounds)

    def _allowed(self) -> Tensor:
        """Eligible, not picked in this round, and within the quotas that still hold; [tasks] bool."""
        device = self.env_index.device
        open_environments = self.quotas.open_environments(self.relaxed)
        if open_environments.all():
            allowed = self.eligible.clone()
        else:
            allowed = self.eligible & torch.from_numpy(open_environments).to(device)[self.env_index]
        closed = self.picked if self.relaxed else [*self.picked, *self.quotas.repeated.tolist()]
        if closed:
            allowed[torch.tensor(closed, dtype=torch.int64, device=device)] = False
        return allowed

    def _base(self, phase: PhaseScore) -> Tensor:
        """The phase's score before penalty as the round stands now, [tasks]."""
        if not phase.spread or not self.quotas.round_picks.any():
            return phase.base
        picks = torch.from_numpy(self.quotas.round_picks).to(self.env_index.device)
        return phase.base / (1 + picks)[self.env_index]


class Shortlist:
    """Candidates on the host, rescored after every pick."""

    def __init__(self, greedy: GreedyPass, host: np.ndarray, bounds: dict[int, Triple]) -> None:
        """`host`: rows (task, two tie-breakers, environment, the bits of each phase's base); no `bounds` if all allowed tasks are here."""
        self.greedy, self.bounds = greedy, bounds
        self.task, self.q, self.key, self.env = host[:4]
        self.bases = host[4:].view(np.float64)
        self.open = np.ones(len(self.task), dtype=bool)
        self.penalty = np.zeros(len(self.task))
        self.compared = np.zeros(len(self.task), dtype=np.int64)
        """With how many of the picks, in their order, each candidate has been compared: its score can only fall by the others."""

    @property
    def is_final(self) -> bool:
        """Whether it holds every allowed task."""
        return not self.bounds

    def enter(self, phase: int) -> None:
        """Score all candidates for the phase."""
        self.at, self.phase, self.base = phase, self.greedy.phases[phase], self.bases[phase]
        self.score = np.empty(len(self.task), dtype=np.int64)
        self._rescore(np.arange(len(self.task)))
        self._find_best()

    def holds_best(self) -> bool:
        """Whether the best candidate is the best of all allowed tasks."""
        if len(self.task) == 0 or self.score[self.best] == BLOCKED:
            return False
        if self.is_final:
            return True
        return (int(self.score[self.best]), int(self.q[self.best]), int(self.key[self.best])) > self.bounds[self.at]

    def pick(self) -> Choice:
        """Take the best candidate and rescore what it affects."""
        greedy, best = self.greedy, self.best
        task, env = int(self.task[best]), int(self.env[best])
        broken = greedy.quotas.broken_by(task, env) if greedy.relaxed else []
        choice = Choice(task=task, phase=self.phase.phase, score=float(self._value(best)), broken=tuple(broken))
        greedy.quotas.count(env)
        greedy.picked.append(task)
        self.open[best] = False
        self.score[best] = BLOCKED
        is_open = greedy.quotas.is_open(env, greedy.relaxed)
        if self.phase.spread or not is_open:
            same = (self.env == env).nonzero()[0]
            self.open[same] &= is_open
            self._rescore(same)
        self._find_best()
        return choice

    def _value(self, at: Int[np.ndarray, " n"] | int) -> np.ndarray | np.float64:
        """base / (1 + picks of the environment) - penalty, the division where the phase spreads."""
        base = self.base[at]
        if self.phase.spread:
            base = base / (1 + self.greedy.quotas.round_picks[self.env[at]])
        return base - self.penalty[at]

    def _rescore(self, at: Int[np.ndarray, " n"]) -> None:
        score = np.rint(self._value(at) * SCALE).astype(np.int64)
        self.score[at] = np.where(self.open[at], score, BLOCKED)

    def _find_best(self) -> None:
        """The best candidate, once it has been compared with every pick; until then it and the next best are."""
        if len(self.task) == 0:
            return
        self.best = self._highest()
        redundancy = self.greedy.redundancy
        while redundancy is not None and self.compared[self.best] < len(self.greedy.picked) and self.score[self.best] > BLOCKED:
            self._compare(self._next_best(redundancy), redundancy)
            self.best = self._highest()

    def _next_best(self, redundancy: Redundancy) -> Int[np.ndarray, " n"]:
        """The candidates of highest score that have not been compared with every pick; many at a time, since later picks want them too."""
        count = max(WHOLE_POOL if redundancy.has_table else COMPARED, len(self.task) // 32)
        top = np.argpartition(self.score, -count)[-count:] if count < len(self.task) else np.arange(len(self.task))
        return np.append(top[self.compared[top] < len(self.greedy.picked)], self.best)

    def _compare(self, at: Int[np.ndarray, " n"], redundancy: Redundancy) -> None:
        """Penalise candidates for the picks that they have not been compared with."""
        picks = np.array(self.greedy.picked[int(self.compared[at].min()) :])
        penalty = redundancy.penalties(self.task[at], picks)
        self.compared[at] = len(self.greedy.picked)
        risen = penalty > self.penalty[at]
        self.penalty[at[risen]] = penalty[risen]
        self._rescore(at[risen])

    def _highest(self) -> int:
        """The highest score; of equal ones the highest first tie-breaker, then the second."""
        at = (self.score == self.score.max()).nonzero()[0]
        for column in (self.q, self.key):
            if len(at) > 1:
                value = column[at]
                at = at[value == value.max()]
        return int(at[0])


def top_rows(
    score: Int[Tensor, " tasks"], ties: tuple[Column, Column], allowed: Bool[Tensor, " tasks"], size: int
) -> tuple[Int[Tensor, " rows"], Triple | None]:
    """Rows of the `size` largest (score, ties[0], ties[1]) among the allowed, in no order; and the best that is left out, if one is."""
    first = score.masked_fill(~allowed, BLOCKED)
    if size >= len(first) or (cut := _largest(first, size + 1)) == BLOCKED:
        return torch.nonzero(allowed).flatten(), None
    kept = [torch.nonzero(first > cut).flatten()]
    equal = torch.nonzero(first == cut).flatten()
    bound = [cut]
    for column in ties:
        size -= len(kept[-1])
        value = column(equal)
        bound.append(_largest(value, size + 1))
        kept.append(equal[value > bound[-1]])
        equal = equal[value == bound[-1]]
    return torch.cat([*kept, equal[: size - len(kept[-1])]]), (bound[0], bound[1], bound[2])


def _largest(values: Int[Tensor, " n"], k: int) -> int:
    """The k-th largest value; on the CPU by numpy's partition, which is several times faster than topk."""
    if not values.is_cpu:
        return int(torch.topk(values, k).values[-1])
    return int(np.partition(values.numpy(), len(values) - k)[len(values) - k])
