"""How well the chance of variance of unseen tasks can be told from the texts of a pool: a yardstick for predictors.

`python -m envsched_gnn.eval.headline.unseen ROOT [-o FILE]`

Knows: what the oracle last estimated in each finished run of the main pool, a random forest, what a scheduler forecasts from given groups.
Does not know: how either works. Nothing is scheduled.

A forest learns from one group each of GROUPS tasks of the pool, told their environment as well (`in_pool`), or from the estimates of
all tasks of the other pools (`transfer`), and ranks the tasks that it has not learned from. Beside it preset `default` and the
learned network, told the same groups as `in_pool`. A forest is no ceiling, and it does not read initial states: `told_possible` is the
first one, told of every task whether it can be solved, which is all that could be read there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from torch_geometric.data import HeteroData

from envsched_gnn.config import PredictConfig
from envsched_gnn.errors import EnvSchedError, HistoryError, message
from envsched_gnn.eval.headline.oracle import solvable
from envsched_gnn.eval.headline.run_files import Run, collect
from envsched_gnn.eval.headline.runs import config_of
from envsched_gnn.features.abstract import TaskReading
from envsched_gnn.features.build import read_pool
from envsched_gnn.features.embed import record_text
from envsched_gnn.files import write_atomic
from envsched_gnn.graph.configured import kept_graph
from envsched_gnn.models.make import predictor_of
from envsched_gnn.pool.load import load_pool
from envsched_gnn.records import Task
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.train.checkpoint import load_newest
from envsched_gnn.train.folder import commit

GROUPS = 1000
"""Tasks of which a group is seen: half of what a run of the experiment picks."""
TOP = 20
"""The twentieth part that is ranked highest is what would be picked."""
BATCH = 16
"""Groups a step, where a scheduler is shown them."""
PREDICTORS = {"default": PredictConfig(), "learned": PredictConfig(predictor="learned")}
"""Asked beside the forests."""
DIMENSION = 64
"""Of the reduced texts."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The training tasks of one pool."""

    seed: int
    texts: list[str]
    """Instruction, verifier and abstract record of each."""
    env_index: np.ndarray
    """[tasks]."""
    possible: np.ndarray
    """Whether a reward but 0 can come [tasks]."""
    chance: np.ndarray
    """Of variance, as the oracle last estimated it [tasks]."""
    rows: np.ndarray
    """Of the tasks in the graph [tasks]."""
    graph: HeteroData | None
    """Of the pool; None: no scheduler is asked."""


def read_known(run: Run) -> Known:
    """The pool of a run of the oracle, and its estimates.

    Raises:
        HistoryError: no checkpoint, or it is not of an oracle, or of another pool than is there now.
    """
    folder, seed = run.folder, run.seed
    state, _ = load_newest(folder / "checkpoint")
    scores = (state or {}).get("scheduler", {}).get("score")
    if state is None or scores is None:
        raise HistoryError(
            message(str(folder), "no checkpoint of an oracle", "a run of the arm oracle", "Make it with eval.headline.runs.")
        )
    config = config_of("main", seed)
    pool = load_pool(config.pool)
    if state["pool_hash"] != pool.content_hash:
        raise HistoryError(
            message(str(folder), "estimates of another pool", f"those of configs/headline/main.toml, seed {seed}", "Make it anew.")
        )
    readings = read_pool(pool, lambda stage, share: None)
    rows = [row for row, task in enumerate(pool.tasks) if not task.held_out]
    return Known(
        seed=seed,
        texts=[text_of(pool.tasks[row], readings[row]) for row in rows],
        env_index=pool.env_index[rows],
        possible=np.array([solvable(pool, row) for row in rows]),
        chance=np.array(scores)[rows],
        rows=np.array(rows),
        graph=kept_graph(pool, config),
    )


def text_of(task: Task, reading: TaskReading) -> str:
    """Instruction, checks and abstract record."""
    checks = " ".join(f"{check.description} {check.code}" for check in task.verifier.checks)
    return " ".join((task.prompt, marked("v", checks), marked("r", record_text(reading.record))))


def marked(mark: str, text: str) -> str:
    """The words of a text, told apart from those of others."""
    return " ".join(f"{mark}_{word}" for word in re.findall(r"\w+", text))


def yardsticks(pools: Sequence[Known]) -> Iterator[dict[str, Any]]:
    """A row a pool: Spearman with the true chance, and the mean chance of the top twentieth, of all."""
    texts = [text for pool in pools for text in pool.texts]
    words = TfidfVectorizer(sublinear_tf=True, min_df=5, token_pattern=r"\S+").fit_transform(texts)
    vectors = TruncatedSVD(min(DIMENSION, words.shape[1] - 1), random_state=0).fit_transform(words)
    parts = np.split(vectors, np.cumsum([len(pool.texts) for pool in pools])[:-1])
    for place, pool in enumerate(pools):
        row = {"seed": pool.seed, "tasks": len(pool.texts), "chance": float(pool.chance.mean())}
        row |= in_pool(pool, parts[place])
        others = [other for other in range(len(pools)) if other != place]
        if others:
            forest = grown(np.concatenate([parts[o] for o in others]), np.concatenate([pools[o].chance for o in others]))
            row |= named("transfer", judged(forest.predict(parts[place]), pool.chance))
        yield row


def in_pool(pool: Known, vectors: np.ndarray) -> dict[str, float]:
    """Learned from one group each of some tasks, judged on the others."""
    draw = np.random.default_rng(pool.seed)
    order = draw.permutation(len(vectors))
    learned, left = order[:GROUPS], order[GROUPS:]
    informative = draw.random(len(learned)) < pool.chance[learned]
    x = np.hstack([vectors, np.eye(pool.env_index.max() + 1)[pool.env_index]])
    found: dict[str, float] = {}
    for name, known in (("in_pool", x), ("told_possible", np.column_stack([x, pool.possible]))):
        forest = grown(known[learned], informative.astype(float))
        found |= named(name, judged(forest.predict(known[left]), pool.chance[left]))
    if pool.graph is not None:
        for name, predict in PREDICTORS.items():
            said = forecast(pool, pool.graph, predict, learned, informative)
            found |= named(name, judged(said[left], pool.chance[left]))
    return found


def forecast(pool: Known, graph: HeteroData, predict: PredictConfig, learned: np.ndarray, informative: np.ndarray) -> np.ndarray:
    """P(informative) of every task as a scheduler has it after the same groups, a batch of them a step [tasks]."""
    scheduler = EnvSched(None, graph, batch_size=BATCH, seed=pool.seed, predict=predict, predictor=predictor_of)
    for step, start in enumerate(range(0, len(learned), BATCH)):
        at = slice(start, start + BATCH)
        selection = scheduler.shadow(step, [scheduler.book.keys[row] for row in pool.rows[learned[at]]])
        scheduler.observe(selection, [[0.0, float(z)] for z in informative[at]])
    return scheduler.predicted(step + 1)[1].p_informative.numpy()[pool.rows]


def named(who: str, figures: dict[str, float]) -> dict[str, float]:
    """The figures, with the name of whose they are."""
    return {f"{who}_{name}": value for name, value in figures.items()}


def grown(x: np.ndarray, y: np.ndarray) -> RandomForestRegressor:
    """A forest of 150 trees."""
    return RandomForestRegressor(150, min_samples_leaf=4, max_features=0.3, random_state=0, n_jobs=1).fit(x, y)


def judged(said: np.ndarray, chance: np.ndarray) -> dict[str, float]:
    """Spearman, and the mean chance of the tasks that are ranked highest."""
    top = np.argsort(-said, kind="stable")[: max(len(said) // TOP, 1)]
    return {"spearman": float(spearmanr(said, chance)[0]), "top": float(chance[top].mean())}


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m envsched_gnn.eval.headline.unseen", description="A yardstick for predictors.")
    parser.add_argument("root", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("eval/results/unseen.json"))
    arguments = parser.parse_args()
    try:
        runs = [run for run in collect(arguments.root).runs if (run.pool, run.arm) == ("main", "oracle")]
        if not runs:
            raise HistoryError(f"{arguments.root}: no finished run main/oracle/SEED. Make some with eval.headline.runs --arm oracle.")
        rows: list[dict[str, Any]] = []
        for row in yardsticks([read_known(run) for run in runs]):
            print(f"seed {row['seed']}: {len(rows) + 1} of {len(runs)} pools", file=sys.stderr)
            rows.append(row)
    except EnvSchedError as error:
        raise SystemExit(f"error: {error}") from None
    about = {"commit": commit(), "command": "python -m envsched_gnn.eval.headline.unseen ROOT"}
    write_atomic(arguments.out, json.dumps(about | {"rows": rows}, indent=1).encode())
    for name in rows[0]:
        print(f"{name:>18}", *(f"{row[name]:8.3f}" for row in rows), f"   mean {fmean(row[name] for row in rows):.3f}")
    print(arguments.out)


if __name__ == "__main__":
    main()
