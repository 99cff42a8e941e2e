"""Tasks set aside to teach from: a policy may see their gold trajectories before RL, so they are neither trained on by RL nor evaluated on.

Knows: which tasks of a pool these are, how they are marked.
Does not know: who is taught, and how.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Task


def with_taught(pool: Pool, share: float) -> Pool:
    """The same pool with `share` of each environment's tasks marked `info["taught"]` and `info["held_out"]`.

    Which ones follows from their identities alone; held-out environments give their share too, so that their tools are known.
    """
    if not share:
        return pool
    rank: dict[str, int] = {}
    taught: set[str] = set()
    size = Counter(task.env_id for task in pool.tasks)
    for task in sorted(pool.tasks, key=lambda task: hashlib.sha256(f"taught {task.key}".encode("utf-8", "surrogatepass")).digest()):
        rank[task.env_id] = rank.get(task.env_id, 0) + 1
        if rank[task.env_id] <= round(share * size[task.env_id]):
            taught.add(task.key)
    return replace(pool, tasks=tuple(_marked(task) if task.key in taught else task for task in pool.tasks))


def _marked(task: Task) -> Task:
    return replace(task, info={**task.info, "taught": True, "held_out": True})
