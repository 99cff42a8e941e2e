"""The baseline: epochs over all tasks in random order, without replacement and without quotas.

Knows: the order of an epoch.
Does not know: rewards; it keeps books on them so that its figures can be compared.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any

import torch

from envsched_gnn.records import LoadReport, RolloutGroup, Selection
from envsched_gnn.schedule import state
from envsched_gnn.schedule.book import Book, check_pool
from envsched_gnn.schedule.greedy import Choice
from envsched_gnn.schedule.groups import collect
from envsched_gnn.schedule.keys import task_keys
from envsched_gnn.schedule.metrics import book_metrics

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from envsched_gnn.pool.pool import Pool

KIND = "uniform"


class Uniform:
    """Takes the tasks selected least often; among these, in the order of a key that is drawn anew for each epoch."""

    def __init__(self, pool: Pool | None, graph: HeteroData, *, batch_size: int = 64, seed: int = 0) -> None:
        """A scheduler that has selected nothing. `pool` is only checked against the graph.

        Raises:
            GraphError: the graph was built from another pool, or holds an empty reward range.
        """
        if pool is not None:
            check_pool(pool, graph)
        self.graph, self.batch_size, self.seed = copy.copy(graph), batch_size, seed
        self.book = Book(self.graph)
        self._absent: dict[str, Any] = {}

    def to(self, device: torch.device | str) -> Uniform:
        """Nothing here is worth a device; returns self."""
        return self

    def select(self, step: int, n: int | None = None, request_id: str | None = None) -> Selection:
        """min(n, eligible) tasks; eligible: not held out, not in flight, not picked at this step. The same request, the same Selection.

        An epoch ends when every eligible task has been selected as often as the others. Scores and predictions are 0: it makes none.

        Raises:
            HistoryError: a new request of a step before the latest, or a negative number.
        """
        request = (index(step), self.batch_size if n is None else index(n), request_id)
        known = self.book.recall(request)
        if known is not None:
            return known
        eligible = (~self.graph["task"].held_out).cpu()
        eligible[torch.tensor(self.book.busy(request[0]), dtype=torch.int64)] = False
        rows = eligible.nonzero().flatten()
        count = self.book.exposure.total.cpu()[rows]
        identity = self.graph["task"].identity.cpu()[rows]
        chosen: list[int] = []
        for epoch in torch.unique(count).tolist():
            at = (count == epoch).nonzero().flatten()
            order = torch.argsort(task_keys(identity[at], self.seed, epoch), descending=True)
            chosen += rows[at[order]].tolist()[: request[1] - len(chosen)]
            if len(chosen) == request[1]:
                break
        choices = [Choice(task=row, phase="uniform", score=0.0) for row in chosen]
        return self.book.register(request, choices, None, [(0.0, 0.0)] * len(chosen))

    def observe(self, groups: Iterable[RolloutGroup] | Selection, rewards: Any = None) -> None:
        """Count the groups that came back; the same forms as `EnvSched.observe`."""
        collect(groups, rewards, self.book.accept)

    def cancel(self, group_ids: Iterable[str]) -> None:
        """These groups will not report: their tasks are free again."""
        self.book.cancel([group_ids] if isinstance(group_ids, str) else group_ids)

    def metrics(self) -> dict[str, float]:
        """Flat figures for a logger, keys `envsched/...`; no predictions, so no rank correlation."""
        return book_metrics(self.book)

    def problems(self) -> tuple[str, ...]:
        """What was wrong with reports and requests; the last 200."""
        return tuple(self.book.problems)

    def state_dict(self) -> dict[str, Any]:
        """Plain data by identity."""
        return {**state.header(KIND, self.book, self._absent), **state.dump_book(self.book, self._absent)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> LoadReport:
        """Restore a state, also of a pool that has changed since.

        Raises:
            CheckpointError: this is no state of this version and kind, or it is damaged; nothing changes.
        """
        state.check(saved, KIND, state.BOOK_FIELDS)
        book = Book(self.graph)
        try:
            absent = state.load_book(saved, book)
        except state.DAMAGE as error:
            raise state.damaged(error) from error
        self.book, self._absent = book, absent
        return state.report(saved, book)
