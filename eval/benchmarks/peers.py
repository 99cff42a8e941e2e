"""Time select and observe of every policy on synthetic pools.

Knows: pools of clustered prompt vectors, a history to begin with, what is timed.
Does not know: how any policy chooses; processes and files (speed). Rewards are made up: how good the choices are is not measured here.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.eval.benchmarks.pools import BATCH, NUM_ROLLOUTS, Size, history
from envsched_gnn.records import Rollout, RolloutGroup, Selection
from envsched_gnn.schedule.policies import policy_of

POOLS = {
    size.tasks: size
    for size in (
        Size(environments=51, tasks_per_environment=50, records=500, dimension=256),
        Size(environments=2_000, tasks_per_environment=50, records=2_000, dimension=256),
    )
}
DIMENSION = 64
"""Of the prompt vectors, as of the default ones."""
TOPICS = 300
"""Centres that they lie around."""
KNOWN_ROUNDS = 50
"""Rounds of a uniform history that every policy is given first."""
COLUMNS = (
    *("policy", "tasks", "threads", "build_s", "select_ms", "select_cpu_ms", "select_max_ms", "observe_ms", "observe_cpu_ms", "trips"),
    "peak_mb",
)


class Cost(NamedTuple):
    """Milliseconds on the clock, and of all cores: on one thread of a busy machine the second is what a quiet one would need."""

    wall: float
    cpu: float


def prompt_vectors(tasks: int) -> Tensor:
    """Vectors around a few hundred topics, [tasks, DIMENSION]."""
    generator = torch.Generator().manual_seed(0)
    topics = torch.randn((TOPICS, DIMENSION), generator=generator, dtype=torch.float64)
    topic = torch.randint(TOPICS, (tasks,), generator=generator)
    return topics[topic] + 0.7 * torch.randn((tasks, DIMENSION), generator=generator, dtype=torch.float64)


def rolled_out(selection: Selection, generator: torch.Generator) -> list[RolloutGroup]:
    """Binary rewards; half of all groups are mixed."""
    k = selection.num_rollouts or NUM_ROLLOUTS
    mixed = torch.rand(len(selection.picks), generator=generator) < 0.5
    rewards = (torch.rand((len(selection.picks), k), generator=generator) < 0.5) & mixed[:, None]
    return [
        RolloutGroup(
            group_id=pick.group_id,
            env_id=pick.env_id,
            task_id=pick.task_id,
            step=selection.step,
            rollouts=tuple(Rollout(reward=float(reward)) for reward in row),
        )
        for pick, row in zip(selection.picks, rewards.tolist(), strict=True)
    ]


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Cost, Any]:
    """What one call took, and what it returned."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work(*arguments)
    return Cost(wall=1e3 * (time.perf_counter() - wall), cpu=1e3 * (time.process_time() - cpu)), result


def measure(name: str, graph: HeteroData, rounds: int) -> dict[str, Any]:
    """One row; medians of a round, whose trips add up, without the first; `select_max_ms` is the slowest single request."""
    tasks = graph["task"].env_index.numel()
    build, policy = timed(lambda: policy_of(name, None, graph, batch_size=BATCH, embedding=prompt_vectors(tasks)))
    for groups in history(graph, KNOWN_ROUNDS):
        policy.observe(groups)
    generator = torch.Generator().manual_seed(0)
    rounds_of = [_round(policy, step, generator) for step in range(KNOWN_ROUNDS, KNOWN_ROUNDS + rounds + 1)][1:]
    row: dict[str, Any] = {"policy": name, "tasks": tasks, "threads": torch.get_num_threads(), "build_s": build.wall / 1e3}
    for at, stage in enumerate(("select", "observe")):
        row[f"{stage}_ms"] = statistics.median(sum(cost.wall for cost in costs[at]) for costs in rounds_of)
        row[f"{stage}_cpu_ms"] = statistics.median(sum(cost.cpu for cost in costs[at]) for costs in rounds_of)
    row["select_max_ms"] = max(cost.wall for selects, _ in rounds_of for cost in selects)
    trips = statistics.median(len(observes) for _, observes in rounds_of)
    return row | {"trips": trips, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _round(policy: Any, step: int, generator: torch.Generator) -> tuple[list[Cost], list[Cost]]:
    """What the selects and the observes of a step took, trip by trip."""
    selects: list[Cost] = []
    observes: list[Cost] = []
    while True:
        cost, selection = timed(policy.select, step, None, str(len(selects)))
        selects.append(cost)
        if selection.picks:
            observes.append(timed(policy.observe, rolled_out(selection, generator))[0])
        if not selection.picks or not selection.more:
            return selects, observes
