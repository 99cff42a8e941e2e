"""The k most similar observed tasks of every task, in each relation, kept exact while tasks become observed.

Knows: which tasks have been observed, in which order (a task's slot), and everybody's running top-k.
Does not know: rewards, weights, steps. An observation that has decayed to nothing still makes a neighbour.

Neighbours are compared as int64 keys, `round(s 2^20) << 32 | (2^32 - 1 - task)`: the larger, the nearer; ties go to the lower task; 0 pads.
Tasks that share a list share a row: `row [tasks]` points into the lists `[rows, k]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.graph.similarity import GRID, cross_similarity, within_similarity
from envsched_gnn.ops import sort

Relation = Literal["within", "cross"]
RELATIONS: tuple[Relation, ...] = ("within", "cross")

LOW = 2**32 - 1
"""Lower half of a key: LOW - task."""
NEW_AT_ONCE = 256
"""Newly observed tasks that are merged at once into the cross lists: bounds memory."""
WITHIN_AT_ONCE = 32
"""The same, an environment, for the within lists."""
ROWS_AT_ONCE = 16_384
"""Rows of the lists that are worked on at once: bounds memory, and stays in the cache."""
FLOAT32_MARGIN = 2.0**-23
"""Largest error of a float32 product of unit vectors, a dimension: the filter before the exact product lets this much more pass."""


@dataclass(frozen=True, kw_only=True)
class NeighborLists:
    """The neighbours of one relation. Task i has those of row `row[i]`: nearest first, padded with similarity 0, slot 0."""

    slot_index: Int[Tensor, "rows k"]
    """int32, into `Neighbors.observed`."""
    similarity: Float[Tensor, "rows k"]
    """float32."""
    row: Int[Tensor, " tasks"]


class Neighbors:
    """Running neighbour lists of a graph. Starts with nothing observed. A relation whose k is 0 has no neighbours, ever."""

    def __init__(self, graph: HeteroData) -> None:
        """Keeps a reference to `graph` and works on its device."""
        self._graph = graph
        self._k_within, self._k_cross = int(graph.within_k), int(graph.cross_k)
        self._clear()

    def _clear(self) -> None:
        store = self._graph["task"]
        tasks, records, device = store.env_index.numel(), store.cross_vectors.shape[0], store.env_index.device
        self.observed = torch.empty(0, dtype=torch.int64, device=device)
        self._slot_of_task = torch.full((tasks,), -1, dtype=torch.int32, device=device)
        self._env_of_slot = torch.empty(0, dtype=torch.int32, device=device)
        # Row 0 of the within lists is empty; the tasks of an environment get rows when one of them is observed.
        self._within_slot, self._within_similarity = _empty(1, self._k_within, device)
        self._within_row = torch.zeros(tasks, dtype=torch.int64, device=device)
        self._record_slot, self._record_similarity = _empty(records, 2 * self._k_cross, device)
        self._record_env = torch.full((self._k_cross, records), -1, dtype=torch.int32, device=device)
        self._excepted = torch.empty(0, dtype=torch.int64, device=device)
        self._excepted_slot, self._excepted_similarity = _empty(0, self._k_cross, device)
        # On the CPU a float32 product is only a filter, and half the work; a GPU's may run in TF32, so there it is float64.
        self._filter_vectors = store.cross_vectors.float() if store.cross_vectors.is_cpu else store.cross_vectors
        self._lists: dict[str, NeighborLists] = {}

    def to(self, device: torch.device | str) -> Neighbors:
        """Follow the graph, which must have been moved to `device` before. Returns self."""
        if self._graph["task"].env_index.device != self.observed.device:
            self.load_state_dict(self.state_dict())
        return self

    def insert(self, tasks: Int[Tensor, " n"]) -> None:
        """Add newly observed tasks; those that are known already, and repeats, change nothing."""
        tasks = tasks.to(self.observed.device)
        new = tasks[self._slot_of_task[tasks] < 0]
        new = new[_rank_in_group(new) == 0]
        if new.numel() == 0:
            return
        self._slot_of_task[new] = torch.arange(len(self.observed), len(self.observed) + len(new), device=new.device, dtype=torch.int32)
        self.observed = torch.cat([self.observed, new])
        self._env_of_slot = self._graph["task"].env_index[self.observed].to(torch.int32)
        # Only where some environment has more than k observed tasks can it have too many in a record's list.
        self._crowded = bool(torch.bincount(self._env_of_slot).amax() > self._k_cross)
        if self._k_within:
            self._insert_within(new)
        for some in new.split(NEW_AT_ONCE) if self._k_cross else ():
            self._insert_cross(some)
        self._lists = {}

    def _keys(self, slot: Int[Tensor, "*shape"], similarity: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        return _keys(similarity, self.observed[slot])

    def _slots(self, keys: Int[Tensor, "*shape"]) -> tuple[Int[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """(slot, similarity) of each key."""
        slot = self._slot_of_task[torch.where(keys > 0, LOW - (keys & LOW), self.observed[0])]
        return slot.masked_fill_(keys == 0, 0), (keys >> 32).to(torch.float32).div_(GRID)

    # ---- within: one row a task of an environment that has an observed task ----

    def _insert_within(self, new: Tensor) -> None:
        store = self._graph["task"]
        env, new_env = torch.unique(store.env_index[new], return_inverse=True)
        self._open_rows(env)
        for positions in _rounds(new_env, WITHIN_AT_ONCE):
            touched, at = torch.unique(new_env[positions], return_inverse=True)
            candidates = _table(at, new[positions], len(touched))
            members, owner = self._members(env[touched])
            for rows, group in zip(members.split(ROWS_AT_ONCE), owner.split(ROWS_AT_ONCE), strict=True):
                self._merge_within(rows, candidates[group])

    def _merge_within(self, tasks: Int[Tensor, " rows"], candidates: Int[Tensor, "rows c"]) -> None:
        other = candidates.clamp(min=0)
        pairs = within_similarity(self._graph, tasks.repeat_interleave(other.shape[1]), other.flatten()).view(other.shape)
        new = _keys(pairs.masked_fill(candidates < 0, 0), other)
        row = self._within_row[tasks]
        old = self._keys(self._within_slot[row], self._within_similarity[row])
        keys = _descending(torch.cat([old, new], 1))[:, : self._k_within]
        self._within_slot[row], self._within_similarity[row] = self._slots(keys)

    def _open_rows(self, env: Tensor) -> None:
        """Give the tasks of environments that are touched for the first time rows of their own."""
        store = self._graph["task"]
        first = store.members[store.member_offset[env]]
        members, _ = self._members(env[self._within_row[first] == 0])
        start = len(self._within_slot)
        self._within_row[members] = torch.arange(start, start + len(members), device=members.device)
        slot, similarity = _empty(len(members), self._k_within, members.device)
        self._within_slot = torch.cat([self._within_slot, slot])
        self._within_similarity = torch.cat([self._within_similarity, similarity])

    def _members(self, env: Int[Tensor, " e"]) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
        """All tasks of some environments, and for each the position of its environment in `env`."""
        store = self._graph["task"]
        start = store.member_offset[env]
        size = store.member_offset[env + 1] - start
        owner = torch.arange(len(env), device=env.device).repeat_interleave(size)
        within = torch.arange(len(owner), device=env.device) - (size.cumsum(0) - size)[owner]
        return store.members[start[owner] + within], owner

    # ---- cross: one row a record, and one for each task that its own environment keeps from sharing its record's row ----

    def _insert_cross(self, new: Int[Tensor, " n"]) -> None:
        """Merge new tasks into the records' lists.

        A record's list is the best 2k of a ranking in which only the first k tasks of each environment count. That is the greedy basis of a
        matroid (a partition matroid, truncated): a task outside the basis of a set is in no superset's, so merging is exact; and without
        any one environment, which holds at most k of the list, the first k of the others are still in it.
        """
        store = self._graph["task"]
        record, column = torch.unique(store.record_index[new], return_inverse=True)
        exact, rough = store.cross_vectors[record], self._filter_vectors[record].T.contiguous()
        margin = (store.cross_vectors.shape[1] + 8) * FLOAT32_MARGIN + 1 / GRID
        bar = (self._record_similarity[:, -1] - margin).clamp(min=0).to(rough.dtype)
        changed = torch.zeros(len(bar), dtype=torch.bool, device=bar.device)
        for start in range(0, len(bar), ROWS_AT_ONCE):
            product = self._filter_vectors[start : start + ROWS_AT_ONCE] @ rough
            passing = (product.amax(1) > bar[start : start + ROWS_AT_ONCE]).nonzero().flatten()
            for local in passing.split(ROWS_AT_ONCE // 4) if len(passing) else ():
                rows = local + start
                similarity = cross_similarity(store.cross_vectors[rows], exact)
                # What the filter lets pass is looked up in the exact product; most rows have one or two such tasks.
                at, which = (product[local] > bar[rows][:, None])[:, column].nonzero(as_tuple=True)
                candidates = _keys(similarity[at, column[which]], new[which])
                changed[rows] = self._merge_cross(rows, _sorted_table(at, candidates, len(rows)))
        self._except(changed)

    def _merge_cross(self, rows: Int[Tensor, " rows"], new: Int[Tensor, "rows c"]) -> Bool[Tensor, " rows"]:
        """Whether each row's list changed."""
        old = self._keys(self._record_slot[rows], self._record_similarity[rows])
        keys = _descending(torch.cat([old, new], 1))
        slot, similarity = self._slots(keys)
        if self._crowded:
            surplus = (_occurrence(self._env_of_slot[slot].to(torch.int64)) >= self._k_cross) & (keys > 0)
            keys = _descending(keys.masked_fill_(surplus, 0))
            slot, similarity = self._slots(keys)
        slot, similarity = slot[:, : old.shape[1]], similarity[:, : old.shape[1]]
        self._record_slot[rows], self._record_similarity[rows] = slot, similarity
        k = self._k_cross
        self._record_env[:, rows] = self._env_of_slot[slot[:, :k]].masked_fill_(similarity[:, :k] == 0, -1).T
        return (keys[:, : old.shape[1]] != old).any(1)

    def _except(self, changed: Bool[Tensor, " records"]) -> None:
        """Redo the tasks whose record's list changed: those whose own environment is among its first k need a list without it."""
        store = self._graph["task"]
        tasks = changed[store.record_index].nonzero().flatten()
        record, env = store.record_index[tasks], store.env_index[tasks].to(torch.int32)
        own = torch.zeros_like(tasks, dtype=torch.bool)
        for column in self._record_env:
            own |= column[record] == env
        tasks, record, env = tasks[own], record[own], env[own]
        slot, similarity = self._record_slot[record], self._record_similarity[record]
        keys = self._keys(slot, similarity).masked_fill_(self._env_of_slot[slot] == env[:, None], 0)
        slot, similarity = self._slots(_descending(keys)[:, : self._k_cross])
        keep = ~changed[store.record_index[self._excepted]]
        self._excepted = torch.cat([self._excepted[keep], tasks])
        self._excepted_slot = torch.cat([self._excepted_slot[keep], slot])
        self._excepted_similarity = torch.cat([self._excepted_similarity[keep], similarity])

    # ---- reading ----

    def lists(self, relation: Relation) -> NeighborLists:
        """All neighbours of a relation, valid until the next `insert`; put together once after each."""
        if relation not in self._lists:
            match relation:
                case "within":
                    slot, similarity, row = self._within_slot, self._within_similarity, self._within_row
                case "cross":
                    k, records = self._k_cross, len(self._record_slot)
                    slot = torch.cat([self._record_slot[:, :k], self._excepted_slot])
                    similarity = torch.cat([self._record_similarity[:, :k], self._excepted_similarity])
                    row = self._graph["task"].record_index.clone()
                    row[self._excepted] = torch.arange(records, len(slot), device=row.device)
            self._lists[relation] = NeighborLists(slot_index=slot, similarity=similarity, row=row)
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
        for relation in RELATIONS:
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


def _empty(rows: int, k: int, device: torch.device) -> tuple[Int[Tensor, "rows k"], Float[Tensor, "rows k"]]:
    """Padding: slots and similarities."""
    return torch.zeros((rows, k), dtype=torch.int32, device=device), torch.zeros((rows, k), dtype=torch.float32, device=device)


def _keys(similarity: Float[Tensor, "*shape"], task: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    level = (similarity * GRID).to(torch.int64)
    return ((level << 32) | (LOW - task)).masked_fill_(level == 0, 0)


def _descending(keys: Int[Tensor, "rows n"]) -> Int[Tensor, "rows n"]:
    return sort(keys).flip(1)


def _occurrence(values: Int[Tensor, "rows n"]) -> Int[Tensor, "rows n"]:
    """How many earlier entries of the row are equal."""
    n = values.shape[1]
    place = torch.arange(n, device=values.device)
    ordered = sort((values << 32) | place)
    value, origin = ordered >> 32, ordered & LOW
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


def _sorted_table(group: Int[Tensor, " n"], values: Int[Tensor, " n"], groups: int) -> Int[Tensor, "groups width"]:
    """The same where `group` ascends and no group is empty, padded with 0."""
    count = torch.bincount(group, minlength=groups)
    table = values.new_zeros((groups, int(count.max())))
    table[group, torch.arange(len(group), device=group.device) - (count.cumsum(0) - count)[group]] = values
    return table
