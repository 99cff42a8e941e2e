"""Which predictor and which policy the settings ask for.

Knows: the three predictors, the file of weights to start from, the settings that a policy is made from.
Does not know: how any of them predicts, what a scheduler does with it.
"""

from __future__ import annotations

from torch_geometric.data import HeteroData

from envsched_gnn.config import Config, PredictConfig
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.models.learner import Learner
from envsched_gnn.models.predictor import EnsemblePredictor, LearnedPredictor
from envsched_gnn.models.weights import load_weights
from envsched_gnn.pool.pool import Pool
from envsched_gnn.predict import Predictor
from envsched_gnn.predict.heuristic import heuristic_of
from envsched_gnn.schedule.policies import AnyPolicy, policy_of


def configured_policy(name: str, config: Config, pool: Pool, graph: HeteroData) -> AnyPolicy:
    """The policy `name`, which has seen nothing, with the settings of a run. Not `oracle`, which needs an engine.

    Raises:
        As `policy_of`.
    """
    return policy_of(
        name,
        pool,
        graph,
        batch_size=config.select.batch_size,
        seed=config.run.seed,
        num_rollouts=config.rollout.num_rollouts,
        select=config.select,
        predict=config.predict,
        predictor=predictor_of,
    )


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
