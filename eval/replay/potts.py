"""The difficulty estimate on a graph of prompts (arXiv 2608.17941), read as a forecast: the peer that has a graph and no environments.

Knows: what a chance of success says of a group, where the prompts of a ledger come from.
Does not know: how the chance is estimated (schedule/policies/graph_potts), figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch_geometric.data import HeteroData

from envsched_gnn.errors import GraphError
from envsched_gnn.history import GroupStatistics
from envsched_gnn.ops import percentile_rank
from envsched_gnn.records import Evidence, Prediction
from envsched_gnn.schedule.policies.graph_potts import GraphPotts
from envsched_gnn.schedule.policies.prompts import prompt_embedding

if TYPE_CHECKING:
    from envsched_gnn.eval.replay.recorded import Recorded

NAME = "graph_potts"


@dataclass(frozen=True, kw_only=True)
class OfSuccess:
    """An estimate p of the mean reward, read as that of `num_rollouts` independent rewards that are 0 or 1 (ours)."""

    estimate: GraphPotts
    num_rollouts: int
    """K."""

    def predict(self, graph: HeteroData, evidence: Evidence, step: int) -> Prediction:
        """`P(v > 0) = 1 - p^K - (1 - p)^K` and `E[v] = (1 - 1/K) p (1 - p)`; part `row` says which task is which."""
        row, k = torch.arange(len(graph["task"].env_index)), self.num_rollouts
        p = self.estimate.success(row).double()
        chance = 1 - p**k - (1 - p) ** k
        variance = (1 - 1 / k) * p * (1 - p)
        return Prediction(informativeness=percentile_rank(chance), predicted_variance=variance, p_informative=chance, parts={"row": row})

    def update(self, step: int, groups: GroupStatistics, before: Prediction) -> None:
        """Count their rewards."""
        seen = groups.observed
        self.estimate.count(before.parts["row"][seen], groups.num_valid[seen].double(), groups.mean[seen])


def prompt_graph(recorded: Recorded) -> OfSuccess:
    """The estimate of a ledger's pool, which has seen nothing.

    Raises:
        GraphError: there is no pool to read prompts of.
    """
    if recorded.pool is None:
        cure = "Give --pool, or name the other predictors; the tasks of a simulated ledger have no prompts."
        raise GraphError(f"{recorded.path}: {NAME} needs the prompts of the pool, and only its graph is there. {cure}")
    vectors = prompt_embedding([task.prompt for task in recorded.pool.tasks])
    estimate = GraphPotts(vectors, recorded.graph["task"].identity)
    return OfSuccess(estimate=estimate, num_rollouts=recorded.config.rollout.num_rollouts)
