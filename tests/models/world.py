"""A small pool whose rewards follow a rule that neighbours do not tell, for the tests of the learned predictor."""

from __future__ import annotations

import random

import torch
from torch_geometric.data import HeteroData

from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import GroupStatistics, History

WORDS = 6


class World:
    """`tasks` in environments of ten, with word vectors; a group shows variance where the first word stands (chance 0.9, else 0.1)."""

    def __init__(self, tasks: int = 60, seed: int = 0, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(seed)
        self.random = random.Random(seed)
        words = (torch.rand(tasks, WORDS, generator=generator) < 0.5).double()
        words[:, -1] = 1.0
        vectors = words / words.norm(dim=1, keepdim=True)
        env = torch.arange(tasks) // 10
        self.spreads = words[:, 0].bool().tolist()
        self.graph: HeteroData = assemble_graph(
            env_ids=[f"e{e}" for e in range(int(env.max()) + 1)],
            env_index=env,
            task_ids=[f"t{i}" for i in range(tasks)],
            within_vectors=vectors,
            cross_vectors=vectors,
            record_index=torch.arange(tasks),
            pool_hash=f"{seed}" * 64,
        ).to(device)
        self.history, self.neighbors = History(tasks, device=device), Neighbors(self.graph)

    def groups(self, rows: list[int]) -> GroupStatistics:
        """What groups of these tasks show."""
        z = torch.tensor([self.random.random() < (0.9 if self.spreads[row] else 0.1) for row in rows])
        v = torch.where(z, 0.2, 0.0).double()
        m = torch.where(z, 0.5, 0.0).double()
        seen = torch.ones_like(z)
        return GroupStatistics(variance=v, mean=m, dispersion=v * 4, observed=seen, num_valid=seen.long() * 8, rejected=())

    def round(self, predictor, step: int, size: int = 16):
        """Predict, show, learn, observe; (prediction of the groups, their statistics)."""
        rows = self.random.sample(range(len(self.spreads)), size)
        before = predictor.predict(self.graph, self.history.evidence(step), step).at(torch.tensor(rows))
        groups = self.groups(rows)
        predictor.update(step, groups, before)
        tasks = torch.tensor(rows)
        self.history.add(tasks, torch.full_like(tasks, step), groups.variance, groups.mean, groups.dispersion)
        self.neighbors.insert(tasks)
        return before, groups
