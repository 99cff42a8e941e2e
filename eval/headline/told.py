"""Preset `default` that is told the truth about some tasks: what better prediction of them would be worth.

Knows: which tasks it is told about, how what is told replaces the forecast.
Does not know: how rollouts are made, quotas, coverage; they are the scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import PredictConfig, SelectConfig
from envsched_gnn.eval.headline.oracle import REFRESH, SAMPLES, Play, informative_probability
from envsched_gnn.models.make import predictor_of
from envsched_gnn.models.predictor import with_score
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Evidence, Prediction
from envsched_gnn.schedule.envsched import EnvSched

About = Literal["seen", "unseen"]
"""Tasks that have been observed, or the others."""


def expected_variance(rewards: Sequence[float | None], group: int) -> float:
    """Of the rewards of a group: `(1 - 1/group) s^2`, s^2 the unbiased variance of these. 0 where there are fewer than two."""
    valid = torch.tensor([reward for reward in rewards if reward is not None], dtype=torch.float64)
    return (1 - 1 / group) * float(valid.var()) if len(valid) > 1 else 0.0


class Told(EnvSched):
    """`EnvSched` whose forecast of some tasks is what 16 rollouts of the current policy say, every fourth step; nobody charges them."""

    def __init__(
        self, pool: Pool, graph: HeteroData, *, about: About, seed: int, select: SelectConfig, predict: PredictConfig, num_rollouts: int
    ) -> None:
        super().__init__(pool, graph, seed=seed, preset="default", select=select, predict=predict, predictor=predictor_of)
        self._about, self._num_rollouts = about, num_rollouts
        self.told = torch.full((2, len(pool.tasks)), torch.nan, dtype=torch.float64)
        """(expected variance, chance of variance) as last estimated [2, tasks]; NaN where nobody looked."""

    def look(self, step: int, play: Play) -> None:
        """Estimate anew at every REFRESH-th step."""
        if step % REFRESH:
            return
        self.told.fill_(torch.nan)
        rows = (self._meant(self.history.evidence(step)) & ~self.graph["task"].held_out).nonzero()[:, 0].tolist()
        if rows:
            k = self._num_rollouts
            said = [(expected_variance(rewards, k), informative_probability(rewards, k)) for rewards in play(rows, SAMPLES)]
            self.told[:, rows] = torch.tensor(said, dtype=torch.float64).T

    def _meant(self, evidence: Evidence) -> Tensor:
        """The tasks that it is told about; [tasks] bool."""
        seen = evidence.weight[0] > 0
        return seen if self._about == "seen" else ~seen

    def predicted(self, step: int) -> tuple[Evidence, Prediction]:
        """The forecast, replaced where it is told better."""
        evidence, prediction = super().predicted(step)
        known = self._meant(evidence) & ~self.told[0].isnan()
        u, p = (
            torch.where(known, told, said)
            for told, said in zip(self.told, (prediction.predicted_variance, prediction.p_informative), strict=True)
        )
        scored = with_score(replace(prediction, predicted_variance=u, p_informative=p), self.predict_config)
        return evidence, replace(scored, informativeness=torch.where(known, scored.informativeness, prediction.informativeness))

    def state_dict(self) -> dict[str, Any]:
        """Also what it was told."""
        return {**super().state_dict(), "told": self.told.nan_to_num(-1.0).tolist()}

    def load_state_dict(self, saved: Any) -> Any:
        """Restore what `state_dict` gave."""
        told = torch.tensor(saved["told"], dtype=torch.float64)
        self.told = torch.where(told < 0, torch.nan, told)
        return super().load_state_dict({name: value for name, value in saved.items() if name != "told"})
