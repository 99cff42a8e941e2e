"""The arenas of real environments: a policy that is scripted, or a pocket model that GRPO trains; rewards of their own verifiers.

Knows: what is evaluated and when, what an oracle looks at.
Does not know: schedulers, files, the order of a run, how an engine plays or learns.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch_geometric.data import HeteroData

from envsched_gnn.config import Config
from envsched_gnn.eval.compare.runs import Where
from envsched_gnn.eval.headline.oracle import Looking, Oracle, solvable
from envsched_gnn.graph.configured import kept_graph
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import RolloutGroup, Selection
from envsched_gnn.train.evaluation import held_out, summary
from envsched_gnn.train.loop import Engine
from envsched_gnn.train.run import scripted_engine


class Evaluated(Engine, Protocol):
    """An engine that can also be asked how well it does."""

    def evaluate(self, rows: Sequence[int], samples: int) -> list[list[float | None]]:
        """Rewards [rows][samples]; nothing is learned."""
        ...


class EngineArena:
    """An engine in real environments. Success is the mean reward on held-out tasks, on tasks trained on where there are none."""

    def __init__(self, config: Config, pool: Pool, engine: Evaluated) -> None:
        self._config, self.pool, self.engine = config, pool, engine
        self.graph = graph_in(pool, config)
        chosen, count = held_out(pool, config.evaluate.tasks), config.evaluate.tasks
        trained = [row for row, task in enumerate(pool.tasks) if not task.held_out]
        self._evaluated = [*chosen.tasks, *chosen.environments] or random.Random("compare").sample(trained, min(count, len(trained)))

    def rollout(self, selection: Selection) -> Iterator[RolloutGroup]:
        """Play."""
        return self.engine.play(selection)

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """Practise, or one update."""
        self.engine.learn(groups)

    def success(self, step: int, *, last: bool = False) -> float | None:
        """Every `evaluate.every` steps and at the end."""
        every = self._config.evaluate.every
        if not self._evaluated or not (last or (every and step % every == 0)):
            return None
        return float(summary(self.pool, self._evaluated, self.engine.evaluate(self._evaluated, self._config.evaluate.samples))["reward"])

    def oracle(self, seed: int) -> Oracle:
        """One that estimates chances from rollouts."""
        return Oracle(self.pool, self.graph, seed=seed, select=self._config.select, num_rollouts=self._config.rollout.num_rollouts)

    def tell(self, oracle: Looking, step: int) -> int:
        """Roll out the training tasks that can be solved, where a look is due."""
        looks = 0

        def play(rows: Sequence[int], samples: int) -> list[list[float | None]]:
            nonlocal looks
            possible = [solvable(self.pool, row) for row in rows]
            looks += sum(possible) * samples
            played = iter(self.engine.evaluate([row for row, can in zip(rows, possible, strict=True) if can], samples))
            return [next(played) if can else [0.0] * samples for can in possible]

        oracle.look(step, play)
        return looks

    def state_dict(self) -> dict[str, Any]:
        """What the policy has learned."""
        return self.engine.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.engine.load_state_dict(state)


@contextmanager
def engine_arena(where: Where, config: Config) -> Iterator[EngineArena]:
    """The arena of `run` or `train`; its worker processes end with the block."""
    pool = load_pool(config.pool)
    if where == "run":
        with scripted_engine(config, pool) as scripted:
            yield EngineArena(config, pool, scripted)
        return
    from envsched_gnn.train.pocket.engine import PocketEngine

    with PocketEngine(pool, config.model, config.train, config.rollout, config.run.seed) as pocket:
        yield EngineArena(config, pool, pocket)


def graph_in(pool: Pool, config: Config) -> HeteroData:
    """The pool's graph, built once for all runs on it; the numbers of neighbours are those of `config`."""
    return kept_graph(pool, config)
