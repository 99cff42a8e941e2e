"""The counterexample: a pool in which environment and structure say nothing about a task, and everything else is as it was.

Knows: which task every task shows itself as, and how that is drawn.
Does not know: features, the graph (which asks `shown_rows`), execution.

Construction (ours). A permutation `s` of the tasks is drawn; task i is kept as it is, with `info["shown_as"]` = the identity of s(i).
- Executed is task i: its prompt, state, tools, checks and environment. The same plan earns the same reward, every policy finds it as hard
  as before, and a policy that learns in one environment still gets better at its other tasks.
- A scheduler sees task s(i): the graph gives row i the environment (quotas, coverage, within relation) and the features of row s(i).

What is preserved, exactly: the distribution of every task's rewards under any policy; how many tasks an environment has, and how many of
them are trained on, since s takes trained tasks to trained tasks and held-out ones to held-out ones; every similarity, as the graph is the
old one with its nodes renamed. What is destroyed: any relation between what a scheduler sees of a task and how its rewards turn out, but by
chance: s is drawn uniformly among all such permutations, so an old graph and this one are a sample of a permutation test's null.

A scheduler that reads task texts instead of the graph has to read those of `shown_rows`; prompts of the rows themselves are for the policy.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envsched_gnn.errors import PoolError, message
from envsched_gnn.pool.pool import Pool

if TYPE_CHECKING:
    import numpy as np

SHOWN_AS = "shown_as"
"""In `Task.info`: identity of the task that this one shows itself as; where it is missing, itself."""


def shuffle(pool: Pool, seed: int = 0) -> Pool:
    """The pool with every task shown as a random other one, or by chance as itself; `seed` draws which. Shuffled anew if it is shuffled.

    Raises:
        PoolError: fewer than two tasks are trained on, so that there is nothing to exchange.
    """
    trained = [row for row, task in enumerate(pool.tasks) if not task.held_out]
    held_out = [row for row, task in enumerate(pool.tasks) if task.held_out]
    if len(trained) < 2:
        cure = "Give a pool with more tasks, or hold fewer out."
        raise PoolError(message(pool.source, f"{len(trained)} tasks to train on", "at least two, to exchange what they show", cure))
    rng = random.Random(f"shuffle {seed}")
    shown: dict[int, int] = {}
    for rows in (trained, held_out):
        shown.update(zip(rows, rng.sample(rows, len(rows)), strict=True))
    tasks = tuple(replace(task, info={**task.info, SHOWN_AS: pool.keys[shown[row]]}) for row, task in enumerate(pool.tasks))
    return Pool(environments=pool.environments, tasks=tasks, source=f"{pool.source}, shuffled")


def shown_rows(pool: Pool) -> np.ndarray:
    """Row of the task that each task shows itself as, [tasks] int64, a permutation; the tasks' own rows in a pool that is not shuffled.

    Raises:
        PoolError: a task shows itself as one that is not in the pool, or two as the same.
    """
    import numpy as np

    shown = [_row(pool, task.info.get(SHOWN_AS, key), key) for key, task in zip(pool.keys, pool.tasks, strict=True)]
    first: dict[int, int] = {}
    for row, other in enumerate(shown):
        if first.setdefault(other, row) != row:
            pair = f"{pool.keys[first[other]]!r} and {pool.keys[row]!r} are both shown as {pool.keys[other]!r}"
            raise PoolError(message(pool.source, pair, "each task shown once", CURE))
    return np.array(shown, dtype=np.int64)


CURE = "Shuffle the pool again as it is now: envsched pool shuffle POOL OUT."


def _row(pool: Pool, shown: Any, key: str) -> int:
    if not isinstance(shown, str) or shown not in pool.index_of:
        raise PoolError(message(f"task {key!r}, info.{SHOWN_AS}", f"{shown!r:.80}", "the ENV_ID/TASK_ID of a task of this pool", CURE))
    return pool.index_of[shown]
