"""The predictor of both presets: history, neighbours, propagation, shrinkage; then one visible choice.

Knows: which parts make a score, and the names of the parts that `explain` and `update` read.
Does not know: quotas, batches, learned models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from envsched_gnn.config import Preset
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import GroupStatistics, informative
from envsched_gnn.ops import percentile_rank
from envsched_gnn.predict import mixture, paper
from envsched_gnn.predict.propagate import evidence_sums, relation_estimate, shrink
from envsched_gnn.records import Evidence, Prediction

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch_geometric.data import HeteroData


class HeuristicPredictor:
    """Presets `paper` and `default`. Both fill every field of a Prediction; they differ in how q is made and in whether experts learn."""

    def __init__(self, preset: Preset, neighbors: Neighbors, *, v_floor: float = 1e-6) -> None:
        """`neighbors` is shared with the scheduler, which inserts what it observes."""
        self.preset = preset
        self.neighbors = neighbors
        self.v_floor = v_floor
        self.experts = mixture.ExpertWeights()

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """Informativeness, predicted variance and P(v > v_floor) of every task.

        `parts`, each [tasks], y in variance, mean, dispersion, on the long horizon: `estimate_{y}` (est_y), `within_{y}`, `cross_{y}` (rel_y),
        `within_weight`, `cross_weight` (sum_j a_ij); `variance_long`, `variance_short` (u_h); and for the experts `informative_weight`,
        `informative_estimate`, `prior_level`, `prior_within`, `prior_cross`.
        """
        seen = self.neighbors.observed
        own, weight = evidence.estimate[..., seen], evidence.weight[:, seen]
        zbar, z_weight = evidence.informative_estimate[seen], evidence.informative_weight[seen]
        level = torch.full((1, 1), evidence.informative_level, dtype=torch.float64, device=own.device)
        parts: dict[str, Tensor] = {}
        relations, priors = [], []
        for name in ("within", "cross"):
            lists = self.neighbors.lists(name)
            total, weighted = evidence_sums(own, weight, lists)
            relations.append(relation_estimate(total, weighted, evidence.reference, paper.GRAPH_STRENGTH)[..., lists.row])
            z_total, z_weighted = evidence_sums(zbar[None, None], z_weight[None], lists)
            priors.append(relation_estimate(z_total, z_weighted, level, mixture.GRAPH_STRENGTH)[0, 0, lists.row])
            parts[f"{name}_weight"] = total[0, lists.row]
        estimate = shrink(evidence.estimate, evidence.weight[:, None], (relations[0] + relations[1]) / 2, paper.SHRINKAGE_STRENGTH)
        u_long, u_short = (paper.horizon_variance(estimate[horizon]) for horizon in range(2))
        u = paper.predicted_variance(u_long, u_short)
        for y, stat in enumerate(("variance", "mean", "dispersion")):
            parts[f"estimate_{stat}"] = estimate[0, y]
            parts[f"within_{stat}"], parts[f"cross_{stat}"] = relations[0][0, y], relations[1][0, y]
        parts |= {"variance_long": u_long, "variance_short": u_short}
        parts |= {"informative_weight": evidence.informative_weight, "informative_estimate": evidence.informative_estimate}
        parts |= {"prior_level": level[0].expand(len(u)), "prior_within": priors[0], "prior_cross": priors[1]}
        p = mixture.mixed_probability(_priors(parts), evidence.informative_weight, evidence.informative_estimate, self.experts.weights())
        match self.preset:
            case "paper":
                q = percentile_rank(u)
            case "default":
                q = percentile_rank(p)
        return Prediction(informativeness=q, predicted_variance=u, p_informative=p, parts=parts)

    def experts_at(self, before: Prediction) -> Float[Tensor, "experts n"]:
        """p_e of the tasks of a (restricted) prediction."""
        parts = before.parts
        return mixture.expert_probabilities(_priors(parts), parts["informative_weight"], parts["informative_estimate"])

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Score the experts by the round's observed groups (preset `default`); preset `paper` leaves their weights uniform."""
        if self.preset == "default":
            seen = groups.observed
            z = informative(groups.variance[seen], self.v_floor)
            self.experts.add(step, self.experts_at(before.at(seen.to(before.informativeness.device))), z)

    def state_dict(self) -> dict[str, Any]:
        """The experts' record."""
        return {"preset": self.preset, "experts": self.experts.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.experts.load_state_dict(state["experts"])


def _priors(parts: Mapping[str, Tensor]) -> Float[Tensor, "priors n"]:
    """In the order of mixture.PRIORS."""
    within, cross = parts["prior_within"], parts["prior_cross"]
    return torch.stack([parts["prior_level"], within, cross, (within + cross) / 2])
