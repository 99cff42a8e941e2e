"""Pool and graph of a simulated world, in the same form as those of a real one.

Knows: what similarities and prompts tell of the skills that a task shows, and how noisily.
Does not know: how tasks behave; nothing here depends on `World.behaves_as`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import HeteroData

from envsched_gnn.config import GraphConfig
from envsched_gnn.errors import require
from envsched_gnn.eval.simulate import SOURCE
from envsched_gnn.eval.simulate.world import NEEDED, World, stream
from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task

BASE, SHARED = 0.15, 0.5
"""Similarity of two tasks of an environment without a common skill, and what common skills add at most (ours)."""
NO_TEXT = "its tasks hold no text to embed; their similarities are drawn"
VARIANTS = 4
"""Abstract records of a pattern, which differ by noise alone (ours)."""


def pool_of(world: World) -> Pool:
    """Environments without tools, and tasks whose prompts name the skills that they show; nothing in it can be executed."""
    config = world.config
    env_ids = [f"sim_{e:05d}" for e in range(config.environments)]
    environments = tuple(Environment(env_id=env_id, env_type="taskset", revision=f"seed {config.seed}") for env_id in env_ids)
    tasks = tuple(
        Task(
            env_id=env_ids[row // config.tasks],
            task_id=f"task_{row % config.tasks:05d}",
            prompt=prompt,
            info={"held_out": True} if held_out else {},
        )
        for row, (prompt, held_out) in enumerate(zip(_prompts(world), world.held_out.tolist(), strict=True))
    )
    return Pool(environments=environments, tasks=tasks, source=SOURCE)


def _prompts(world: World) -> list[str]:
    """The words of a task's skills and operations, each replaced by a random one of its kind with the chance similarity_noise."""
    config, rng = world.config, stream(world.config.seed, "prompts")
    words = []
    for numbers, kinds in (
        (world.skills, config.environments * config.environment_skills),
        (world.operations[world.pattern], config.operations),
    ):
        noise = rng.random(numbers.shape) < config.similarity_noise
        words.append(np.where(noise, rng.integers(kinds, size=numbers.shape), numbers).tolist())
    return [
        " ".join([*(f"skill{s}" for s in skills), *(f"operation{o}" for o in operations)])
        for skills, operations in zip(*words, strict=True)
    ]


def graph_of(world: World, pool: Pool, config: GraphConfig | None = None) -> HeteroData:
    """The graph: similarities from common skills and operations, with noise, in place of features; see `assemble_graph` for its stores."""
    config = config or GraphConfig()
    require(config.similarity == "tfidf", "graph.similarity", config.similarity, f"'tfidf' in a simulation: {NO_TEXT}")
    require(not config.embedding, "graph.embedding", config.embedding, f"nothing in a simulation: {NO_TEXT}")
    variant = stream(world.config.seed, "variants").integers(VARIANTS, size=len(world.pattern))
    records, record_index = np.unique(world.pattern * VARIANTS + variant, return_inverse=True)
    return assemble_graph(
        env_ids=[environment.env_id for environment in pool.environments],
        env_index=torch.from_numpy(pool.env_index.copy()),
        task_ids=[task.task_id for task in pool.tasks],
        within_blocks=within_blocks(world),
        cross_vectors=torch.from_numpy(cross_vectors(world)[records]),
        record_index=torch.from_numpy(record_index),
        held_out=torch.from_numpy(world.held_out.copy()),
        pool_hash=pool.content_hash,
        feature_config={"source": SOURCE},
        within_k=config.within_neighbors,
        cross_k=config.cross_neighbors,
    )


def within_blocks(world: World) -> list[torch.Tensor]:
    """s_ij = BASE + SHARED * (common skills) / 2 + noise, of the tasks of each environment; float32 [tasks, tasks]."""
    config, rng = world.config, stream(world.config.seed, "within")
    blocks = []
    for skills in world.skills.reshape(config.environments, config.tasks, NEEDED):
        common = (skills[:, None, :, None] == skills[None, :, None, :]).sum((2, 3))
        noise = np.triu(rng.standard_normal(common.shape, dtype=np.float32), 1)
        blocks.append(torch.from_numpy((BASE + SHARED * common / NEEDED + config.similarity_noise * (noise + noise.T)).astype(np.float32)))
    return blocks


def cross_vectors(world: World) -> np.ndarray:
    """Unit vectors of the operations of each pattern plus similarity_noise |N(0, 1)|, [patterns * VARIANTS, operations] float64."""
    config, rng = world.config, stream(world.config.seed, "cross")
    vectors = np.zeros((config.patterns, config.operations))
    vectors[np.arange(config.patterns)[:, None], world.operations] = 1.0
    vectors = vectors.repeat(VARIANTS, axis=0)
    vectors += config.similarity_noise * np.abs(rng.standard_normal(vectors.shape))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
