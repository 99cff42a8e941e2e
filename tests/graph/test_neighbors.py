"""Running neighbour lists against brute force: ties, padding, order, repeats, bulk, edges, devices."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from envsched_gnn.graph import neighbors as module
from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.graph.similarity import pair_similarity


def unit(rows: torch.Tensor) -> torch.Tensor:
    return rows.double() / rows.double().norm(dim=1, keepdim=True).clamp(min=1e-12)


def graph_of(
    env: list[int], within: torch.Tensor, cross: torch.Tensor, record: list[int], k_within: int = 6, k_cross: int = 12
) -> HeteroData:
    return assemble_graph(
        env_ids=[f"e{e}" for e in range(max(env) + 1)],
        env_index=torch.tensor(env),
        task_ids=[str(i) for i in range(len(env))],
        within_vectors=within,
        cross_vectors=cross,
        record_index=torch.tensor(record),
        within_k=k_within,
        cross_k=k_cross,
    )


def random_graph(seed: int, tasks: int) -> HeteroData:
    """Coarse vectors, so that ties, identical records and orthogonal pairs are common."""
    generator, r = torch.Generator().manual_seed(seed), random.Random(seed)
    environments, records, d = r.randint(1, 8), r.randint(1, tasks), r.randint(1, 6)
    return graph_of(
        [r.randrange(environments) for _ in range(tasks)],
        unit(torch.randint(0, 3, (tasks, 3), generator=generator)),
        unit(torch.randint(0, 3, (records, d), generator=generator)),
        [r.randrange(records) for _ in range(tasks)],
        r.randint(1, 4),
        r.randint(1, 4),
    )


def brute(graph: HeteroData, seen: set[int]) -> dict[str, list[list[tuple[int, float]]]]:
    env = graph["task"].env_index.tolist()
    every = torch.arange(len(env))
    s = pair_similarity(graph, every, every).tolist()
    lists: dict[str, list[list[tuple[int, float]]]] = {"within": [], "cross": []}
    for i in range(len(env)):
        for relation, k in (("within", graph.within_k), ("cross", graph.cross_k)):
            near = [(-s[i][j], j) for j in seen if j != i and s[i][j] > 0 and (env[i] == env[j]) == (relation == "within")]
            lists[relation].append([(j, -minus) for minus, j in sorted(near)[:k]])
    return lists


def read(neighbors: Neighbors, tasks: int) -> dict[str, list[list[tuple[int, float]]]]:
    return {
        relation: [list(zip(*(x.tolist() for x in neighbors.of(relation, i)), strict=True)) for i in range(tasks)]
        for relation in ("within", "cross")
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.data())
def test_lists_are_exact_after_every_insert(seed: int, tasks: int, data: st.DataObject) -> None:
    graph = random_graph(seed, tasks)
    neighbors, seen = Neighbors(graph), set()
    for new in data.draw(st.lists(st.lists(st.integers(0, tasks - 1), max_size=20), min_size=1, max_size=4)):
        neighbors.insert(torch.tensor(new, dtype=torch.int64))
        seen |= set(new)
        assert read(neighbors, tasks) == brute(graph, seen)


@pytest.mark.parametrize("seed", range(6))
def test_small_portions_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(seed, 60)
    for name, value in (("NEW_AT_ONCE", 3), ("WITHIN_AT_ONCE", 2), ("ROWS_AT_ONCE", 8)):
        monkeypatch.setattr(module, name, value)
    neighbors = Neighbors(graph)
    neighbors.insert(torch.arange(0, 60, 2))
    neighbors.insert(torch.arange(60))
    assert read(neighbors, 60) == brute(graph, set(range(60)))


def test_one_environment_can_fill_a_record_list_and_is_still_left_out() -> None:
    """Five identical tasks of environment 0 come first for everyone; a task of environment 0 must still find its three others."""
    cross = unit(torch.tensor([[1, 0], [3, 1]]))
    env, record = [0] * 6 + [1, 2, 3], [0] * 6 + [1, 1, 1]
    graph = graph_of(env, unit(torch.ones(9, 1)), cross, record, k_cross=3)
    neighbors = Neighbors(graph)
    neighbors.insert(torch.arange(9))
    assert neighbors.of("cross", 0)[0].tolist() == [6, 7, 8]
    assert neighbors.of("cross", 6)[0].tolist() == [7, 8, 0]


def test_ties_go_to_the_lower_task_whatever_the_order() -> None:
    graph = graph_of([0] * 5 + [1] * 5, unit(torch.ones(10, 1)), unit(torch.ones(1, 1)), [0] * 10, 2, 3)
    for order in ([9, 8, 7, 6, 4, 3, 2, 1], [1, 9, 3, 2, 7, 8, 4, 6]):
        neighbors = Neighbors(graph)
        for task in order:
            neighbors.insert(torch.tensor([task]))
        assert neighbors.of("within", 0)[0].tolist() == [1, 2]
        assert neighbors.of("cross", 0)[0].tolist() == [6, 7, 8]
        assert neighbors.observed.tolist() == order


def test_known_tasks_and_repeats_change_nothing() -> None:
    neighbors = Neighbors(random_graph(3, 30))
    neighbors.insert(torch.tensor([4, 2, 4, 9]))
    before = read(neighbors, 30)
    neighbors.insert(torch.tensor([9, 9, 2]))
    neighbors.insert(torch.tensor([], dtype=torch.int64))
    assert neighbors.observed.tolist() == [4, 2, 9]
    assert read(neighbors, 30) == before


def test_nothing_observed_is_all_padding() -> None:
    neighbors = Neighbors(random_graph(1, 7))
    for relation in ("within", "cross"):
        assert neighbors.similarity(relation).abs().sum().item() == 0
        assert neighbors.slot_index(relation).abs().sum().item() == 0
        assert neighbors.of(relation, 0)[0].tolist() == []


def test_padded_lists_and_edges_say_the_same() -> None:
    graph = random_graph(5, 40)
    neighbors = Neighbors(graph)
    neighbors.insert(torch.arange(0, 40, 3))
    neighbors.fill(graph)
    for relation, k in (("within", graph.within_k), ("cross", graph.cross_k)):
        slot, similarity = neighbors.slot_index(relation), neighbors.similarity(relation)
        assert slot.shape == similarity.shape == (40, k)
        assert slot.dtype == torch.int64
        assert similarity.dtype == torch.float32
        edges = graph["task", relation, "task"]
        expected = [(j, i, s) for i in range(40) for j, s in brute(graph, set(range(0, 40, 3)))[relation][i]]
        assert list(zip(*edges.edge_index.tolist(), edges.edge_weight.tolist(), strict=True)) == expected
        padded = [
            (int(neighbors.observed[j]), i, s)
            for i in range(40)
            for j, s in zip(slot[i].tolist(), similarity[i].tolist(), strict=True)
            if s
        ]
        assert padded == expected


def test_a_state_restores_lists_and_order() -> None:
    graph = random_graph(8, 50)
    neighbors, other = Neighbors(graph), Neighbors(graph)
    for new in ([30, 3], [41, 7, 19], [0]):
        neighbors.insert(torch.tensor(new))
    other.insert(torch.arange(50))
    other.load_state_dict(neighbors.state_dict())
    assert other.observed.tolist() == [30, 3, 41, 7, 19, 0]
    for relation in ("within", "cross"):
        assert torch.equal(other.slot_index(relation), neighbors.slot_index(relation))
        assert torch.equal(other.similarity(relation), neighbors.similarity(relation))


def test_the_filter_never_drops_a_tie_in_many_dimensions() -> None:
    """Dense vectors of 400 dimensions, nearly equal: float32 products err in the sixth digit, the lists must not."""
    generator = torch.Generator().manual_seed(0)
    cross = unit(1 + 1e-3 * torch.rand(60, 400, generator=generator, dtype=torch.float64))
    graph = graph_of([i % 20 for i in range(60)], unit(torch.ones(60, 1)), cross, list(range(60)), k_cross=2)
    neighbors = Neighbors(graph)
    for new in torch.randperm(60, generator=generator).split(7):
        neighbors.insert(new)
    assert read(neighbors, 60)["cross"] == brute(graph, set(range(60)))["cross"]


def test_lists_are_the_same_on_every_device(device: torch.device) -> None:
    graph = random_graph(11, 60)
    neighbors = Neighbors(graph)
    neighbors.insert(torch.arange(0, 60, 2))
    expected = read(neighbors, 60)
    graph.to(str(device))
    neighbors.to(device).insert(torch.tensor([1]))
    assert neighbors.observed.device.type == device.type
    graph.to("cpu")
    neighbors.to("cpu")
    assert read(neighbors, 60) == brute(graph, {*range(0, 60, 2), 1})
    assert expected == brute(graph, set(range(0, 60, 2)))
