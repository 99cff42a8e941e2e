"""Graphs and histories of the speed table.

Knows: three sizes (ToolWorld 51 x 50 and 10,000 x 10; random vectors 20,000 x 50 with 2,000 unique records), 200 observed rounds.
Does not know: what is timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.graph.build import assemble_graph, build_graph
from envsched_gnn.pool.load import load_pool
from envsched_gnn.records import Rollout, RolloutGroup, group_id_of

ROUNDS = 200
BATCH = 64
NUM_ROLLOUTS = 8


@dataclass(frozen=True, kw_only=True)
class Size:
    """One pool of the table."""

    environments: int
    tasks_per_environment: int
    records: int | None = None
    """Unique cross vectors of a random graph; None: a ToolWorld pool with all its features."""
    dimension: int = 0
    """Of the random cross vectors."""

    @property
    def tasks(self) -> int:
        """N."""
        return self.environments * self.tasks_per_environment


SIZES = (
    Size(environments=51, tasks_per_environment=50),
    Size(environments=10_000, tasks_per_environment=10),
    Size(environments=20_000, tasks_per_environment=50, records=2_000, dimension=256),
)


def timed_graph(size: Size) -> tuple[HeteroData, float | None]:
    """The graph and the seconds that `build_graph` took; None for a random graph, which has no features to build."""
    if size.records is not None:
        return random_graph(size), None
    pool = load_pool(PoolConfig(toolworld=ToolWorldConfig(environments=size.environments, tasks=size.tasks_per_environment)))
    start = time.perf_counter()
    graph = build_graph(pool, progress=True)
    return graph, time.perf_counter() - start


def random_graph(size: Size, seed: int = 0) -> HeteroData:
    """Sparse non-negative unit vectors, records drawn uniformly, dense blocks of random similarity."""
    assert size.records is not None
    generator = torch.Generator().manual_seed(seed)
    n = size.tasks_per_environment
    cross = _unit(torch.rand(size.records, size.dimension, generator=generator, dtype=torch.float64), keep=0.1, generator=generator)
    within = _unit(torch.rand(4 * n, 64, generator=generator, dtype=torch.float64), keep=0.5, generator=generator)
    block = within @ within.T
    starts = torch.randint(3 * n, (size.environments,), generator=generator).tolist()
    env_index = torch.arange(size.environments).repeat_interleave(n)
    return assemble_graph(
        env_ids=[f"env{e}" for e in range(size.environments)],
        env_index=env_index,
        task_ids=[f"task{i % n}" for i in range(size.tasks)],
        within_blocks=[block[s : s + n, s : s + n] for s in starts],
        cross_vectors=cross,
        record_index=torch.randint(size.records, (size.tasks,), generator=generator),
    )


def _unit(values: Tensor, *, keep: float, generator: torch.Generator) -> Tensor:
    mask = torch.rand(values.shape, generator=generator) < keep
    values = torch.where(mask, values, 0.0) + 1e-3 * values
    return values / values.norm(dim=1, keepdim=True)


def history(graph: HeteroData, rounds: int = ROUNDS, seed: int = 0) -> Iterator[list[RolloutGroup]]:
    """`rounds` rounds of BATCH uniform tasks, binary rewards whose rate differs by environment."""
    rng = np.random.default_rng(seed)
    env_index = graph["task"].env_index.numpy()
    rate = rng.beta(0.5, 0.5, size=len(graph.env_ids))
    for step in range(rounds):
        rows = rng.choice(len(env_index), size=BATCH, replace=False)
        rewards = rng.random((BATCH, NUM_ROLLOUTS)) < rate[env_index[rows], None]
        yield [
            RolloutGroup(
                group_id=group_id_of(step, graph.env_ids[env_index[row]], graph.task_ids[row]),
                env_id=graph.env_ids[env_index[row]],
                task_id=graph.task_ids[row],
                step=step,
                rollouts=tuple(Rollout(reward=float(reward)) for reward in rewards[i]),
            )
            for i, row in enumerate(rows)
        ]
