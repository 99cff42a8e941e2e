"""How much the first batch matters: independent short runs in one simulated world, each from a random first batch.

    python -m envsched_gnn.eval.compare.cold [--policy envsched] [--runs 100] [--rounds 7] [-s key=value] [-o FILE.json]

Knows: that a run's seed decides its first batch and its rewards, and that the world is the same for all.
Does not know: schedulers, learners. Nothing has been observed before the first batch, so every task is as likely to be in it as any other.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from envsched_gnn.config import Config, load_config
from envsched_gnn.errors import EnvSchedError
from envsched_gnn.eval.compare.arena import SimulatedArena
from envsched_gnn.eval.compare.play import figures
from envsched_gnn.eval.compare.policies import policy_in
from envsched_gnn.eval.compare.results import write_result
from envsched_gnn.eval.compare.variants import Entry, entry_of
from envsched_gnn.eval.headline.oracle import Oracle
from envsched_gnn.schedule.policies import play_round
from envsched_gnn.train.folder import commit

RUNS, ROUNDS = 100, 7
"""The paper's numbers."""
SPREAD = {"low": 2.5, "middle": 50.0, "high": 97.5}
"""Percentiles over the runs."""


def cold_starts(entry: Entry, config: Config, runs: int = RUNS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Spread over independent runs of the share of informative rollouts and the environments of each round, and of their means.

    Run k has `run.seed` + k; the world is that of `simulate.seed`.
    """
    arena = SimulatedArena(config)
    found = np.array([_run(arena, entry, replace(config, run=replace(config.run, seed=config.run.seed + k)), rounds) for k in range(runs)])
    informative, environments = found[:, :, 0], found[:, :, 1]
    return {
        "policy": entry.name,
        "runs": runs,
        "rounds": rounds,
        "environments": config.simulate.environments,
        "tasks": config.simulate.environments * config.simulate.tasks,
        "rows": [
            {"round": at, "informative": spread(informative[:, at]), "environments": spread(environments[:, at])} for at in range(rounds)
        ],
        "all": {"informative": spread(informative.mean(1)), "environments": spread(environments.mean(1))},
    }


def _run(arena: SimulatedArena, entry: Entry, config: Config, rounds: int) -> list[tuple[float, float]]:
    """(share of charged rollouts in informative groups, environments) of each round."""
    arena.restart(config.run.seed)
    policy = policy_in(arena, entry, config)
    rows = []
    for step in range(rounds):
        if isinstance(policy, Oracle):
            arena.tell(policy, step)
        played = play_round(policy, arena, step)
        arena.learn(played.train)
        line = figures(arena.pool, played)
        rows.append((line["informative_rollouts"] / line["rollouts"], float(line["environments"])))
    return rows


def spread(values: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation, extremes and percentiles over runs."""
    ends = {name: float(np.percentile(values, at)) for name, at in SPREAD.items()}
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std()),
        "least": float(values.min()),
        "most": float(values.max()),
        **ends,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The result for a terminal."""
    told = [f"{result['policy']}: {result['runs']} runs of {result['rounds']} rounds from random first batches; mean [2.5 %, 97.5 %]"]
    for row in [*result["rows"], {"round": "all", **result["all"]}]:
        a, b = row["informative"], row["environments"]
        told.append(
            f"round {row['round']}: informative {a['mean']:.3f} [{a['low']:.3f}, {a['high']:.3f}], "
            f"environments {b['mean']:.1f} [{b['low']:.1f}, {b['high']:.1f}]"
        )
    return told


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m envsched_gnn.eval.compare.cold", description="Short runs from random first batches.")
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("--policy", default="envsched")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        entry = entry_of(arguments.policy)
        config = load_config(arguments.config, [*arguments.set, *(entry.variant.settings if entry.variant else ())])
        result = cold_starts(entry, config, max(arguments.runs, 1), max(arguments.rounds, 1))
    except EnvSchedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    command = shlex.join(["python", "-m", "envsched_gnn.eval.compare.cold", *sys.argv[1:]])
    result |= {"command": command, "commit": commit(), "date": datetime.date.today().isoformat()}
    if arguments.out:
        write_result(result, arguments.out)
    print(json.dumps(result, indent=2) if arguments.json else "\n".join(lines(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
