"""Files of weights: what they restore, and which files and graphs are refused."""

from pathlib import Path

import pytest
import torch

from envsched_gnn.config import PredictConfig
from envsched_gnn.errors import CheckpointError
from envsched_gnn.models.features import content_name
from envsched_gnn.models.learner import Learner
from envsched_gnn.models.make import predictor_of
from envsched_gnn.models.weights import load_weights, save_weights
from tests.models.world import World


@pytest.fixture
def file(tmp_path: Path) -> Path:
    learner = Learner(6, 12, seed=3)
    learner.trained = 600
    save_weights(learner.weights(), World().graph, tmp_path / "w.pt", {"groups": 600})
    return tmp_path / "w.pt"


def test_a_predictor_starts_from_them(file: Path) -> None:
    world = World()
    predictor = predictor_of(PredictConfig(predictor="learned", weights=str(file)), world.graph, world.neighbors, 0)
    assert predictor.learner.gate == 600 / 800
    expected = Learner(6, 12, seed=3).network.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in predictor.learner.network.state_dict().items())


def test_a_graph_with_other_features_is_refused_and_both_are_named(file: Path) -> None:
    other = World(seed=1).graph
    with pytest.raises(
        CheckpointError, match=r"reads abstract records of pool 000000000000, for a graph with abstract records of pool 1111"
    ):
        load_weights(file, other)
    dense = World().graph
    dense["task"].embedding, dense.embedding_model = torch.randn(60, 8), "some-model"
    assert content_name(dense) == "embeddings of some-model"
    with pytest.raises(CheckpointError, match=r"pool 000000000000, for a graph with embeddings of some-model"):
        load_weights(file, dense)


def test_weights_of_embeddings_hold_in_any_pool(tmp_path: Path) -> None:
    graphs = [World(seed=seed).graph for seed in (0, 1)]
    for graph in graphs:
        graph["task"].embedding, graph.embedding_model = torch.randn(60, 8), "some-model"
    save_weights(Learner(6, 12).weights(), graphs[0], tmp_path / "w.pt", {})
    assert load_weights(tmp_path / "w.pt", graphs[1])["trained"] == 0


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-500]), "not a file of weights, or damaged"),
        (lambda path: torch.save({"format": "other"}, path), "no weights of version 2 of ours"),
        (lambda path: torch.save({"format": "envsched-weights", "version": 1}, path), "no weights of version 2 of ours"),
        (lambda path: torch.save(torch.load(path) | {"network": {}}, path), "its tensors are not those of the network"),
        (lambda path: torch.save(torch.load(path) | {"precision": 1.0}, path), "no precision"),
        (lambda path: torch.save(torch.load(path) | {"inputs": None}, path), "damaged: no inputs"),
    ],
)
def test_a_damaged_file_is_refused(file: Path, spoil, sentence: str) -> None:
    spoil(file)
    with pytest.raises(CheckpointError, match=sentence) as error:
        load_weights(file, World().graph)
    assert "envsched fit" in str(error.value)


def test_a_path_that_cannot_be_written(file: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_weights(Learner(6, 12).weights(), World().graph, file / "w.pt", {})
