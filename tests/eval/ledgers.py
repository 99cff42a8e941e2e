"""Ledgers of small graphs, for the tests of replay and diagnose: rewards come from a function of task and step, nothing is executed."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from envsched_gnn.config import Config
from envsched_gnn.eval.replay.recorded import Recorded
from envsched_gnn.history import GroupStatistics
from envsched_gnn.ledger import Ledger
from envsched_gnn.records import Rollout, RolloutGroup, Selection

Rewards = Callable[[str, int], Sequence[float | None]]
"""(task key, step) -> rewards."""


def write_ledger(path: Path, scheduler, steps: int, rewards: Rewards, run: str = "run") -> list[Selection]:
    """Select, reward, observe and write, step by step; the selections."""
    selections = []
    with Ledger(path, run) as ledger:
        for step in range(steps):
            selection = scheduler.select(step)
            groups = [
                RolloutGroup(
                    group_id=pick.group_id,
                    env_id=pick.env_id,
                    task_id=pick.task_id,
                    step=step,
                    rollouts=tuple(Rollout(reward=reward) for reward in rewards(pick.key, step)),
                )
                for pick in selection.picks
            ]
            scheduler.observe(groups)
            ledger.write_selection(selection)
            for group in groups:
                ledger.write_group(group)
            selections.append(selection)
    return selections


def recorded_of(graph, tasks: Sequence[int], variance: Sequence[float], *, uniform: bool = True) -> Recorded:
    """A ledger in memory: one observed group a task in the order given, ten a step."""
    v = torch.as_tensor(variance, dtype=torch.float64)
    n = len(v)
    seen = torch.ones(n, dtype=torch.bool)
    statistics = GroupStatistics(
        variance=v, mean=torch.full((n,), 0.5).double(), dispersion=v * 4, observed=seen, num_valid=torch.full((n,), 8), rejected=()
    )
    return Recorded(
        name="made",
        path=Path("made.sqlite"),
        config=Config(),
        kind="real",
        policy="uniform" if uniform else "envsched",
        uniform=uniform,
        pool=None,
        graph=graph,
        selected=n,
        tasks=torch.as_tensor(tasks),
        steps=torch.arange(n) // 10,
        statistics=statistics,
    )
