"""Where policies meet: a pool, its graph, and a policy model that plays, learns when told to, and can be asked how well it does.

Knows: what a comparison needs of an engine; the arena of a simulation.
Does not know: schedulers, files, the order of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch_geometric.data import HeteroData

from envsched_gnn.config import Config
from envsched_gnn.eval.compare.runs import Where
from envsched_gnn.eval.headline.oracle import Oracle
from envsched_gnn.eval.simulate.engine import SimulatedEngine
from envsched_gnn.eval.simulate.policies import ExactOracle
from envsched_gnn.eval.simulate.pool import graph_of, pool_of
from envsched_gnn.eval.simulate.run import truth
from envsched_gnn.eval.simulate.world import make_world
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import RolloutGroup, Selection


class Arena(Protocol):
    """What a run plays in."""

    pool: Pool
    graph: HeteroData

    def rollout(self, selection: Selection) -> Iterator[RolloutGroup]:
        """Groups of `selection.num_rollouts` rollouts, or the arena's own number; nothing is learned."""
        ...

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """One step of the policy model."""
        ...

    def success(self, step: int, *, last: bool = False) -> float | None:
        """Mean success before `step`, or None where this step is not evaluated; the last one is."""
        ...

    def oracle(self, seed: int) -> Oracle:
        """The ceiling, which has seen nothing."""
        ...

    def tell(self, oracle: Oracle, step: int) -> int:
        """Let it look before `step`; the rollouts that this took."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ...


@contextmanager
def arena_of(where: Where, config: Config) -> Iterator[Arena]:
    """The arena that a comparison is made in; processes of its own end with the block."""
    match where:
        case "simulate":
            yield SimulatedArena(config)
        case "run" | "train":
            from envsched_gnn.eval.compare.engines import engine_arena

            with engine_arena(where, config) as arena:
                yield arena


class SimulatedArena:
    """A simulated learner: success and chances are known, not estimated."""

    def __init__(self, config: Config) -> None:
        self._config, self._world = config, make_world(config.simulate)
        self.pool = pool_of(self._world)
        self.graph = graph_of(self._world, self.pool, config.graph)
        self.restart(config.run.seed)

    def restart(self, seed: int) -> None:
        """A learner that has practised nothing, and other draws if the seed is another, in the same world."""
        self.engine = SimulatedEngine(self.pool, self._world, self._config.rollout.num_rollouts, seed=seed)

    def rollout(self, selection: Selection) -> Iterator[RolloutGroup]:
        """Draw rewards."""
        return self.engine.play(selection)

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """Practise."""
        self.engine.learn(groups)

    def success(self, step: int, *, last: bool = False) -> float | None:
        """Exact, at every step: of held-out tasks, of live training tasks where there are none."""
        known = truth(self._world, self.engine, step, self._config.rollout.num_rollouts)
        return known["success_live"] if known["success_held_out"] is None else known["success_held_out"]

    def oracle(self, seed: int) -> ExactOracle:
        """One that is told the chances."""
        return ExactOracle(self.pool, self.graph, seed=seed, select=self._config.select, num_rollouts=self._config.rollout.num_rollouts)

    def tell(self, oracle: Oracle, step: int) -> int:
        """No rollout is needed."""
        assert isinstance(oracle, ExactOracle)
        oracle.know(step, torch.from_numpy(self.engine.learner.informative_chance(self._config.rollout.num_rollouts)))
        return 0

    def state_dict(self) -> dict[str, Any]:
        """The learner's."""
        return self.engine.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.engine.load_state_dict(state)
