"""Graph files: whole or not at all, and never anything but a graph."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from envsched_gnn.errors import GraphError
from envsched_gnn.graph.build import assemble_graph, build_graph
from envsched_gnn.graph.io import export_similarities, load_graph, save_graph
from envsched_gnn.graph.similarity import pair_similarity
from tests.features.shop import POOL


@pytest.fixture(scope="module")
def graph() -> HeteroData:
    return build_graph(POOL)


def test_round_trip_without_edges(graph: HeteroData, tmp_path: Path) -> None:
    used = graph.clone()
    used["task", "cross", "task"].edge_index = torch.tensor([[0], [1]])
    save_graph(used, tmp_path / "deep" / "graph.pt")
    loaded = load_graph(tmp_path / "deep" / "graph.pt")
    assert loaded.to_dict().keys() == graph.to_dict().keys()
    for name, value in graph["task"].items():
        assert torch.equal(loaded["task"][name], value) if isinstance(value, torch.Tensor) else loaded["task"][name] == value
    for name in ("task_ids", "env_ids", "pool_hash", "feature_config", "within_k", "cross_k"):
        assert loaded[name] == graph[name]
    assert loaded["task", "cross", "task"].edge_index.shape == (2, 0)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["graph.pt"]


def test_same_pool_same_bytes_of_content(graph: HeteroData, tmp_path: Path) -> None:
    save_graph(graph, tmp_path / "a.pt")
    save_graph(build_graph(POOL), tmp_path / "b.pt")
    digests = {torch.load(tmp_path / name, weights_only=True)["digest"] for name in ("a.pt", "b.pt")}
    assert len(digests) == 1


def test_graph_without_cross_columns(tmp_path: Path) -> None:
    bare = assemble_graph(
        env_ids=["e"],
        env_index=torch.tensor([0]),
        task_ids=["t"],
        within_vectors=torch.zeros(1, 0),
        cross_vectors=torch.zeros(1, 0),
        record_index=torch.tensor([0]),
    )
    save_graph(bare, tmp_path / "g.pt")
    assert load_graph(tmp_path / "g.pt")["task"].cross_vectors.shape == (1, 0)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"nowhere.pt: no such file. Build one with `envsched graph build"):
        load_graph(tmp_path / "nowhere.pt")
    with pytest.raises(GraphError, match="no such file"):
        load_graph(tmp_path)


@pytest.mark.parametrize("content", [b"", b"text", b"\x80\x02}q\x00.", b"PK\x03\x04 not a zip"])
def test_foreign_bytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "g.pt"
    path.write_bytes(content)
    with pytest.raises(GraphError, match="not a graph"):
        load_graph(path)


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "hit",))

    torch.save({"format": "envsched-graph", "bomb": Bomb()}, tmp_path / "g.pt")
    with pytest.raises(GraphError, match="not a graph"):
        load_graph(tmp_path / "g.pt")
    assert not (tmp_path / "hit").exists()


def test_truncated_and_flipped(graph: HeteroData, tmp_path: Path) -> None:
    path = tmp_path / "g.pt"
    save_graph(graph, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 16):
        path.write_bytes(whole[:length])
        with pytest.raises(GraphError, match=r"g\.pt"):
            load_graph(path)
    vectors = graph["task"].cross_vectors.numpy().tobytes()
    at = whole.index(vectors) + 20
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(GraphError, match="damaged"):
        load_graph(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "not a graph of ours"),
        ({"version": 0}, "graph format 0; this program reads 2 and 3"),
        ({"tensors": {}}, "env_index is not a tensor"),
        ({"attributes": {}}, "task_ids is not a list"),
        ({"attributes": None}, "no tensors or attributes"),
        ({"digest": "0"}, "do not match their digest"),
    ],
)
def test_other_content(change: dict, words: str, graph: HeteroData, tmp_path: Path) -> None:
    path = tmp_path / "g.pt"
    save_graph(graph, path)
    torch.save({**torch.load(path, weights_only=True), **change}, path)
    with pytest.raises(GraphError, match=words):
        load_graph(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_ids", ["drop", "keep", "place", "return", "ship"]),
        ("task_ids", [1, 2, 3, 4, 5]),
        ("env_ids", ["shop"]),
        ("within_k", -3),
        ("pool_hash", ""),
    ],
)
def test_attributes_are_covered_by_the_digest(name: str, value: object, graph: HeteroData, tmp_path: Path) -> None:
    path = tmp_path / "g.pt"
    save_graph(graph, path)
    content = torch.load(path, weights_only=True)
    assert content["attributes"][name] != value
    content["attributes"][name] = value
    torch.save(content, path)
    with pytest.raises(GraphError, match="damaged: the tensors or attributes do not match"):
        load_graph(path)


def test_failed_write_keeps_the_old_file(graph: HeteroData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.pt"
    save_graph(graph, path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GraphError, match=r"cannot be written.*No space left"):
        save_graph(graph, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["g.pt"]


def test_export_is_what_select_uses(graph: HeteroData, tmp_path: Path) -> None:
    path = tmp_path / "sims.npz"
    export_similarities(graph, path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    assert list(arrays["env_id"]) == ["shop", "library", "shop", "library", "shop"]
    assert list(arrays["task_id"]) == ["ship", "return", "place", "keep", "drop"]
    everyone = torch.arange(5)
    used = pair_similarity(graph, everyone, everyone).numpy()
    same = arrays["env_id"][:, None] == arrays["env_id"][None, :]
    assert arrays["s_within"].dtype == arrays["s_cross"].dtype == np.float32
    np.testing.assert_array_equal(np.where(same, arrays["s_within"], arrays["s_cross"]), used)
    assert not arrays["s_within"][~same].any()
    assert not arrays["s_cross"][same].any()
    assert not arrays["s_within"].diagonal().any()


def test_export_refuses_large_graphs(tmp_path: Path) -> None:
    many = 5_001
    large = assemble_graph(
        env_ids=[str(n) for n in range(many)],
        env_index=torch.arange(many),
        task_ids=["t"] * many,
        within_vectors=torch.ones(many, 1),
        cross_vectors=torch.ones(1, 1),
        record_index=torch.zeros(many, dtype=torch.int64),
    )
    with pytest.raises(GraphError, match=r"5001 tasks make two dense matrices.*at most 5000 tasks"):
        export_similarities(large, tmp_path / "s.npz")
    assert list(tmp_path.iterdir()) == []
