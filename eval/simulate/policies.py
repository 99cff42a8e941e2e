"""Who chooses the tasks of a simulated run.

Knows: which scheduler each policy name is; an oracle that knows the chances instead of estimating them.
Does not know: pools, learners, rounds.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import Config
from envsched_gnn.eval.headline.oracle import GRID, REFRESH, Oracle
from envsched_gnn.pool.pool import Pool
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.uniform import Uniform


class ExactOracle(Oracle):
    """The headline experiment's oracle, told the true chances where that one estimates them: the same quotas, refresh and grid."""

    def know(self, step: int, chances: Float[Tensor, " tasks"]) -> None:
        """Take over P(v > 0) of every task at every REFRESH-th step."""
        if step % REFRESH == 0:
            self._score = (chances / GRID).round() * GRID


def scheduler_of(config: Config, pool: Pool, graph: HeteroData) -> EnvSched | Uniform:
    """The scheduler that `run.policy` names, which has seen nothing."""
    seed, select, predict = config.run.seed, config.select, config.predict
    match config.run.policy:
        case "uniform":
            return Uniform(pool, graph, batch_size=select.batch_size, seed=seed)
        case "oracle":
            return ExactOracle(pool, graph, seed=seed, select=select, num_rollouts=config.rollout.num_rollouts)
        case "paper":
            return EnvSched(pool, graph, seed=seed, preset="paper", select=select, predict=predict)
        case "envsched":
            return EnvSched(pool, graph, seed=seed, preset="default", select=select, predict=predict)
