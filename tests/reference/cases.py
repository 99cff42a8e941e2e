"""Random pools, and random rewards, for the comparison of the oracle with the batched code.

Knows: what makes pools awkward: ties, zero similarities, shared records, empty environments, odd reward ranges, masked rewards.
Does not know: either scheduler.
"""

import math
from dataclasses import dataclass

import torch

from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.graph.similarity import pair_similarity
from tests.reference.prediction import World


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a random pool and its history are made of."""

    seed: int
    environments: int = 3
    tasks: int = 20
    words: int = 5
    """Dimensions of the random vectors: few words mean many ties, many words many zeros."""
    binary: bool = False
    odd_ranges: bool = False
    held_out: float = 0.0
    preset: str = "default"
    v_floor: float = 1e-6
    batch_size: int = 6
    coverage_share: float = 0.5
    per_round: int | None = None
    rolling: int | None = None
    penalty: float = 0.5
    rounds: int = 6
    gaps: tuple[int, ...] = (1,)
    """Steps between two rounds, drawn from these."""
    late: float = 0.0
    """Share of groups that report some rounds later; a third of them never do, half of those are cancelled."""
    masked: float = 0.0
    """Share of rewards that are no reward."""
    constant: float | None = None
    """Share of groups without variance; the others get a reward of each edge. None: all kinds."""
    requests: int = 1
    """Requests a step, each for a share of the batch."""


def unit_vectors(rng, count, words):
    """Sparse unit vectors with few distinct values."""
    rows = []
    for _ in range(count):
        row = [float(rng.choice((0, 0, 1, 1, 2))) for _ in range(words)]
        norm = math.sqrt(math.fsum(x * x for x in row))
        rows.append([x / norm for x in row] if norm else row)
    return torch.tensor(rows, dtype=torch.float64)


def random_graph(case, rng):
    """A graph from random tensors; environments may be empty, records are shared."""
    env_index = torch.tensor([rng.randrange(case.environments) for _ in range(case.tasks)])
    records = rng.randint(1, case.tasks)
    ranges = [rng.choice([(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0), (-0.3, 0.7)]) if case.odd_ranges else (0.0, 1.0) for _ in range(case.tasks)]
    held_out = [rng.random() < case.held_out for _ in range(case.tasks)]
    held_out[rng.randrange(case.tasks)] = False
    return assemble_graph(
        env_ids=[f"env{e}" for e in range(case.environments)],
        env_index=env_index,
        task_ids=[f"t{i}" for i in range(case.tasks)],
        within_vectors=unit_vectors(rng, case.tasks, case.words),
        cross_vectors=unit_vectors(rng, records, case.words),
        record_index=torch.tensor([rng.randrange(records) for _ in range(case.tasks)]),
        held_out=torch.tensor(held_out),
        reward_low=torch.tensor([low for low, _ in ranges], dtype=torch.float64),
        reward_high=torch.tensor([high for _, high in ranges], dtype=torch.float64),
    )


def world_of(graph):
    """The oracle's view of a graph: the similarities are given, everything else is plain numbers."""
    store = graph["task"]
    rows = torch.arange(store.env_index.numel())
    similarity = pair_similarity(graph, rows, rows).double().tolist()
    return World(
        env=store.env_index.tolist(),
        s_within=similarity,
        s_cross=similarity,
        identity=store.identity.tolist(),
        reward_range=list(zip(store.reward_low.tolist(), store.reward_high.tolist(), strict=True)),
        held_out=store.held_out.tolist(),
    )


def random_rewards(case, rng, low, high):
    """Raw rewards of one group: some constant, some binary, some graded, some masked in every way there is."""
    k = rng.choice((2, 4, 8, 8, 8))
    if case.constant is not None:
        return [low] * k if rng.random() < case.constant else [low, high] * (k // 2)
    skill = rng.choice((0.0, 0.3, 0.7, 1.0))
    levels = (0.0, 1.0) if case.binary else (0.0, 0.25, 0.5, 0.625, 1.0)
    rewards = []
    for _ in range(k):
        share = rng.choice(levels) if rng.random() < skill else 0.0
        reward = low + share * (high - low)
        if rng.random() < case.masked:
            reward = rng.choice((None, math.nan, math.inf, -math.inf, high + 0.5, low - 0.5, high + 1e-12, low - 1e-12))
        rewards.append(reward)
    return rewards
