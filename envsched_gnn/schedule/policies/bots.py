"""BOTS-style (after arXiv 2510.26374): Beta beliefs fed by a task's own groups and, faintly, by what is expected of every task.

Knows: the update, the draw toward 1/2.
Does not know: reference models. The source takes its implicit evidence from two of them; here (ours) it is the prior of EnvSched's own
graph, preset `paper`: what observed neighbours within the environment and across environments say about the mean reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import DISPERSION_FLOOR, History
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

FORGETTING = 0.1
"""lambda (the source)."""
IMPLICIT = 0.1
"""rho, share of the implicit evidence (the source)."""
START = 1.0
"""a0 = b0 (the source)."""


class Bots:
    """Draws p ~ Beta(a, b) for every task, and picks the smallest |p - 1/2|."""

    def __init__(self, graph: HeteroData, num_rollouts: int) -> None:
        self._graph, self._num_rollouts = graph, num_rollouts
        self._neighbors = Neighbors(graph)
        self._predictor = HeuristicPredictor("paper", self._neighbors)
        self._clear()
        self.memory = self.start()

    def _clear(self) -> None:
        self._history = History(self._graph["task"].env_index.numel())

    def start(self) -> Memory:
        """`a`, `b` [tasks]; `log` [observations, (identity, step)] and `values` [observations, (variance, mean)] in order of arrival."""
        one = torch.full((self._graph["task"].env_index.numel(),), START, dtype=torch.float64)
        log = {"log": torch.zeros((0, 2), dtype=torch.int64), "values": torch.zeros((0, 2), dtype=torch.float64)}
        return Memory(tasks={"a": one, "b": one.clone()}, shared=log)

    def choose(self, ask: Ask) -> Plan:
        """Thompson sampling."""
        a, b = self.memory.tasks["a"][ask.rows], self.memory.tasks["b"][ask.rows]
        return ask.best(-(chance.beta(a, b, ask.draws(chance.THOMPSON)) - 0.5).abs())

    def learn(self, step: int, groups: Groups) -> None:
        """a <- (1-lambda) a + lambda a0 + (1-rho) s + rho K p~ of all tasks, s = K m of the observed ones, else 0; b with 1-m, 1-p~.

        p~ is the prior that the groups of this round and earlier ones give.
        """
        shared, identity = self.memory.shared, self._graph["task"].identity.cpu()[groups.rows]
        shared["log"] = torch.cat([shared["log"], torch.stack([identity, torch.full_like(identity, step)], 1)])
        shared["values"] = torch.cat([shared["values"], torch.stack([groups.variance, groups.mean], 1)])
        self._add(groups.rows, torch.full_like(groups.rows, step), groups.variance, groups.mean)
        prior, successes = self.prior(step + 1), groups.num_rewards * groups.mean
        for name, expected, count in (("a", prior, successes), ("b", 1 - prior, groups.num_rewards - successes)):
            table = (1 - FORGETTING) * self.memory.tasks[name] + FORGETTING * START + IMPLICIT * self._num_rollouts * expected
            table[groups.rows] += (1 - IMPLICIT) * count
            self.memory.tasks[name] = table

    def prior(self, step: int) -> Float[Tensor, " tasks"]:
        """p~ before `step`: (within + cross) / 2 of the mean reward, each pulled toward the reference (paper)."""
        parts = self._predictor.predict(self._graph, self._history.evidence(step), step).parts
        return (parts["within_mean"] + parts["cross_mean"]) / 2

    def _add(self, rows: Tensor, steps: Tensor, variance: Tensor, mean: Tensor) -> None:
        if len(rows):
            dispersion = (variance / (mean * (1 - mean)).clamp(min=DISPERSION_FLOOR)).clamp(0, 1)
            self._history.add(rows, steps, variance, mean, dispersion)
            self._neighbors.insert(rows)

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """The history follows from the log; groups of tasks that are not in the pool stay in it unused."""
        self.memory = memory
        identity, order = self._graph["task"].identity.cpu().sort()
        logged, steps = memory.shared["log"].T.contiguous()
        at = torch.searchsorted(identity, logged).clamp(max=len(identity) - 1)
        here = identity[at] == logged
        self._clear()
        self._neighbors.load_state_dict({"observed": torch.zeros(0, dtype=torch.int64)})
        variance, mean = memory.shared["values"][here].T
        self._add(order[at[here]], steps[here], variance, mean)

    def metrics(self) -> dict[str, float]:
        """Mean expected success."""
        a, b = self.memory.tasks["a"], self.memory.tasks["b"]
        return {"success": float((a / (a + b)).mean())}
