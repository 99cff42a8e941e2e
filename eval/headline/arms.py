"""The arms of the headline experiment: which scheduler each is.

Knows: what an arm changes, and that nothing else changes.
Does not know: pools, policies, training.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import torch
from torch_geometric.data import HeteroData

from envsched_gnn.config import Config
from envsched_gnn.eval.headline.oracle import Oracle
from envsched_gnn.eval.headline.told import Told
from envsched_gnn.models.make import predictor_of
from envsched_gnn.pool.pool import Pool
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.uniform import Uniform

Planned = Literal["uniform", "paper", "default", "oracle", "paper_rho0", "no_graph", "shuffled_graph", "dapo"]
ARMS: tuple[Planned, ...] = get_args(Planned)
"""In the order in which they are run."""
Further = Literal["learned", "told_seen", "told_unseen"]
FURTHER: tuple[Further, ...] = get_args(Further)
"""Run only when named: the network, and what true forecasts would be worth."""
Arm = Planned | Further


def scheduler_of(arm: Arm, config: Config, pool: Pool, graph: HeteroData) -> EnvSched | Uniform:
    """The arm's scheduler, which has seen nothing. The arm `dapo` draws uniformly and discards later."""
    seed, select = config.run.seed, config.select
    scheduled = partial(EnvSched, pool, seed=seed, predict=config.predict, predictor=predictor_of)
    told = partial(Told, pool, graph, seed=seed, select=select, predict=config.predict, num_rollouts=config.rollout.num_rollouts)
    match arm:
        case "uniform" | "dapo":
            return Uniform(pool, graph, batch_size=select.batch_size, seed=seed)
        case "oracle":
            return Oracle(pool, graph, seed=seed, select=select, num_rollouts=config.rollout.num_rollouts)
        case "paper":
            return scheduled(graph, preset="paper", select=select)
        case "paper_rho0":
            return scheduled(graph, preset="paper", select=replace(select, coverage_share=0.0))
        case "default":
            return scheduled(graph, preset="default", select=select)
        case "no_graph":
            return scheduled(without_relations(graph), preset="default", select=select)
        case "shuffled_graph":
            return scheduled(shuffled(graph, seed), preset="default", select=select)
        case "learned":
            return scheduled(graph, preset="default", select=select, predict=replace(config.predict, predictor="learned"))
        case "told_seen":
            return told(about="seen")
        case "told_unseen":
            return told(about="unseen")


def without_relations(graph: HeteroData) -> HeteroData:
    """The same tasks in the same environments, none similar to any other."""
    bare = copy.copy(graph)
    store = bare["task"]
    store.within_similarity = torch.zeros_like(store.within_similarity)
    store.cross_vectors = torch.zeros_like(store.cross_vectors)
    return bare


def shuffled(graph: HeteroData, seed: int) -> HeteroData:
    """The same tasks in the same environments, each with another one's similarities: within its environment, and across the pool."""
    mixed = copy.copy(graph)
    store = mixed["task"]
    generator = torch.Generator().manual_seed(seed)
    store.record_index = store.record_index[torch.randperm(len(store.record_index), generator=generator)]
    position = store.position.clone()
    for begin, end in zip(store.member_offset[:-1].tolist(), store.member_offset[1:].tolist(), strict=True):
        members = store.members[begin:end]
        position[members] = store.position[members[torch.randperm(end - begin, generator=generator)]]
    store.position = position
    return mixed
