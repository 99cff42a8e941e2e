"""Which predictor a run's settings ask for.

Knows: the three choices, and the file of weights to start from.
Does not know: how any of them predicts, what a scheduler does with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch_geometric.data import HeteroData

from envsched_gnn.config import Config, PredictConfig, Preset
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.models.learner import Learner
from envsched_gnn.models.predictor import EnsemblePredictor, LearnedPredictor
from envsched_gnn.models.weights import load_weights
from envsched_gnn.predict import Predictor
from envsched_gnn.predict.heuristic import HeuristicPredictor


def predictor_for(config: Config, graph: HeteroData, neighbors: Neighbors) -> Predictor:
    """The predictor that `predict.predictor` names, with the weights of `predict.weights` where a file is given.

    Raises:
        CheckpointError: the file is missing or damaged, or its weights are of another kind of graph; names both.
    """
    return predictor_of(config.predict, config.predict.preset, graph, neighbors, config.run.seed)


def maker(predict: PredictConfig, seed: int) -> Callable[[HeteroData, Neighbors, Preset], Predictor] | None:
    """What `EnvSched(predictor=...)` takes; None where the preset's own predictor is asked for."""
    return None if predict.predictor == "heuristic" else partial(_made, predict, seed)


def _made(predict: PredictConfig, seed: int, graph: HeteroData, neighbors: Neighbors, preset: Preset) -> Predictor:
    return predictor_of(predict, preset, graph, neighbors, seed)


def predictor_of(predict: PredictConfig, preset: Preset, graph: HeteroData, neighbors: Neighbors, seed: int) -> Predictor:
    """The same, of a preset and a seed."""
    match predict.predictor:
        case "heuristic":
            return HeuristicPredictor(preset, neighbors, v_floor=predict.v_floor)
        case "learned":
            return learned_predictor(predict, preset, graph, neighbors, seed)
        case "ensemble":
            return EnsemblePredictor(learned_predictor(predict, preset, graph, neighbors, seed))


def learned_predictor(predict: PredictConfig, preset: Preset, graph: HeteroData, neighbors: Neighbors, seed: int) -> LearnedPredictor:
    """Untrained, or with the weights of a file."""
    learner = Learner(int(graph.within_k), int(graph.cross_k), seed=seed)
    if predict.weights:
        learner.load_weights(load_weights(predict.weights, graph))
    return LearnedPredictor(neighbors, learner, preset=preset, v_floor=predict.v_floor, learn_every=predict.learn_every)
