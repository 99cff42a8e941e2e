"""Who chooses the tasks of a simulated run.

Knows: which scheduler each policy name is; an oracle that knows the chances instead of estimating them.
Does not know: pools, learners, rounds.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import Config
from envsched_gnn.eval.headline.oracle import REFRESH, Oracle
from envsched_gnn.models.make import configured_policy
from envsched_gnn.pool.pool import Pool
from envsched_gnn.schedule.policies import AnyPolicy


class ExactOracle(Oracle):
    """The headline experiment's oracle, told the true chances where that one estimates them: the same quotas, refresh and grid."""

    def know(self, step: int, chances: Float[Tensor, " tasks"]) -> None:
        """Take over P(v > 0) of every task at every REFRESH-th step."""
        if step % REFRESH == 0:
            self.chances = chances


def scheduler_of(config: Config, pool: Pool, graph: HeteroData) -> AnyPolicy:
    """The scheduler that `run.policy` names, which has seen nothing."""
    if config.run.policy == "oracle":
        return ExactOracle(pool, graph, seed=config.run.seed, select=config.select, num_rollouts=config.rollout.num_rollouts)
    return configured_policy(config.run.policy, config, pool, graph)
