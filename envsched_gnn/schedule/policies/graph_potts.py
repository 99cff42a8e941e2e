"""The graph-structured difficulty estimator (arXiv 2608.17941): Potts labels and Beta-Binomial success on a graph of prompts.

Knows: the mean-field updates, and the choice of tasks near 1/2.
Does not know: environments: its graph is of prompts alone. Whether rewards within a group differ: only their mean counts.
Ours: k-means in place of spectral clustering, a few sweeps around what is new in place of sweeps to convergence, and what the estimate is
used for: PCL's choice, one of the source's three.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.knn import clusters, mutual_graph
from envsched_gnn.schedule.policies.pcl import CANDIDATES
from envsched_gnn.schedule.policies.prompts import unit
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

NEIGHBORS = 80
"""k of the mutual graph (the source)."""
LABELS = 320
"""States of a task (the source)."""
TASKS_PER_LABEL = 8
"""Least, on average: 2,550 tasks then have the source's number of labels (ours)."""
COUPLING = 2.0
"""beta (the source)."""
SMOOTHING = 0.1
"""Probability that a task is not of its cluster's state (ours; the source's is not known to us)."""
OWN = 0.5
"""gamma, share of the task's own mean once it was seen (the source)."""
SWEEPS = 3
"""Of the mean field, a round (ours)."""


class GraphPotts:
    """p_i = sum_k q_ik a_k / (a_k + b_k), averaged with the task's own mean once it was seen."""

    def __init__(self, embedding: Float[Tensor, "tasks d"], identity: Int[Tensor, " tasks"]) -> None:
        """Builds graph and clusters, once: about a minute for 100,000 tasks of 64 dimensions."""
        vectors = unit(embedding)
        self._labels = max(min(LABELS, len(vectors) // TASKS_PER_LABEL), 1)
        self._cluster = clusters(vectors, identity, self._labels)
        self._graph = mutual_graph(vectors, NEIGHBORS)
        self.memory = self.start()

    def start(self) -> Memory:
        """`successes` s, `trials` n [tasks]; shared: `label` q [tasks, labels] (float32), `a`, `b` [labels] of each state's Beta."""
        tasks, one = len(self._cluster), torch.ones(self._labels, dtype=torch.float64)
        counts = {name: torch.zeros(tasks, dtype=torch.float64) for name in ("successes", "trials")}
        return Memory(tasks=counts, shared={"label": self._log_prior(torch.arange(tasks)).exp(), "a": one, "b": one.clone()})

    def _log_prior(self, rows: Int[Tensor, " n"]) -> Float[Tensor, "n labels"]:
        """log A: 1 - eps on the state of the task's cluster, eps shared by the others."""
        if self._labels == 1:
            return torch.zeros((len(rows), 1))
        log_a = torch.full((len(rows), self._labels), math.log(SMOOTHING / (self._labels - 1)))
        log_a[torch.arange(len(rows)), self._cluster[rows]] = math.log(1 - SMOOTHING)
        return log_a

    def success(self, rows: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """p of tasks."""
        shared, s, n = self.memory.shared, self.memory.tasks["successes"][rows], self.memory.tasks["trials"][rows]
        p = (shared["label"][rows] * (shared["a"] / (shared["a"] + shared["b"]))).sum(1)
        return torch.where(n > 0, (1 - OWN) * p + OWN * s / n.clamp(min=1), p)

    def choose(self, ask: Ask) -> Plan:
        """The smallest |p - 1/2| of 4 batches of candidates."""
        among = ask.candidates(CANDIDATES * ask.count)
        return ask.best(-(self.success(ask.rows[among]) - 0.5).abs(), among)

    def learn(self, step: int, groups: Groups) -> None:
        """Count their rewards."""
        self.count(groups.rows, groups.num_rewards, groups.mean)

    def count(self, rows: Int[Tensor, " n"], num_rewards: Float[Tensor, " n"], mean: Float[Tensor, " n"]) -> None:
        """Count, then sweep over the observed tasks and their neighbours; a task at most once."""
        self.memory.tasks["successes"][rows] += num_rewards * mean
        self.memory.tasks["trials"][rows] += num_rewards
        self._sweep(rows)

    def _sweep(self, rows: Int[Tensor, " n"]) -> None:
        """Alternate, for the tasks in `rows` and their neighbours and over all that were ever seen:

        q_ik <- softmax_k( log A_ik + beta sum_j W_ij q_jk + s_i (psi(a_k) - psi(a_k + b_k)) + (n_i - s_i) (psi(b_k) - psi(a_k + b_k)) )
        a_k <- 1 + sum_i q_ik s_i,  b_k <- 1 + sum_i q_ik (n_i - s_i)
        """
        if not len(rows):
            return
        near = torch.from_numpy(self._graph[rows.numpy()].indices.astype("int64"))
        touched = torch.unique(torch.cat([rows, near]))
        coupling, log_a = self._graph[touched.numpy()], self._log_prior(touched)
        shared, s = self.memory.shared, self.memory.tasks["successes"]
        f = self.memory.tasks["trials"] - s
        seen = self.memory.tasks["trials"].nonzero().flatten()
        q = shared["label"]
        for _ in range(SWEEPS):
            a, b = shared["a"], shared["b"]
            up, down = torch.digamma(a) - torch.digamma(a + b), torch.digamma(b) - torch.digamma(a + b)
            evidence = s[touched, None] * up + f[touched, None] * down
            q[touched] = torch.softmax(log_a + COUPLING * torch.from_numpy(coupling @ q.numpy()) + evidence, 1).to(q.dtype)
            shared["a"], shared["b"] = (1 + (q[seen] * count[seen, None]).sum(0) for count in (s, f))

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """Labels mean something in their own pool alone: of a changed one they are found anew from the counts."""
        self.memory = memory
        if not same_pool:
            memory.shared = self.start().shared
            self._sweep(memory.tasks["trials"].nonzero().flatten())

    def metrics(self) -> dict[str, float]:
        """Number of states, and the spread of their success."""
        a, b = self.memory.shared["a"], self.memory.shared["b"]
        return {"labels": float(self._labels), "success_std": float((a / (a + b)).std(correction=0))}
