"""The book: what was proposed, what is in flight, what came back, and what was wrong with it.

Knows: identities, group ids, requests, exposure, statistics of the groups that report.
Does not know: how tasks are chosen, what predictions are made of.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any

import torch

from envsched_gnn.errors import GraphError, HistoryError, message
from envsched_gnn.history import GroupStatistics, group_statistics
from envsched_gnn.records import Pick, Prediction, Relaxation, RolloutGroup, Selection, Use, group_id_of
from envsched_gnn.schedule import groups as incoming
from envsched_gnn.schedule.exposure import Exposure
from envsched_gnn.schedule.greedy import Choice
from envsched_gnn.schedule.reports import Accepted, Latest, Open

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from envsched_gnn.pool.pool import Pool

log = logging.getLogger(__name__)

MEMO_ROUNDS = 16
"""Rounds whose requests are remembered."""
MAX_PROBLEMS = 200
"""Problems kept for people; all are counted and logged."""

Request = tuple[int, int, str | None]
"""(step, n, request_id)."""


class Book:
    """Keeps every request and every report of one scheduler."""

    def __init__(self, graph: HeteroData) -> None:
        store = graph["task"]
        self.env_ids: list[str] = graph.env_ids
        self.task_ids: list[str] = graph.task_ids
        self.env_index, self.home_index = store.env_index.cpu().numpy(), store.home_index.cpu().numpy()
        self.low, self.high = store.reward_low.cpu(), store.reward_high.cpu()
        self.schedulable = torch.unique(store.env_index[~store.held_out]).cpu().numpy()
        """Rows of the environments with a task that is not held out: M of them."""
        self.exposure = Exposure(self.env_index, len(self.env_ids), store.env_index.device)
        self.open: dict[str, Open] = {}
        self.closed: set[str] = set()
        """Ids of the groups that have reported."""
        self.memo: dict[Request, Selection] = {}
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.latest = Latest()
        self.last_step = -1
        """Step of the latest request."""
        self._check_ranges()

    def _check_ranges(self) -> None:
        width = self.high - self.low
        bad = (~((width > 0) & width.isfinite())).nonzero().flatten().tolist()
        if bad:
            where = f"{len(bad)} tasks, the first {self.keys[bad[0]]!r}"
            found = f"reward_range [{float(self.low[bad[0]])}, {float(self.high[bad[0]])}]"
            raise GraphError(
                message(where, found, "two finite numbers, the lower one first", "Correct the pool and build the graph again.")
            )

    @cached_property
    def keys(self) -> list[str]:
        """Identity of each row."""
        return [f"{self.env_ids[e]}/{task}" for e, task in zip(self.home_index.tolist(), self.task_ids, strict=True)]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Row of each identity."""
        return {key: row for row, key in enumerate(self.keys)}

    def name(self, row: int) -> str:
        """Identity of one row, without listing all."""
        return f"{self.env_ids[self.home_index[row]]}/{self.task_ids[row]}"

    def row(self, key: str) -> int:
        """Row of an identity.

        Raises:
            HistoryError: no such task.
        """
        if key not in self.row_of:
            raise HistoryError(
                f"task {key!r} is not in the pool of {len(self.keys)} tasks; expected ENV_ID/TASK_ID, as in {self.keys[0]!r}."
            )
        return self.row_of[key]

    # ---- requests ----

    def recall(self, request: Request) -> Selection | None:
        """The Selection of an earlier, equal request.

        Raises:
            HistoryError: another request of a step before the latest.
        """
        if request in self.memo:
            return self.memo[request]
        step, n, _ = request
        if step < 0 or n < 0:
            raise HistoryError(f"select(step={step}, n={n}): expected numbers from 0 on.")
        if step < self.last_step:
            raise HistoryError(
                f"select(step={step}): step {self.last_step} was selected already, and this request is not one of the last "
                f"{MEMO_ROUNDS} rounds. Ask for steps in ascending order; an equal request of an earlier step returns the same Selection."
            )
        return None

    def register(
        self,
        request: Request,
        choices: Sequence[Choice],
        prediction: Prediction | None,
        values: Sequence[Sequence[float]],
        *,
        use: Use = "train",
        num_rollouts: int | None = None,
        more: bool = False,
    ) -> Selection:
        """Write down the answer to a request: `choices` in rank order; `prediction` and `values` (u, p) are of these."""
        step = request[0]
        first = 1 + sum(len(selection.picks) for (at, _, _), selection in self.memo.items() if at == step)
        entries, relaxations = [], []
        for position, (choice, (variance, p)) in enumerate(zip(choices, values, strict=True)):
            env_id, task_id = self.env_ids[self.home_index[choice.task]], self.task_ids[choice.task]
            pick = Pick(
                rank=first + position,
                env_id=env_id,
                task_id=task_id,
                task_index=choice.task,
                group_id=group_id_of(step, env_id, task_id, use),
                phase=choice.phase,
                score=choice.score,
                predicted_variance=variance,
                p_informative=p,
            )
            relaxations += [Relaxation(quota=quota, env_id=env_id, task_id=task_id) for quota in choice.broken]
            entries.append(pick)
            self.open[pick.group_id] = Open(
                step=step, task=choice.task, predicted_variance=variance, p_informative=p, batch=prediction, position=position, use=use
            )
        selection = Selection(
            step=step, picks=tuple(entries), relaxations=tuple(relaxations), use=use, num_rollouts=num_rollouts, more=more
        )
        self.exposure.add(step, [pick.task_index for pick in entries])
        self.last_step = max(self.last_step, step)
        self.counts["relaxations"] += len(relaxations)
        self.counts["selected"] += len(entries)
        self.memo[request] = selection
        old = self.exposure.rounds[-MEMO_ROUNDS:][0]
        self.memo = {known: kept for known, kept in self.memo.items() if known[0] >= old}
        return selection

    def busy(self, step: int) -> list[int]:
        """Rows in flight, and rows already picked at `step`."""
        return [entry.task for entry in self.open.values() if not entry.cancelled] + self.exposure.at(step).tolist()

    def shadow_rows(self, step: int, task_ids: Sequence[str]) -> list[int]:
        """Rows of the tasks that may be registered at `step`; the others become problems."""
        taken = set(self.exposure.at(step).tolist())
        rows = []
        for key in task_ids:
            row = self.row_of.get(key)
            if row is None:
                self.problem("unknown", f"shadow step {step}: task {key!r} is not in the pool; ignored")
            elif row in taken:
                self.problem("malformed", f"shadow step {step}: task {key!r} is selected at this step already; ignored")
            else:
                rows.append(row)
                taken.add(row)
        return rows

    def move_open(self, device: torch.device | str) -> None:
        """Move the predictions of open groups."""
        batches: dict[int, Prediction] = {}
        for group_id, entry in self.open.items():
            if entry.batch is not None:
                batches.setdefault(id(entry.batch), entry.batch.to(device))
                self.open[group_id] = replace(entry, batch=batches[id(entry.batch)])

    def cancel(self, group_ids: Iterable[str]) -> None:
        """These groups will not report; unknown ids and those that have reported change nothing."""
        for group_id in group_ids:
            entry = self.open.get(group_id)
            if entry is not None and not entry.cancelled:
                self.open[group_id] = replace(entry, cancelled=True)
                self.counts["cancelled"] += 1

    # ---- reports ----

    def accept(self, groups: Sequence[Any]) -> Accepted:
        """Close the groups that are new, count and describe what is wrong with the others; a bad record never hides a good one."""
        tasks, steps, expected, failed, rewards = [], [], [], [], []
        names = []
        for group in groups:
            entry = self._new(group)
            if entry is None:
                continue
            step, task, proposed = entry
            values, strange = incoming.numbers(group.rewards)
            for k in strange:
                self.problem("not_a_number", f"group {group.group_id!r}, rollout {k}: reward {group.rewards[k]!r} is no number; masked")
            if proposed is None:
                self.exposure.add(step, [task])
            tasks.append(task)
            steps.append(step)
            expected.append(proposed)
            failed.append(incoming.failed(group, values))
            rewards.append(values)
            names.append(group.group_id)
        statistics = group_statistics(rewards, self.low[tasks], self.high[tasks])
        self._count(statistics, rewards, tasks, names, failed)
        self._remember_latest(steps, expected, statistics)
        return Accepted(tasks=tasks, steps=steps, expected=expected, failed=failed, rewards=rewards, statistics=statistics)

    def _new(self, group: Any) -> tuple[int, int, Open | None] | None:
        """(step, row, what was proposed) of a group that counts; None for one that does not.

        A trainer may use group ids of its own: then step and task find the proposal.
        """
        if not isinstance(group, RolloutGroup):
            self.problem("malformed", f"{type(group).__name__} {group!r:.80}: expected a RolloutGroup; ignored")
            return None
        if group.group_id in self.closed:
            self.counts["duplicates"] += 1
            return None
        group_id = group.group_id if group.group_id in self.open else group_id_of(group.step, group.env_id, group.task_id)
        proposed = self.open.get(group_id)
        row = self.row_of.get(group.key) if proposed is None else proposed.task
        if row is None:
            self.closed.add(group.group_id)
            self.problem("unknown", f"group {group.group_id!r}: task {group.key!r} is not in the pool; ignored")
            return None
        if proposed is not None and group.key != self.name(row):
            self.problem("malformed", f"group {group.group_id!r}: reports task {group.key!r}, proposed was {self.name(row)!r}; ignored")
            return None
        try:
            step = index(group.step) if proposed is None else proposed.step
        except TypeError:
            step = -1
        if step < 0:
            self.problem("malformed", f"group {group.group_id!r}: step {group.step!r}; expected a number from 0 on; ignored")
            return None
        if step != group.step:
            self.problem("wrong_step", f"group {group.group_id!r}: says step {group.step}; counted at step {step} of its selection")
        self.closed.add(group.group_id)
        self.open.pop(group_id, None)
        return step, row, proposed

    def _count(self, statistics: GroupStatistics, rewards: list, tasks: list[int], names: list[str], failed: list[bool | None]) -> None:
        self.counts["groups"] += len(tasks)
        self.counts["observed"] += int(statistics.observed.sum())
        self.counts["failed"] += sum(f is True for f in failed)
        self.counts["masked"] += sum(map(len, rewards)) - int(statistics.num_valid.sum())
        for group, k, reward in statistics.rejected:
            low, high = float(self.low[tasks[group]]), float(self.high[tasks[group]])
            self.problem("out_of_range", f"group {names[group]!r}, rollout {k}: reward {reward} is outside [{low}, {high}]; masked")

    def _remember_latest(self, steps: list[int], expected: list[Open | None], statistics: GroupStatistics) -> None:
        rows = zip(steps, expected, statistics.observed.tolist(), statistics.variance.tolist(), statistics.mean.tolist(), strict=True)
        for step, proposed, observed, variance, mean in rows:
            if not observed or step < self.latest.step:
                continue
            if step > self.latest.step:
                self.latest = Latest(step=step)
            self.latest.variance.append(variance)
            self.latest.mean.append(mean)
            if proposed is not None:
                self.latest.predicted.append(proposed.predicted_variance)
                self.latest.realised.append(variance)

    def problem(self, kind: str, text: str) -> None:
        """Count, log and keep something that was wrong."""
        self.counts[kind] += 1
        log.warning(text)
        self.problems = [*self.problems, text][-MAX_PROBLEMS:]


def check_pool(pool: Pool, graph: HeteroData) -> None:
    """Refuse a graph of another pool.

    Raises:
        GraphError: says how to build the right one.
    """
    cure = "Build the graph again: envsched graph build POOL -o GRAPH.pt."
    if len(pool.tasks) != len(graph.task_ids):
        raise GraphError(f"graph of {len(graph.task_ids)} tasks, pool {pool.source!r} of {len(pool.tasks)}. {cure}")
    if graph.pool_hash and graph.pool_hash != pool.content_hash:
        raise GraphError(f"graph of pool {graph.pool_hash[:12]}, but pool {pool.source!r} is {pool.content_hash[:12]} by now. {cure}")


def shadow_request(step: int, task_ids: Sequence[str]) -> Request:
    """The request that registers these tasks in shadow mode: the same tasks, the same Selection."""
    digest = hashlib.sha256("\n".join(task_ids).encode("utf-8", "surrogatepass")).hexdigest()
    return step, len(task_ids), f"shadow:{digest}"
