"""Learned propagation behind the `Predictor` protocol: the heuristic's forecast, corrected as far as the groups seen so far allow.

Knows: what a forecast is made of, when it is learned from, and the ensemble of the experts with the network as one more.
Does not know: the network (network), how it is trained (learner), quotas, batches.

A prediction reads the groups of earlier steps alone. What a group is learned from is what it was predicted from: that is kept with the
prediction until the group reports, however late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import PredictConfig
from envsched_gnn.graph.neighbors import RELATIONS, Neighbors
from envsched_gnn.history import GroupStatistics, informative
from envsched_gnn.models.features import Content, context_inputs, log_odds, source_inputs
from envsched_gnn.models.learner import Learner
from envsched_gnn.models.memory import groups_of, kept
from envsched_gnn.models.network import Neighborhood, corrected
from envsched_gnn.ops import percentile_rank
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.predict.mixture import CLIP, PRIORS, STRENGTHS, ExpertWeights, informative_variance
from envsched_gnn.records import Evidence, Prediction

LOSS_DECAY = 0.9
"""What a group's loss counts in the means of `metrics`, with every later call of `update` (ours)."""


SPREADS = ("mixture_nu", "learned_nu")
"""Parts that say E[v | v > floor], before and after the network's correction."""


class LearnedPredictor:
    """The mixture's forecast, corrected by a network that learns from each round after having predicted it."""

    def __init__(self, neighbors: Neighbors, learner: Learner, config: PredictConfig) -> None:
        """`neighbors` is shared with the scheduler. It learns in every `learn_every`-th round that reports; 0: the weights stay."""
        self.neighbors, self.learner, self.config = neighbors, learner, config
        self.heuristic = HeuristicPredictor("default", neighbors, v_floor=config.v_floor)
        self._content = Content()
        self._last_step, self._rounds = -1, 0
        self._losses = {"learned": 0.0, "mixture": 0.0, "groups": 0.0}

    @torch.no_grad()
    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """p and u of every task, corrected on the scale of log-odds: those of p by gate r_p; `u = p nu`, 4 nu by gate r_nu.

        With the gate at 0, p is the mixture's, exactly, and `nu = E[v | v > floor]` of recent groups. `parts` are the mixture's, and
        `mixture_p`, `mixture_nu` (before), `learned_p`, `learned_nu` (after), `learned_gate` and `learned_correction` (gate r_p).
        """
        self.learner.to(evidence.weight.device)
        mixture = self.heuristic.predict(graph, evidence, step)
        p, nu = mixture.p_informative, torch.full_like(mixture.p_informative, min(informative_variance(evidence), 0.25))
        nodes = torch.cat([source_inputs(evidence, slice(None)), context_inputs(graph, evidence, mixture), self._content(graph)], 1)
        r, variance = self._correction(nodes, evidence)
        parts = {"mixture_p": p, "mixture_nu": nu, "learned_correction": r[0], "learned_gate": torch.full_like(p, self.learner.gate)}
        base = log_odds(torch.stack([p, 4 * nu, mixture.parts["estimate_mean"]], 1))
        p, nu = corrected(p, r[0]), corrected(4 * nu, r[1]) / 4
        prediction = Prediction(
            informativeness=p,
            predicted_variance=p * nu,
            p_informative=p,
            uncertainty=_uncertainty(mixture, p, variance),
            parts={**mixture.parts, **parts, "learned_p": p, "learned_nu": nu},
            keep=lambda tasks: kept(nodes, base, evidence, self.neighbors, tasks),
        )
        return with_score(prediction, self.config)

    def _correction(self, nodes: Tensor, evidence: Evidence) -> tuple[Float[Tensor, "2 tasks"], Float[Tensor, " tasks"]]:
        """gate (r_p, r_nu), and the variance of the former; float64. Zeros where nothing was learned."""
        gate = self.learner.gate
        if gate == 0:
            nothing = evidence.weight.new_zeros(2, len(nodes))
            return nothing, nothing[0]
        phi = self.learner.network.representation(nodes, self._neighborhood(evidence))
        r = gate * self.learner.network.head(phi)[:, :2].double()
        return r.T, gate**2 * self.learner.doubt(phi).double()

    def _neighborhood(self, evidence: Evidence) -> Neighborhood:
        """Everybody's observed neighbours; tasks that share a list share its messages."""
        lists = {relation: self.neighbors.lists(relation) for relation in RELATIONS}
        edges = {relation: lists[relation].similarity.nonzero(as_tuple=True) for relation in RELATIONS}
        return Neighborhood(
            source=source_inputs(evidence, self.neighbors.observed),
            edge_index={r: torch.stack([lists[r].slot_index[at].long(), at[0]]) for r, at in edges.items()},
            similarity={r: lists[r].similarity[at] for r, at in edges.items()},
            lists={r: len(lists[r].similarity) for r in RELATIONS},
            row={r: lists[r].row for r in RELATIONS},
        )

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Note how well the groups were predicted, remember them, and learn if a round has begun to report in which that is due."""
        self.heuristic.update(step, groups, before)
        seen = groups.observed
        before = before.at(seen.to(before.informativeness.device))
        z, v, m = informative(groups.variance[seen], self.config.v_floor), groups.variance[seen], groups.mean[seen]
        if not len(z):
            return
        self._note(z, before)
        self.learner.add(groups_of(before.parts, z, v, m))
        if step <= self._last_step:
            return
        self._last_step, self._rounds = step, self._rounds + 1
        if self.config.learn_every and self._rounds % self.config.learn_every == 0:
            self.learner.learn()

    def _note(self, z: Tensor, before: Prediction) -> None:
        for name in ("learned", "mixture"):
            p = before.parts[f"{name}_p"].cpu().clamp(*CLIP)
            self._losses[name] = LOSS_DECAY * self._losses[name] - float(torch.where(z, p.log(), (1 - p).log()).sum())
        self._losses["groups"] = LOSS_DECAY * self._losses["groups"] + len(z)

    def metrics(self) -> dict[str, float]:
        """How much the network has learned from, how far it is trusted, and its loss on groups before it learned from them."""
        figures = {"groups": float(self.learner.trained), "gate": self.learner.gate}
        if self._losses["groups"]:
            figures |= {f"loss_{name}": self._losses[name] / self._losses["groups"] for name in ("learned", "mixture")}
        return self.heuristic.metrics() | {f"envsched/learned/{name}": value for name, value in figures.items()}

    def state_dict(self) -> dict[str, Any]:
        """Experts, network, optimiser and what they learn from; tensors and plain data, no task rows."""
        return {
            "heuristic": self.heuristic.state_dict(),
            "learner": self.learner.state_dict(),
            "progress": [self._last_step, self._rounds],
            "losses": dict(self._losses),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self.heuristic.load_state_dict(state["heuristic"])
        self.learner.load_state_dict(state["learner"])
        self._last_step, self._rounds = (int(value) for value in state["progress"])
        self._losses = {name: float(state["losses"][name]) for name in self._losses}


class EnsemblePredictor:
    """The prequential mixture with the network as one more expert: never much worse than the better of the two (ours)."""

    def __init__(self, learned: LearnedPredictor) -> None:
        self.learned = learned
        self.experts = ExpertWeights(len(PRIORS) * len(STRENGTHS) + 1)
        self.spreads = ExpertWeights(len(SPREADS))

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """`p = (1 - w) p_mixture + w p_learned`, w the weight of that expert, the part `learned_weight`; `u = p nu`, nu alike.

        The others, among themselves, have the weights of the mixture: theirs are the same likelihoods. nu = E[v | v > floor] has
        weights of its own, from the likelihood of 4 v among informative groups.
        """
        prediction = self.learned.predict(graph, evidence, step)
        parts, w, w_nu = prediction.parts, float(self.experts.weights()[-1]), float(self.spreads.weights()[-1])
        p = torch.lerp(parts["mixture_p"], parts["learned_p"], w)  # exactly either where both agree
        u = p * torch.lerp(parts["mixture_nu"], parts["learned_nu"], w_nu)
        parts = {**parts, "learned_weight": torch.full_like(p, w)}
        return with_score(replace(prediction, p_informative=p, predicted_variance=u, parts=parts), self.learned.config)

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Score all experts, and both spreads, then let the network learn."""
        seen = groups.observed
        at = before.at(seen.to(before.informativeness.device))
        z, v = informative(groups.variance[seen], self.learned.config.v_floor), groups.variance[seen]
        self.experts.add(step, torch.cat([self.learned.heuristic.experts_at(at), at.parts["learned_p"][None]]), z)
        self.spreads.add(step, torch.stack([4 * at.parts[name][z.to(at.informativeness.device)] for name in SPREADS]), 4 * v[z])
        self.learned.update(step, groups, before)

    def metrics(self) -> dict[str, float]:
        """The network's, and its weight."""
        return self.learned.metrics() | {"envsched/learned/weight": float(self.experts.weights()[-1])}

    def state_dict(self) -> dict[str, Any]:
        """Both, and how they are weighed."""
        weights = {"experts": self.experts.state_dict(), "spreads": self.spreads.state_dict()}
        return {"learned": self.learned.state_dict(), **weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self.learned.load_state_dict(state["learned"])
        self.experts.load_state_dict(state["experts"])
        self.spreads.load_state_dict(state["spreads"])


def with_score(prediction: Prediction, config: PredictConfig) -> Prediction:
    """The same with its informativeness q.

    Preset `paper`: the rank of u. Preset `default`: p, or where `predict.target` is the expected variance or standard deviation, that as a
    share of the largest there is: `u / (1/4)`, `p sqrt(nu) / (1/2)` (ours).
    """
    p, u = prediction.p_informative, prediction.predicted_variance
    match config.preset, config.target:
        case "paper", _:
            q = percentile_rank(u)
        case _, "informative":
            q = p
        case _, "variance":
            q = 4 * u
        case _:
            q = 2 * (p * u).sqrt()
    return replace(prediction, informativeness=q)


def _uncertainty(mixture: Prediction, p: Float[Tensor, " tasks"], variance: Float[Tensor, " tasks"]) -> Float[Tensor, " tasks"]:
    """`sqrt(p (1 - p) / (W + c + 1) + (p (1 - p))^2 Var[gate r_p])`: of the task itself, as the mixture has it, and of the weights."""
    assert mixture.uncertainty is not None
    before, after = (q * (1 - q) for q in (mixture.p_informative, p))
    own = torch.where(before > 0, mixture.uncertainty.square() / before, 0)
    return (after * own + after.square() * variance).sqrt_()
