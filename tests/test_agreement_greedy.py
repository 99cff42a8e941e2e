"""The greedy pass on a shortlist against full rescoring by the slow oracle: same tasks, scores, broken quotas, however short the list."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsched_gnn.config import SelectConfig
from envsched_gnn.schedule import coverage, greedy
from envsched_gnn.schedule.exposure import Exposure
from envsched_gnn.schedule.keys import task_keys
from envsched_gnn.schedule.quotas import quotas_at
from envsched_gnn.schedule.redundancy import Redundancy
from tests.reference import selection as reference
from tests.reference.cases import Case, random_graph, world_of
from tests.reference.prediction import pr


def both(seed, tasks, environments, per_round, rolling, penalty, share, batch_size, words):
    """(picks, relaxations) of the pass and of the oracle, after a few random rounds; coverage scores without evidence."""
    rng = random.Random(seed)
    graph = random_graph(Case(seed=seed, tasks=tasks, environments=environments, words=words), rng)
    world = world_of(graph)
    config = SelectConfig(batch_size=batch_size, per_round=per_round, rolling=rolling, penalty=penalty, coverage_share=share)
    oracle_settings = reference.Settings(
        batch_size=batch_size, seed=seed, per_round=per_round, rolling=rolling, penalty=penalty, coverage_share=share
    )
    t = 5
    past = [(s, i) for s in (0, 1, 3, 4) for i in rng.sample(range(tasks), rng.randint(0, min(tasks, 2 * batch_size)))]
    earlier = rng.sample(range(tasks), rng.randint(0, min(tasks, 2)))
    exposure = Exposure(graph["task"].env_index.numpy(), environments)
    for s in (0, 1, 3, 4):
        exposure.add(s, [i for step, i in past if step == s])
    exposure.add(t, earlier)
    past += [(t, i) for i in earlier]
    eligible = [rng.random() < 0.9 and i not in earlier for i in range(tasks)]
    q = pr([rng.choice((0.1, 0.2, 0.25, rng.random() / 3)) for _ in range(tasks)])

    slow = reference.select(world, past, [0, 1, 3, 4], set(), False, [0.0] * tasks, q, False, eligible, t, batch_size, oracle_settings)
    q = torch.tensor(q, dtype=torch.float64)
    schedulable = torch.tensor(reference.schedulable_environments(world))
    n_e = torch.from_numpy(exposure.environment_density(t))
    nbar = coverage.mean_density(n_e, schedulable, batch_size, tasks)
    count = exposure.num_selections(t)
    env_term = coverage.environment_term(n_e, nbar)[graph["task"].env_index]
    cover = coverage.coverage_score(env_term, coverage.task_term(count), coverage.pattern_term(torch.zeros(tasks, dtype=torch.float64)))
    covered = min(round(share * batch_size), sum(eligible))
    exploitation = coverage.exploitation_score(q, count, 16.0)
    phases = [
        greedy.PhaseScore(phase="coverage", base=cover, count=covered, spread=True),
        greedy.PhaseScore(phase="exploitation", base=exploitation, count=min(batch_size, sum(eligible)) - covered),
    ]
    fast = greedy.GreedyPass(
        phases,
        eligible=torch.tensor(eligible),
        ties=(lambda rows: torch.round(q[rows] * greedy.SCALE).long(), lambda rows: task_keys(graph["task"].identity[rows], seed, t)),
        env_index=graph["task"].env_index,
        quotas=quotas_at(exposure, t, config, len(schedulable)),
        redundancy=Redundancy(graph, weight=penalty, threshold=0.5),
        earlier=earlier,
        crowd=1,
    ).choose()
    return fast, slow


def agree(fast, slow):
    assert [(c.task, c.phase) for c in fast] == [(task, phase) for task, phase, _ in slow.picks]
    assert np.abs(np.array([c.score for c in fast]) - np.array([score for _, _, score in slow.picks])).max(initial=0.0) <= 1e-9
    assert [(quota, c.task) for c in fast for quota in c.broken] == slow.relaxations


@pytest.fixture(params=["whole pool", "shortlist"])
def shortlist(request, monkeypatch):
    """Small pools are searched whole; here also with the shortest lists, which must grow."""
    if request.param == "shortlist":
        monkeypatch.setattr(greedy, "WHOLE_POOL", 0)
        monkeypatch.setattr(greedy, "SHORTLIST", 1)
        monkeypatch.setattr(greedy, "GROWTH", 2)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.usefixtures("shortlist")
def test_fixed_seeds(seed):
    per_round, rolling = [(None, None), (1, 1), (2, 3), (1, 9)][seed % 4]
    share = (0.5, 0.0, 1.0)[seed % 3]
    agree(*both(seed, 150 - 10 * seed, 5, per_round, rolling, (0.5, 4.0)[seed % 2], share, 1 + seed % 6, 4))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("shortlist")
def test_penalties_without_a_table(seed, monkeypatch):
    """Pools of many records compute similarities pick by pick."""
    monkeypatch.setattr("envsched_gnn.schedule.redundancy.MAX_TABLE_RECORDS", 0)
    agree(*both(seed, 90, 4, None, None, 2.0, 0.5, 4, 3))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    tasks=st.integers(1, 60),
    environments=st.integers(1, 6),
    per_round=st.sampled_from((None, 1, 2, 4)),
    rolling=st.sampled_from((None, 1, 3, 6)),
    penalty=st.sampled_from((0.0, 0.5, 4.0)),
    share=st.sampled_from((0.0, 0.3, 0.5, 1.0)),
    batch_size=st.integers(1, 12),
    words=st.sampled_from((1, 2, 4, 9)),
)
def test_random_pools(seed, tasks, environments, per_round, rolling, penalty, share, batch_size, words):
    agree(*both(seed, tasks, environments, per_round, rolling, penalty, share, batch_size, words))
