"""The k most similar observed tasks of every task, in each relation, kept exact while tasks become observed.

Knows: which tasks have been observed, in which order (a task's slot), and everybody's running top-k.
Does not know: rewards, weights, steps. An observation that has decayed to nothing still makes a neighbour.

A neighbour is one int64 key, `round(s 2^20) << 32 | (2^32 - 1 - task)`: the larger, the nearer; ties go to the lower task; 0 is padding.
Tasks that must share a list share a row: `row [tasks]` points into the lists `[rows, k]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from envsched_gnn.graph.similarity import GRID, cross_similarity, within_similarity
from envsched_gnn.ops import sort

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch_geometric.data import HeteroData

Relation = Literal["within", "cross"]

LOW = 2**32 - 1
"""Lower half of a key: LOW - task."""
NEW_AT_ONCE = 256
"""Newly observed tasks that are merged at once into the cross lists: bounds memory."""
WITHIN_AT_ONCE = 32
"""The same, an environment, for the within lists."""
ROWS_AT_ONCE = 16_384
"""Rows of the lists that are worked on at once: bounds memory, and stays in the cache."""


@dataclass(frozen=True, kw_only=True)
class NeighborLists:
    """The neighbours of one relation. Task i has those of row `row[i]`: nearest first, padded with similarity 0, slot 0."""

    slot_index: Int[Tensor, "rows k"]
    """int32, into `Neighbors.observed`."""
    similarity: Float[Tensor, "rows k"]
    """float32."""
    row: Int[Tensor, " tasks"]


class Neighbors:
    """Running neighbour lists of a graph. Starts with nothing observed."""

    def __init__(self, graph: HeteroData) -> None:
        """Keeps a reference to `graph` and works on its device."""
        self._graph = graph
        self._k_within, self._k_cross = int(graph.within_k), int(graph.cross_k)
        self._clear()

    def _clear(self) -> None:
        store = self._graph["task"]
        tasks, records = store.env_index.numel(), store.cross_vectors.shape[0]
        device = store.env_index.device
        self.observed = torch.empty(0, dtype=torch.int64, device=device)
        self._slot_of_task = torch.full((tasks,), -1, dtype=torch.int32, device=device)
        self._within_keys = torch.zeros((1, self._k_within), dtype=torch.int64, device=device)
        self._within_row = torch.zeros(tasks, dtype=torch.int64, device=device)
        self._record_keys = torch.zeros((records, 2 * self._k_cross), dtype=torch.int64, device=device)
        self._exceptions = torch.empty(0, dtype=torch.int64, device=device)
        self._exception_keys = torch.empty((0, self._k_cross), dtype=torch.int64, device=device)
        # On the CPU a float32 product is only a filter, and half the work; a GPU's may run in TF32, so there it is float64.
        self._filter_vectors = store.cross_vectors if store.cross_vectors.is_cuda else store.cross_vectors.float()
        self._lists: dict[str, NeighborLists] = {}

    def to(self, device: torch.device | str) -> Neighbors:
        """Move the lists; the graph must have been moved before. Returns self."""
        observed = self.observed
        if self._graph["task"].env_index.device != observed.device:
            self._clear()
            self.insert(observed.to(self.observed.device))
        return self

    def insert(self, tasks: Int[Tensor, " n"]) -> None:
        """Add newly observed tasks; those that are known already, and repeats, change nothing."""
        tasks = tasks.to(self.observed.device)
        first = torch.unique(tasks[self._slot_of_task[tasks] < 0])
        if first.numel() == 0:
            return
        self._slot_of_task[first] = torch.arange(
            len(self.observed), len(self.observed) + len(first), device=first.device, dtype=torch.int32
        )
        self.observed = torch.cat([self.observed, first])
        self._insert_within(first)
        for some in first.split(NEW_AT_ONCE):
            self._insert_cross(some)
        self._lists = {}

    # ---- within: one row a task of an environment that has an observed task; row 0 is empty ----

    def _insert_within(self, new: Tensor) -> None:
        store = self._graph["task"]
        env, new_env = torch.unique(store.env_index[new], return_inverse=True)
        self._open_rows(env)
        for round_ in _rounds(new_env, WITHIN_AT_ONCE):
            touched, at = torch.unique(new_env[round_], return_inverse=True)
            candidates = _table(at, new[round_], len(touched))
            members, owner = self._members(env[touched])
            for rows, group in zip(members.split(ROWS_AT_ONCE), owner.split(ROWS_AT_ONCE), strict=True):
                self._merge_within(rows, candidates[group])

    def _merge_within(self, tasks: Int[Tensor, " rows"], candidates: Int[Tensor, "rows c"]) -> None:
        other = candidates.clamp(min=0)
        pairs = within_similarity(self._graph, tasks.repeat_interleave(other.shape[1]), other.flatten()).view(other.shape)
        new = torch.where(candidates < 0, 0, _keys(pairs, other))
        row = self._within_row[tasks]
        self._within_keys[row] = _descending(torch.cat([self._within_keys[row], new], 1))[:, : self._k_within]

    def _open_rows(self, env: Tensor) -> None:
        """Give the tasks of environments that are touched for the first time rows of their own."""
        store = self._graph["task"]
        first = store.members[store.member_offset[env]]
        members, _ = self._members(env[self._within_row[first] == 0])
        start = self._within_keys.shape[0]
        self._within_row[members] = torch.arange(start, start + len(members), device=members.device)
        self._within_keys = torch.cat([self._within_keys, self._within_keys.new_zeros((len(members), self._k_within))])

    def _members(self, env: Int[Tensor, " e"]) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
        """All tasks of some environments, and for each the position of its environment in `env`."""
        store = self._graph["task"]
        start = store.member_offset[env]
        size = store.member_offset[env + 1] - start
        owner = torch.arange(len(env), device=env.device).repeat_interleave(size)
        within = torch.arange(len(owner), device=env.device) - (size.cumsum(0) - size)[owner]
        return store.members[start[owner] + within], owner

    # ---- cross: one row a record, and one for each task that its own environment keeps from sharing its record's row ----

    def _insert_cross(self, new: Tensor) -> None:
        """Merge new tasks into the records' lists.

        A record's list is the best 2k of a ranking in which only the first k tasks of each environment count. That is the greedy basis of a
        matroid (a partition matroid, truncated): a task outside the basis of a set is in no superset's, so merging is exact; and without
        any one environment, which holds at most k of the list, the first k of the others are still in it.
        """
        store = self._graph["task"]
        record, at = torch.unique(store.record_index[new], return_inverse=True)
        exact, rough = store.cross_vectors[record], self._filter_vectors[record].T.contiguous()
        margin = (store.cross_vectors.shape[1] + 8) * 2.0**-23 + 1 / GRID
        worst = (self._record_keys[:, -1] >> 32).to(rough.dtype) / GRID
        bar = (worst - margin).clamp(min=0)
        best = torch.cat([(vectors @ rough).amax(1) for vectors in self._filter_vectors.split(ROWS_AT_ONCE)])
        for rows in (best > bar).nonzero().flatten().split(ROWS_AT_ONCE // 4):
            similarity = cross_similarity(store.cross_vectors[rows], exact)[:, at]
            self._record_keys[rows] = self._merge_cross(self._record_keys[rows], _keys(similarity, new.expand(similarity.shape)))
        changed = torch.zeros(len(best), dtype=torch.bool, device=best.device)
        changed[best > bar] = True
        self._except(changed)

    def _merge_cross(self, old: Int[Tensor, "rows 2k"], new: Int[Tensor, "rows n"]) -> Int[Tensor, "rows 2k"]:
        passing = int((new > old[:, -1:]).sum(1).amax()) if len(new) else 0
        new = _descending(new)[:, :passing]
        keys = _descending(torch.cat([old, new], 1))
        env = self._graph["task"].env_index[_task(keys)]
        keys = torch.where((keys > 0) & (_occurrence(env) >= self._k_cross), 0, keys)
        return _descending(keys)[:, : old.shape[1]]

    def _except(self, changed: Tensor) -> None:
        """Redo the tasks whose record's list changed: those whose own environment is among its first k need a list without it."""
        store = self._graph["task"]
        k = self._k_cross
        tasks = changed[store.record_index].nonzero().flatten()
        record, env = store.record_index[tasks], store.env_index[tasks]
        list_env = torch.where(self._record_keys > 0, store.env_index[_task(self._record_keys)], -1)
        own = torch.zeros_like(tasks, dtype=torch.bool)
        for column in list_env[:, :k].T.contiguous():
            own |= column[record] == env
        excepted = tasks[own]
        record = record[own]
        keys = torch.where(list_env[record] == env[own][:, None], 0, self._record_keys[record])
        keep = ~changed[store.record_index[self._exceptions]]
        self._exceptions = torch.cat([self._exceptions[keep], excepted])
        self._exception_keys = torch.cat([self._exception_keys[keep], _descending(keys)[:, :k]])

    # ---- reading ----

    def lists(self, relation: Relation) -> NeighborLists:
        """All neighbours of a relation; computed once after each change."""
        if relation not in self._lists:
            match relation:
                case "within":
                    keys, row = self._within_keys, self._within_row
                case "cross":
                    keys = torch.cat([self._record_keys[:, : self._k_cross], self._exception_keys])
                    row = self._graph["task"].record_index.clone()
                    row[self._exceptions] = torch.arange(len(self._record_keys), len(keys), device=row.device)
            slot = torch.where(keys > 0, self._slot_of_task[_task(keys)], 0)
            self._lists[relation] = NeighborLists(slot_index=slot, similarity=_similarity(keys), row=row)
        return self._lists[relation]

    def slot_index(self, relation: Relation) -> Int[Tensor, "tasks k"]:
        """Slots of every task's neighbours, nearest first; `observed[slot]` is the task."""
        lists = self.lists(relation)
        return lists.slot_index[lists.row].to(torch.int64)

    def similarity(self, relation: Relation) -> Float[Tensor, "tasks k"]:
        """Similarities of every task's neighbours, float32, nearest first; 0 is padding."""
        lists = self.lists(relation)
        return lists.similarity[lists.row]

    def of(self, relation: Relation, task: int) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
        """(tasks, similarities) of one task's neighbours, nearest first."""
        lists = self.lists(relation)
        row = lists.row[task]
        real = lists.similarity[row] > 0
        return self.observed[lists.slot_index[row][real].to(torch.int64)], lists.similarity[row][real]

    def fill(self, graph: HeteroData) -> None:
        """Write the lists to `edge_index` (row 0: neighbour j, row 1: task i) and `edge_weight` = s_ij of both relations of `graph`."""
        for relation in ("within", "cross"):
            similarity, slot = self.similarity(relation), self.slot_index(relation)
            task, column = similarity.nonzero(as_tuple=True)
            edges = graph["task", relation, "task"]
            edges.edge_index = torch.stack([self.observed[slot[task, column]], task])
            edges.edge_weight = similarity[task, column]

    def state_dict(self) -> dict[str, Any]:
        """Observed task rows in order of first observation: the lists follow from them."""
        return {"observed": self.observed.cpu().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start again with these tasks observed."""
        self._clear()
        self.insert(state["observed"])


def _keys(similarity: Float[Tensor, "*shape"], task: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    level = (similarity * GRID).round().to(torch.int64)
    return torch.where(level > 0, (level << 32) | (LOW - task), 0)


def _task(keys: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Task of each key; 0 for padding."""
    return torch.where(keys > 0, LOW - (keys & LOW), 0)


def _similarity(keys: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return (keys >> 32).to(torch.float32) / GRID


def _descending(keys: Int[Tensor, "rows n"]) -> Int[Tensor, "rows n"]:
    return sort(keys).flip(1)


def _occurrence(values: Int[Tensor, "rows n"]) -> Int[Tensor, "rows n"]:
    """How many earlier entries of the row are equal."""
    n = values.shape[1]
    place = torch.arange(n, device=values.device)
    ordered = sort(values * n + place)
    value, origin = ordered // n, ordered % n
    first = torch.cat([torch.ones_like(value[:, :1], dtype=torch.bool), value[:, 1:] != value[:, :-1]], 1)
    start = torch.where(first, place, 0).cummax(1).values
    return torch.empty_like(values).scatter_(1, origin, place - start)


def _rank_in_group(group: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """How many earlier entries belong to the same group."""
    return _occurrence(group[None])[0]


def _rounds(group: Int[Tensor, " n"], width: int) -> list[Tensor]:
    """Positions in rounds, so that no round has more than `width` of one group."""
    number = _rank_in_group(group) // width
    return [(number == r).nonzero().flatten() for r in range(int(number.max()) + 1)]


def _table(group: Int[Tensor, " n"], values: Int[Tensor, " n"], groups: int) -> Int[Tensor, "groups width"]:
    """Values of each group as a row, padded with -1."""
    column = _rank_in_group(group)
    table = values.new_full((groups, int(column.max()) + 1), -1)
    table[group, column] = values
    return table
