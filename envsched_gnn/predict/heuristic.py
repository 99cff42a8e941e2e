"""The predictor of both presets: history, neighbours, propagation, shrinkage; then one visible choice.

Knows: which parts make a score, and the names of the parts that `explain` and `update` read.
Does not know: quotas, batches, learned models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import PredictConfig
from envsched_gnn.config_scheduling import Preset, Target
from envsched_gnn.graph.neighbors import RELATIONS, Neighbors
from envsched_gnn.history import STATS, GroupStatistics, informative
from envsched_gnn.ops import percentile_rank
from envsched_gnn.predict import mixture, paper
from envsched_gnn.predict.propagate import relation_estimate, shrink
from envsched_gnn.records import Evidence, Prediction

DEFAULTS = PredictConfig()
EXPERT_PARTS = ("informative_weight", "informative_estimate", "prior_level", "prior_within", "prior_cross")
"""Parts of a Prediction that the experts read."""


class HeuristicPredictor:
    """Presets `paper` and `default`. Both fill every field of a Prediction; they differ in how q is made and in whether experts learn."""

    def __init__(
        self,
        preset: Preset,
        neighbors: Neighbors,
        *,
        v_floor: float = DEFAULTS.v_floor,
        decline: float = DEFAULTS.decline,
        reconstruction: float = DEFAULTS.reconstruction,
        target: Target = "informative",
    ) -> None:
        """`neighbors` is shared with the scheduler, which inserts what it observes; the other settings are those of `[predict]`."""
        self.preset = preset
        self.neighbors = neighbors
        self.v_floor = v_floor
        self.decline, self.reconstruction = decline, reconstruction
        self.power = mixture.POWERS.get(target)
        self.experts = mixture.ExpertWeights()

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """Informativeness, predicted variance and P(v > v_floor) of every task; float64.

        `parts`, each [tasks], y in variance, mean, dispersion, on the long horizon: `estimate_{y}` (est_y), `within_{y}` and `cross_{y}`
        (rel_y), `cross_weight` (sum_j a_ij^cross); `variance_long`, `variance_short` (u_h); and for the experts
        `informative_weight`, `informative_estimate`, `prior_level`, `prior_within`, `prior_cross`.
        """
        parts = self._relations(evidence)
        # Only tasks with evidence of their own differ from their prior: shrinkage with W = 0 is the prior.
        seen = torch.maximum(evidence.weight.amax(0), evidence.informative_weight).nonzero().flatten()
        u = self._predicted_variance(evidence, seen, parts)
        p = self._informative_probability(evidence, seen, parts)
        match self.preset:
            case "paper":
                q = percentile_rank(u)
            case "default":
                q = p if self.power is None else mixture.expected_size(p, evidence, self.power)
        doubt = self._uncertainty(p, evidence)
        return Prediction(informativeness=q, predicted_variance=u, p_informative=p, uncertainty=doubt, parts=parts)

    def _relations(self, evidence: Evidence) -> dict[str, Tensor]:
        """Relation estimates of all seven columns (v, m, d long; v, m, d short; z) of every task."""
        seen, reference = self.neighbors.observed, evidence.reference
        own = torch.cat([evidence.estimate.flatten(0, 1)[:, seen], evidence.informative_estimate[None, seen]])
        weight = torch.cat([evidence.weight[:, seen], mixture.neighbour_weight(evidence.informative_weight[seen])[None]])
        group = torch.tensor([0, 0, 0, 1, 1, 1, 2], device=own.device)
        ref = torch.cat([reference.flatten(), reference.new_tensor([evidence.informative_level])])
        strength = reference.new_tensor([paper.GRAPH_STRENGTH] * 6 + [mixture.GRAPH_STRENGTH])
        parts: dict[str, Tensor] = {}
        for relation in RELATIONS:
            lists = self.neighbors.lists(relation)
            rel, a = relation_estimate(own, weight, group, ref, strength, lists)
            names = [f"{relation}_{stat}" for stat in STATS] + [f"{relation}_{stat}_short" for stat in STATS] + [f"prior_{relation}"]
            parts |= {name: column.index_select(0, lists.row) for name, column in zip(names, rel, strict=True)}
        parts["cross_weight"] = a[0].index_select(0, lists.row)
        return parts

    def _predicted_variance(self, evidence: Evidence, seen: Tensor, parts: dict[str, Tensor]) -> Float[Tensor, " tasks"]:
        """u; adds the long estimates and both u_h to `parts`, and takes the short relation estimates out: nobody reads them."""
        short = [
            shrunk_to_prior(evidence, 1, y, seen, parts.pop(f"within_{s}_short"), parts.pop(f"cross_{s}_short"))
            for y, s in enumerate(STATS)
        ]
        long = [shrunk_to_prior(evidence, 0, y, seen, parts[f"within_{s}"], parts[f"cross_{s}"]) for y, s in enumerate(STATS)]
        parts |= {f"estimate_{stat}": estimate for stat, estimate in zip(STATS, long, strict=True)}
        u_long, u_short = (paper.horizon_variance(*estimates, share=self.reconstruction) for estimates in (long, short))
        parts |= {"variance_long": u_long, "variance_short": u_short}
        return paper.predicted_variance(u_long, u_short, self.decline)

    def _informative_probability(self, evidence: Evidence, seen: Tensor, parts: dict[str, Tensor]) -> Float[Tensor, " tasks"]:
        """Mixture of the experts; adds what they read to `parts`."""
        within, cross = parts["prior_within"], parts["prior_cross"]
        parts["informative_weight"], parts["informative_estimate"] = evidence.informative_weight, evidence.informative_estimate
        parts["prior_level"] = within.new_full((1,), evidence.informative_level).expand(len(within))
        weights = self.experts.weights()
        p = mixture.mixed_prior(evidence.informative_level, within, cross, weights)
        # Not a matrix product: its last bit depends on where in memory its operands lie, and a resumed run must repeat every bit.
        p[seen] = (weights.to(p.device)[:, None] * _experts({name: parts[name][seen] for name in EXPERT_PARTS})).sum(0)
        return p

    def _uncertainty(self, p: Float[Tensor, " tasks"], evidence: Evidence) -> Float[Tensor, " tasks"]:
        """`sqrt(p (1 - p) / (W + c + 1))`: of a Beta belief of mean p and weight W + c, c the mean strength of the experts (ours)."""
        strength = torch.tensor(mixture.STRENGTHS, dtype=torch.float64).repeat_interleave(len(mixture.PRIORS))
        c = float((self.experts.weights() * strength).sum())
        return (p * (1 - p)).clamp_(min=0).div_(evidence.informative_weight + (c + 1)).sqrt_()

    def experts_at(self, before: Prediction) -> Float[Tensor, "experts n"]:
        """p_e of the tasks of a (restricted) prediction."""
        return _experts(before.parts)

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Score the experts by the round's observed groups (preset `default`); preset `paper` leaves their weights uniform."""
        if self.preset == "default":
            seen = groups.observed
            z = informative(groups.variance[seen], self.v_floor)
            self.experts.add(step, self.experts_at(before.at(seen.to(before.informativeness.device))), z)

    def metrics(self) -> dict[str, float]:
        """How the experts stand: the largest weight, and how far they trust the level and each relation."""
        weights = self.experts.weights()
        shares = mixture.shares(weights)
        figures = {f"envsched/expert/{name}": share for name, share in zip(("level", *RELATIONS), shares, strict=True)}
        return figures | {"envsched/expert/largest": float(weights.max())}

    def state_dict(self) -> dict[str, Any]:
        """The experts' record."""
        return {"experts": self.experts.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.experts.load_state_dict(state["experts"])


def heuristic_of(config: PredictConfig, neighbors: Neighbors) -> HeuristicPredictor:
    """The heuristic with the settings of `[predict]`."""
    return HeuristicPredictor(
        config.preset,
        neighbors,
        v_floor=config.v_floor,
        decline=config.decline,
        reconstruction=config.reconstruction,
        target=config.target,
    )


def shrunk_to_prior(evidence: Evidence, horizon: int, y: int, seen: Tensor, within: Tensor, cross: Tensor) -> Float[Tensor, " tasks"]:
    """`est_y`: shrinkage toward `prior_y = (rel_y^within + rel_y^cross) / 2` (paper)."""
    estimate = (within + cross).div_(2)
    own, weight = evidence.estimate[horizon, y, seen], evidence.weight[horizon, seen]
    estimate[seen] = shrink(own, weight, estimate[seen], paper.SHRINKAGE_STRENGTH)
    return estimate


def _experts(parts: Mapping[str, Tensor]) -> Float[Tensor, "experts n"]:
    """p_e of the tasks whose EXPERT_PARTS are given."""
    priors = mixture.expert_priors(*(parts[f"prior_{name}"] for name in ("level", "within", "cross")))
    return mixture.expert_probabilities(priors, parts["informative_weight"], parts["informative_estimate"])
