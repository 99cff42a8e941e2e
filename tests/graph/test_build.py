"""The graph of a pool, and graphs from tensors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from envsched_gnn.errors import GraphError
from envsched_gnn.features.abstract import AbstractRecord
from envsched_gnn.features.build import build_features
from envsched_gnn.graph.build import assemble_graph, build_graph, identities
from envsched_gnn.graph.similarity import pair_similarity
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task
from tests.features.shop import LIBRARY_ENVIRONMENT, POOL, SHOP_ENVIRONMENT, task


def test_stores_of_a_small_pool() -> None:
    graph = build_graph(POOL, within_neighbors=3, cross_neighbors=5)
    store = graph["task"]
    assert store.num_nodes == 5
    assert store.env_index.tolist() == [0, 1, 0, 1, 0]
    assert store.record_index.tolist() == [0, 0, 1, 0, 2]
    assert store.members.tolist() == [0, 2, 4, 1, 3]
    assert store.member_offset.tolist() == [0, 3, 5]
    assert store.position.tolist() == [0, 0, 1, 1, 2]
    assert store.within_offset.tolist() == [0, 9, 13]
    assert store.within_similarity.shape == (13,)
    assert store.within_similarity.dtype == torch.float32
    assert store.cross_vectors.dtype == torch.float64
    assert (graph.task_ids, graph.env_ids) == (["ship", "return", "place", "keep", "drop"], ["shop", "library"])
    assert (graph.within_k, graph.cross_k, graph.pool_hash) == (3, 5, POOL.content_hash)
    assert graph["task", "within", "task"].edge_index.shape == (2, 0)
    assert graph["task", "cross", "task"].edge_weight.shape == (0,)
    graph.validate()


def test_similarities_are_inner_products_of_features() -> None:
    graph, features = build_graph(POOL), build_features(POOL)
    everyone = torch.arange(5)
    similarity = pair_similarity(graph, everyone, everyone).numpy()
    vectors = features.within.toarray()
    assert similarity[0, 2] == pytest.approx(vectors[0] @ vectors[2], abs=1e-6)
    assert similarity[0, 2] > 0
    assert similarity[0, 1] == 1.0  # the same demands in another environment
    cross = features.cross_vectors
    assert similarity[2, 3] == pytest.approx(cross[1] @ cross[0], abs=1e-6)


def test_held_out_reward_range_and_identity() -> None:
    tasks = (
        task("shop", "a", "x"),
        Task(env_id="shop", task_id="b", prompt="y", reward_range=(-1.0, 3.0), info={"held_out": True}),
    )
    store = build_graph(Pool(environments=(SHOP_ENVIRONMENT,), tasks=tasks))["task"]
    assert store.held_out.tolist() == [False, True]
    assert (store.reward_low.tolist(), store.reward_high.tolist()) == ([0.0, -1.0], [1.0, 3.0])
    # first 8 bytes of sha256("shop/a")
    assert store.identity[0] == identities(["shop/a"])[0]
    assert identities(["abc"]).tolist() == [int.from_bytes(bytes.fromhex("ba7816bf8f01cfea"), "big", signed=True)]


def test_environment_without_tasks_and_a_single_task() -> None:
    pool = Pool(environments=(LIBRARY_ENVIRONMENT, SHOP_ENVIRONMENT), tasks=(task("shop", "only", "Delete the order."),))
    store = build_graph(pool)["task"]
    assert store.member_offset.tolist() == [0, 0, 1]
    assert store.within_similarity.tolist() == [0.0]


def test_given_records() -> None:
    graph = build_graph(POOL, records={"shop/ship": AbstractRecord(ops=("notify",))})
    assert graph["task"].record_index.tolist() == [0, 1, 2, 1, 3]
    assert graph.feature_config["records"] == "given"


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    build_graph(POOL, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "similarities" in captured.err


def test_dense_csr_and_blocks_give_the_same_graph() -> None:
    vectors = torch.nn.functional.normalize(torch.rand(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), dim=1)
    env_index = torch.tensor([0, 1, 0, 0])
    blocks = [vectors[env_index == env] @ vectors[env_index == env].T for env in (0, 1)]

    def within(**given: object) -> list[float]:
        rest = {"cross_vectors": torch.ones(1, 1), "record_index": torch.zeros(4, dtype=torch.int64)}
        graph = assemble_graph(env_ids=["a", "b"], env_index=env_index, task_ids=list("wxyz"), **given, **rest)  # type: ignore[arg-type]
        return graph["task"].within_similarity.tolist()

    assert within(within_vectors=vectors) == within(within_vectors=sparse.csr_matrix(vectors.numpy())) == within(within_blocks=blocks)
    for wrong in ({}, {"within_vectors": vectors[:2]}, {"within_blocks": blocks[:1]}):
        with pytest.raises(GraphError, match="within_"):
            within(**wrong)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"env_index": torch.empty(0, dtype=torch.int64)}, "at least one task"),
        ({"task_ids": ["a"]}, "expected equal numbers"),
        ({"env_index": torch.tensor([0, 5])}, "env_index runs from 0 to 5"),
        ({"record_index": torch.tensor([0, 3])}, "record_index runs up to 3"),
    ],
)
def test_sizes_that_disagree(change: dict, words: str) -> None:
    good = {"env_index": torch.tensor([0, 0]), "task_ids": ["a", "b"], "record_index": torch.tensor([0, 0])}
    with pytest.raises(GraphError, match=words):
        assemble_graph(env_ids=["e"], within_vectors=torch.ones(2, 1), cross_vectors=torch.ones(1, 1), **{**good, **change})


def test_environment_too_large() -> None:
    many = 20_001
    with pytest.raises(GraphError, match=r"'e' has 20001 tasks; at most 20000.*Split the environment"):
        assemble_graph(
            env_ids=["e"],
            env_index=torch.zeros(many, dtype=torch.int64),
            task_ids=[str(n) for n in range(many)],
            within_vectors=torch.ones(many, 1),
            cross_vectors=torch.ones(1, 1),
            record_index=torch.zeros(many, dtype=torch.int64),
        )
    tasks = tuple(Task(env_id="e", task_id=str(n), prompt="") for n in range(many))
    with pytest.raises(GraphError, match="'e' has 20001 tasks"):
        build_graph(Pool(environments=(Environment(env_id="e"),), tasks=tasks))


@pytest.mark.data
def test_real_environments(data_dir: Path) -> None:
    """Real pool: effects agree with the pool's own query / state_change labels, and every record finds operations."""
    from envsched_gnn.features.operations import read_operations
    from envsched_gnn.pool.envscaler import read_envscaler

    folder = data_dir / "envscaler"
    pool = read_envscaler(folder)
    graph = build_graph(pool)
    assert graph["task"].num_nodes == 87
    labels = {(e.env_id, o["name"]): o["type"] for e in pool.environments for o in e.operations}
    read_only = {(e.env_id, o.name): not o.written_keys for e in pool.environments for o in read_operations(e).operations}
    assert len(read_only) == 608
    wrong = [key for key, label in labels.items() if key in read_only and read_only[key] != (label == "query")]
    assert wrong == [("env_147_rl", "trigger_overdue_alert")]  # it builds a message and changes nothing
    features = build_features(pool)
    assert min(len(record.ops) for record in features.records) >= 2
    everyone = torch.arange(87)
    similarity = pair_similarity(graph, everyone, everyone).numpy()
    same = pool.env_index[:, None] == pool.env_index[None, :]
    np.fill_diagonal(same, False)
    assert 0.2 < similarity[same].min() < similarity[same].max() < 0.7
    assert json.dumps(graph.feature_config)
