"""The arena of the scripted policy: real environments, rewards of their own verifiers.

Knows: how an engine that learns as it plays is made to play first and learn later, how success and chances are estimated.
Does not know: schedulers, files, the order of a run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch_geometric.data import HeteroData

from envsched_gnn.config import Config
from envsched_gnn.eval.headline.oracle import REFRESH, SAMPLES, Oracle
from envsched_gnn.eval.headline.runs import graph_of
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Pick, RolloutGroup, Selection
from envsched_gnn.train.engine import ScriptedEngine
from envsched_gnn.train.evaluation import held_out, summary
from envsched_gnn.train.run import scripted_engine


class ScriptedArena:
    """Real environments and the scripted policy. Success is the mean reward on held-out tasks, on tasks trained on where there are none."""

    def __init__(self, config: Config, pool: Pool, engine: ScriptedEngine) -> None:
        self._config, self.pool, self._engine = config, pool, engine
        self.graph = graph_in(pool, config)
        self._trained = [row for row, task in enumerate(pool.tasks) if not task.held_out]
        count = config.evaluate.tasks
        chosen = held_out(pool, count)
        self._evaluated = [*chosen.tasks, *chosen.environments] or random.Random("compare").sample(
            self._trained, min(count, len(self._trained))
        )

    def rollout(self, selection: Selection) -> Iterator[RolloutGroup]:
        """Play K rollouts a task and keep as many as are asked for; what the policy learned meanwhile is taken back."""
        before = self._engine.state_dict()
        groups = list(self._engine.rollout(selection))
        self._engine.load_state_dict(before)
        return (replace(group, rollouts=group.rollouts[: selection.num_rollouts]) for group in groups)

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """Practise."""
        self._engine.policy.learn(groups)

    def success(self, step: int, *, last: bool = False) -> float | None:
        """Every `evaluate.every` steps and at the end."""
        every, samples = self._config.evaluate.every, self._config.evaluate.samples
        if not self._evaluated or not (last or (every and step % every == 0)):
            return None
        return float(summary(self.pool, self._evaluated, self.sample(self._evaluated, samples, f"evaluation {step}"))["reward"])

    def oracle(self, seed: int) -> Oracle:
        """One that estimates chances from rollouts."""
        return Oracle(self.pool, self.graph, seed=seed, select=self._config.select, num_rollouts=self._config.rollout.num_rollouts)

    def tell(self, oracle: Oracle, step: int) -> int:
        """Play SAMPLES rollouts of every training task at each REFRESH-th step."""
        oracle.look(step, lambda rows, samples: self.sample(rows, samples, f"look {step}"))
        return len(self._trained) * SAMPLES if step % REFRESH == 0 else 0

    def sample(self, rows: Sequence[int], samples: int, occasion: str) -> list[list[float | None]]:
        """Rewards [rows][samples] of the policy as it is; nothing is learned."""
        rewards: list[list[float | None]] = [[] for _ in rows]
        for part in range(math.ceil(samples / self._config.rollout.num_rollouts)):
            picks = tuple(self._pick(rank, row, f"{occasion}.{part}") for rank, row in enumerate(rows, start=1))
            place = {pick.group_id: rank for rank, pick in enumerate(picks)}
            for group in self.rollout(Selection(step=0, picks=picks, use="reference")):
                rewards[place[group.group_id]] += group.rewards
        return [some[:samples] for some in rewards]

    def _pick(self, rank: int, row: int, occasion: str) -> Pick:
        task = self.pool.tasks[row]
        return Pick(
            rank=rank,
            env_id=task.env_id,
            task_id=task.task_id,
            task_index=row,
            group_id=f"{occasion}:{task.key}",
            phase="uniform",
            score=0.0,
            predicted_variance=0.0,
            p_informative=0.0,
        )

    def state_dict(self) -> dict[str, Any]:
        """What the policy has practised."""
        return self._engine.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self._engine.load_state_dict(state)


@contextmanager
def scripted_arena(config: Config) -> Iterator[ScriptedArena]:
    """Its worker processes end with the block."""
    pool = load_pool(config.pool)
    with scripted_engine(config, pool) as engine:
        yield ScriptedArena(config, pool, engine)


def graph_in(pool: Pool, config: Config) -> HeteroData:
    """The pool's graph, built once for all runs on it; the numbers of neighbours are those of `config`."""
    graph = graph_of(pool)
    graph.within_k, graph.cross_k = config.graph.within_neighbors, config.graph.cross_neighbors
    return graph
