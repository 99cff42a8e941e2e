"""LEEPS-style (after arXiv 2607.28077): an exploit and an explore portfolio, the second guided by neighbours among prompt vectors.

Knows: portfolios, their budgets, both rankings.
Does not know: environments. The paper's formulas were not available: all but the idea (portfolios, adaptive budget, positive cosine to
neighbours, outcomes) is our re-implementation, and its vectors are hidden states of the policy, ours whatever is handed in.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.ops import segment_sum, weighted_gather
from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.knn import observed_neighbors
from envsched_gnn.schedule.policies.prompts import unit
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

NEIGHBORS = 16
"""Nearest observed prompts (ours)."""
PRIOR = 2.0
"""Pseudo-weight of the mean of all groups (ours)."""
HALF_LIFE = 8.0
"""Rounds after which an outcome counts half (ours)."""
RECENT = 5
"""Rounds whose outcomes set the budget (ours)."""
SHARE = (0.2, 0.8)
"""Bounds of the exploit portfolio's share (ours)."""
BONUS = 0.1
"""Of a task that was never seen, in the explore score (ours)."""
EXPLORE, EXPLOIT = 0, 1


class Leeps:
    """Exploit: tasks whose latest group was mixed. Explore: all others."""

    def __init__(self, embedding: Float[Tensor, "tasks d"], num_rollouts: int) -> None:
        self._vectors, self._num_rollouts = unit(embedding), num_rollouts
        self._neighbors = observed_neighbors(self._vectors, NEIGHBORS)
        self.memory = self.start()

    def start(self) -> Memory:
        """Of each task: `weight` W = sum w, `total` = sum w m, number of `groups`; whether the latest was `mixed`, and of the latest round
        (`fresh`). Shared: `outcomes` [5, portfolio, (mixed, groups)] of the latest rounds; `reference` (sum w m, sum w) of all.
        """
        tasks = len(self._vectors)
        zeros = torch.zeros(tasks, dtype=torch.float64)
        flags = torch.zeros(tasks, dtype=torch.bool)
        return Memory(
            tasks={"weight": zeros, "total": zeros.clone(), "groups": zeros.long(), "mixed": flags, "fresh": flags.clone()},
            shared={"outcomes": torch.zeros((RECENT, 2, 2), dtype=torch.float64), "reference": torch.zeros(2, dtype=torch.float64)},
        )

    def exploit_share(self) -> float:
        """clip(rho_X / (rho_X + rho_Y), 0.2, 0.8), rho = (mixed + 1) / (groups + 2) of a portfolio's groups in the last 5 rounds."""
        mixed, groups = self.memory.shared["outcomes"].sum(0).unbind(1)
        rho = (mixed + 1) / (groups + 2)
        return float((rho[EXPLOIT] / rho.sum()).clamp(*SHARE))

    def success(self, rows: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """p = (sum_j s_j W_j m_j + 2 b) / (sum_j s_j W_j + 2) over the 16 nearest observed prompts j and, with s = 1, the task itself.

        b = mean of all groups, half-life 8; 1/2 before any.
        """
        weight, total = self.memory.tasks["weight"], self.memory.tasks["total"]
        said, counted = self.memory.shared["reference"].tolist()
        b = said / counted if counted > 0 else 0.5
        lists, seen = self._neighbors.lists("cross"), self._neighbors.observed
        row = lists.row[rows]
        table = torch.stack([total[seen], weight[seen]], 1)
        near = weighted_gather(table, lists.slot_index[row], lists.similarity[row])
        return (near[:, 0] + total[rows] + PRIOR * b) / (near[:, 1] + weight[rows] + PRIOR)

    def choose(self, ask: Ask) -> Plan:
        """round(count share) exploit picks, the rest explore picks; where one set is short, the other fills up, cooling tasks last.

        Exploit: p (1-p) of the task's own weighted mean, but not a task that the latest round observed.
        Explore: 1 - p^K - (1-p)^K + 0.1 / sqrt(1 + n).
        """
        tables, rows = self.memory.tasks, ask.rows
        exploit, fresh = tables["mixed"][rows], tables["fresh"][rows]
        own = tables["total"][rows] / tables["weight"][rows].clamp(min=1e-300)
        p, k = self.success(rows), self._num_rollouts
        explored = 1 - p**k - (1 - p) ** k + BONUS / (1 + tables["groups"][rows].to(p.dtype)).sqrt()
        score, key = torch.where(exploit, own * (1 - own), explored), ask.key()
        sets = [at.nonzero().flatten() for at in (exploit & ~fresh, ~exploit, exploit & fresh)]
        exploiting, exploring, cooling = (at[chance.ranked(score[at], key[at], ask.count)] for at in sets)
        slots = max(round(ask.count * self.exploit_share()), ask.count - len(exploring))
        slots = min(slots, len(exploiting))
        chosen = torch.cat([exploiting[:slots], exploring[: ask.count - slots], cooling])[: ask.count]
        return Plan(rows=rows[chosen], score=score[chosen])

    def learn(self, step: int, groups: Groups) -> None:
        """Count the outcomes of both portfolios, then let time pass: W <- 2^(-1/8) W + 1 and the like of the observed tasks."""
        tables, shared, rows, w = self.memory.tasks, self.memory.shared, groups.rows, 2 ** (-1 / HALF_LIFE)
        portfolio = tables["mixed"][rows].to(torch.int64)
        outcome = segment_sum(torch.stack([groups.mixed, torch.ones_like(groups.mixed)]).to(torch.float64), portfolio, 2).T
        shared["outcomes"] = torch.cat([shared["outcomes"][1:], outcome[None]])
        for name, value in (("weight", torch.ones_like(groups.mean)), ("total", groups.mean)):
            tables[name] *= w
            tables[name][rows] += value
        shared["reference"] = w * shared["reference"] + torch.stack([groups.mean.sum(), torch.ones_like(groups.mean).sum()])
        tables["groups"][rows] += 1
        tables["mixed"][rows] = groups.mixed
        tables["fresh"] = torch.zeros_like(tables["fresh"])
        tables["fresh"][rows] = True
        self._neighbors.insert(rows)

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """The neighbours follow from which tasks were seen."""
        self.memory = memory
        self._neighbors.load_state_dict({"observed": memory.tasks["groups"].nonzero().flatten()})

    def metrics(self) -> dict[str, float]:
        """Share of the exploit portfolio, of the batch and of the pool."""
        return {"exploit_share": self.exploit_share(), "exploit_tasks": float(self.memory.tasks["mixed"].double().mean())}
