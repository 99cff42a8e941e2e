"""One run of a comparison in its folder: step by step until its budget is spent, resumable.

Knows: the order of a step, what a run writes, when it ends.
Does not know: policies, engines, other runs.

The folder: `run.json` and `resolved.toml` (what it is), `steps.jsonl` (a line a step), `curve.jsonl` (a line an evaluation), checkpoints,
`done.json` at last. A run that was stopped goes on from its last checkpoint, with the same bits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from envsched_gnn.config import Config
from envsched_gnn.eval.compare.arena import Arena
from envsched_gnn.eval.headline.oracle import Oracle
from envsched_gnn.eval.resumable import Line, Resumable, Stateful
from envsched_gnn.files import without_nan, write_atomic
from envsched_gnn.history import ZERO_VARIANCE, group_statistics
from envsched_gnn.pool.pool import Pool
from envsched_gnn.schedule.policies import AnyPolicy, Round, play_round
from envsched_gnn.stopwatch import Stopwatch
from envsched_gnn.train.loop import append

STEPS, CURVE, DONE = "steps.jsonl", "curve.jsonl", "done.json"


@dataclass(kw_only=True)
class Run:
    """The parts of a run."""

    folder: Path
    config: Config
    arena: Arena
    policy: AnyPolicy
    charged: int = 0
    """Rollouts so far."""

    @property
    def kept(self) -> Resumable:
        """What lies in the folder."""
        parts: dict[str, Stateful] = {"policy": self.policy, "arena": self.arena}
        return Resumable(folder=self.folder, pool=self.arena.pool, parts=parts, files=(STEPS, CURVE))

    @property
    def budget(self) -> int:
        """Rollouts that the run may spend."""
        return self.config.run.steps * self.config.select.batch_size * self.config.rollout.num_rollouts

    def play(self) -> None:
        """All steps that are missing."""
        step, self.charged = self.kept.restore()
        while not self._over(step):
            if step and step % self.config.train.checkpoint_every == 0:
                self.kept.save(step, self.charged)
            self._evaluate(step)
            self._step(step)
            step += 1
        self._evaluate(step, last=True)
        write_atomic(self.folder / DONE, json.dumps({"steps": step, "rollouts": self.charged}).encode())

    def _over(self, step: int) -> bool:
        return step >= self.config.run.steps or self.charged >= self.budget

    def _step(self, step: int) -> None:
        watch, looks = Stopwatch(), 0
        if isinstance(self.policy, Oracle):
            with watch("look"):
                looks = self.arena.tell(self.policy, step)
        played = play_round(self.policy, self.arena, step, watch)
        with watch("learn"):
            self.arena.learn(played.train)
        self.charged += played.charged
        line = {"step": step, **figures(self.arena.pool, played), "looks": looks}
        append(self.folder / STEPS, line | {f"seconds_{stage}": round(value, 4) for stage, value in watch.seconds.items()})

    def _evaluate(self, step: int, *, last: bool = False) -> None:
        success = self.arena.success(step, last=last)
        if success is not None:
            append(self.folder / CURVE, without_nan({"step": step, "success": success}))


def figures(pool: Pool, played: Round) -> Line:
    """What a step spent and what it was worth; the sums of `eval/compare/__init__.py`."""
    rows = [pool.index_of[group.key] for group in played.train]
    low, high = ([pool.reward_ranges[row][end] for row in rows] for end in (0, 1))
    statistics = group_statistics([group.rewards for group in played.train], low, high)
    variance = [value if seen else 0.0 for value, seen in zip(statistics.variance.tolist(), statistics.observed.tolist(), strict=True)]
    rollouts = [len(group.rollouts) for group in played.train]
    tokens = [sum(rollout.tokens for rollout in group.rollouts) for group in played.train]
    informative = [value > ZERO_VARIANCE for value in variance]
    return {
        "rollouts": played.charged,
        "tokens": sum(rollout.tokens for group in played.groups for rollout in group.rollouts),
        "groups": len(played.train),
        "informative_groups": sum(informative),
        "trained_rollouts": sum(rollouts),
        "informative_rollouts": sum(r for r, good in zip(rollouts, informative, strict=True) if good),
        "informative_tokens": sum(t for t, good in zip(tokens, informative, strict=True) if good),
        "variance_rollouts": sum(r * v for r, v in zip(rollouts, variance, strict=True)),
        "environments": len({group.env_id for group in played.train}),
    }
