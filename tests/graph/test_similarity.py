"""Similarities on the grid: literal values, symmetry, the same-environment rule."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.graph.similarity import GRID, cross_similarity, pair_similarity, quantise, within_similarity


def _random_graph(seed: int, tasks: int, environments: int, records: int) -> HeteroData:
    generator = torch.Generator().manual_seed(seed)

    def unit(rows: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.rand(rows, 4, generator=generator, dtype=torch.float64), dim=1)

    return assemble_graph(
        env_ids=[f"e{n}" for n in range(environments)],
        env_index=torch.randint(environments, (tasks,), generator=generator),
        task_ids=[f"t{n}" for n in range(tasks)],
        within_vectors=unit(tasks),
        cross_vectors=unit(records),
        record_index=torch.randint(records, (tasks,), generator=generator),
    )


def test_quantise_by_hand() -> None:
    values = quantise(torch.tensor([0.0, 1.0, 1 / 3, 1 + 1e-9, -1e-9, 2.0**-20, 0.6 * 2.0**-20, 0.4 * 2.0**-20], dtype=torch.float64))
    assert values.dtype == torch.float32
    assert (values.double() * GRID).tolist() == [0, 1048576, 349525, 1048576, 0, 1, 1, 0]


def test_cross_similarity_by_hand() -> None:
    a = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    b = torch.tensor([[0.8, 0.6]], dtype=torch.float64)
    # .8 * 2^20 = 838860.8 and .96 * 2^20 = 1006632.96
    assert (cross_similarity(a, b).double() * GRID).tolist() == [[838861], [1006633]]


def test_pairs_by_hand() -> None:
    graph = assemble_graph(
        env_ids=["x", "y"],
        env_index=torch.tensor([1, 0, 1]),
        task_ids=["a", "b", "c"],
        within_blocks=[torch.ones(1, 1), torch.tensor([[1.0, 0.25], [0.25, 1.0]])],
        cross_vectors=torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        record_index=torch.tensor([0, 0, 1]),
    )
    everyone = torch.arange(3)
    assert pair_similarity(graph, everyone, everyone).tolist() == [[0, 1, 0.25], [1, 0, 0], [0.25, 0, 0]]
    assert pair_similarity(graph, torch.tensor([2, 2]), torch.tensor([0, 2])).tolist() == [[0.25, 0], [0.25, 0]]
    assert within_similarity(graph, torch.tensor([0]), torch.tensor([2])).tolist() == [0.25]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 4), st.integers(1, 5))
def test_properties(seed: int, tasks: int, environments: int, records: int) -> None:
    graph = _random_graph(seed, tasks, environments, records)
    everyone = torch.arange(tasks)
    similarity = pair_similarity(graph, everyone, everyone)
    assert similarity.shape == (tasks, tasks)
    assert torch.equal(similarity, similarity.T)
    assert torch.equal(similarity.diagonal(), torch.zeros(tasks))
    assert 0 <= similarity.min() <= similarity.max() <= 1
    assert torch.equal((similarity.double() * GRID).round() / GRID, similarity.double())
    env, record = graph["task"].env_index, graph["task"].record_index
    for i in range(tasks):
        alone = pair_similarity(graph, everyone[i : i + 1], everyone)[0]
        assert torch.equal(alone, similarity[i])
        twins = (record == record[i]) & (env != env[i])
        assert torch.equal(similarity[i][twins], torch.ones(int(twins.sum())))


def test_cuda_gives_the_same_values(device: torch.device) -> None:
    graph = _random_graph(3, 50, 4, 9)
    everyone = torch.arange(50)
    expected = pair_similarity(graph, everyone, everyone)
    there = pair_similarity(graph.to(device), everyone.to(device), everyone.to(device))
    np.testing.assert_array_equal(there.cpu().numpy(), expected.numpy())
    assert expected.max() == pytest.approx(1.0, abs=0.2)
