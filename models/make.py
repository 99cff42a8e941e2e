"""Which predictor the settings ask for.

Knows: the three choices, and the file of weights to start from.
Does not know: how any of them predicts, what a scheduler does with it.
"""

from __future__ import annotations

from torch_geometric.data import HeteroData

from envsched_gnn.config import Config, PredictConfig
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.models.learner import Learner
from envsched_gnn.models.predictor import EnsemblePredictor, LearnedPredictor
from envsched_gnn.models.weights import load_weights
from envsched_gnn.predict import Predictor
from envsched_gnn.predict.heuristic import heuristic_of


def predictor_for(config: Config, graph: HeteroData, neighbors: Neighbors) -> Predictor:
    """The predictor of a run's settings; see `predictor_of`."""
    return predictor_of(config.predict, graph, neighbors, config.run.seed)


def predictor_of(config: PredictConfig, graph: HeteroData, neighbors: Neighbors, seed: int) -> Predictor:
    """The predictor that `predict.predictor` names, with the weights of `predict.weights`. Give it to `EnvSched(predictor=predictor_of)`.

    Raises:
        CheckpointError: the file of weights is missing or damaged, or they are of another kind of graph; names both.
    """
    match config.predictor:
        case "heuristic":
            return heuristic_of(config, neighbors)
        case "learned":
            return learned_predictor(config, graph, neighbors, seed)
        case "ensemble":
            return EnsemblePredictor(learned_predictor(config, graph, neighbors, seed))


def learned_predictor(config: PredictConfig, graph: HeteroData, neighbors: Neighbors, seed: int) -> LearnedPredictor:
    """Untrained, or with the weights of a file."""
    learner = Learner(int(graph.within_k), int(graph.cross_k), seed=seed)
    if config.weights:
        learner.load_weights(load_weights(config.weights, graph))
    return LearnedPredictor(neighbors, learner, config)
