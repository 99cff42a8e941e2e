"""The scheduler against the slow oracle of `tests/reference`: same numbers, same picks, round after round, on random pools."""

import math
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsched_gnn.config import PredictConfig, SelectConfig
from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.graph.similarity import pair_similarity
from envsched_gnn.records import Rollout, RolloutGroup
from envsched_gnn.schedule import EnvSched
from tests.reference import selection as reference
from tests.reference.cases import Case, random_graph, random_rewards, unit_vectors, world_of
from tests.reference.scheduler import ReferenceScheduler

TOLERANCE = 1e-9


def group(graph, step, task, rewards):
    env = graph.env_ids[int(graph["task"].env_index[task])]
    name = graph.task_ids[task]
    rollouts = tuple(Rollout(reward=reward) for reward in rewards)
    return RolloutGroup(group_id=f"{step}:{env}/{name}", env_id=env, task_id=name, step=step, rollouts=rollouts)


def largest_difference(name, fast, slow, worst):
    """Record the largest absolute difference of a column, and fail above the tolerance."""
    fast = [float(x) for x in fast]
    assert len(fast) == len(slow), name
    difference = max((abs(a - b) for a, b in zip(fast, slow, strict=True)), default=0.0)
    assert not math.isnan(difference), name
    worst[name] = max(worst.get(name, 0.0), difference)
    assert difference <= TOLERANCE, f"{name}: {difference} at step; fast {fast}, slow {slow}"


def compare_scores(scheduler, oracle, t, worst):
    """Every column of the scores table, before the picks of step t."""
    scores, parts, scale = scheduler.scores(t), oracle.predict(t), oracle.settings.exposure_scale
    world, observed = oracle.world, {task for task, _, _ in oracle.log}
    count = [reference.exposure(oracle.past, i, t) for i in world.tasks]
    terms = [
        reference.coverage_terms(world, oracle.past, observed, parts["W"]["long"], i, t, oracle.settings.batch_size) for i in world.tasks
    ]
    if oracle.preset == "default":
        terms = [term * q / (1 + c) for term, q, c in zip(terms, parts["q"], count, strict=True)]
    expected = {
        "weight_long": parts["W"]["long"],
        "variance_long": parts["est"]["long"]["v"],
        "mean_long": parts["est"]["long"]["m"],
        "dispersion_long": parts["est"]["long"]["d"],
        "predicted_variance": parts["u"],
        "p_informative": parts["p_informative"],
        "coverage_score": terms,
        "exploitation_score": [q * reference.exposure_factor(c, scale) for q, c in zip(parts["q"], count, strict=True)],
        "num_selections": count,
    }
    for name, slow in expected.items():
        largest_difference(name, scores[name], slow, worst)
    assert [float(x) for x in scores["informativeness"]] == pytest.approx(parts["q"], abs=1e-12), "ranks differ"
    return parts


def compare_batch(fast, slow, parts, graph, worst, earlier):
    """Same picks in the same order, after the step's `earlier` ones; same phases, scores and predictions, same relaxations."""
    assert [(p.task_index, p.phase) for p in fast.picks] == [(task, phase) for task, phase, _ in slow.picks]
    assert [p.rank for p in fast.picks] == list(range(earlier + 1, earlier + len(fast.picks) + 1))
    chosen = [p for p in fast.picks if p.phase != "cold"]
    largest_difference("score", [p.score for p in chosen], [score for _, phase, score in slow.picks if phase != "cold"], worst)
    for name, column in (("predicted_variance", "u"), ("p_informative", "p_informative")):
        largest_difference("pick " + name, [getattr(p, name) for p in fast.picks], [parts[column][p.task_index] for p in fast.picks], worst)
    keys = [f"{graph.env_ids[e]}/{name}" for e, name in zip(graph["task"].env_index.tolist(), graph.task_ids, strict=True)]
    assert [(r.quota, f"{r.env_id}/{r.task_id}") for r in fast.relaxations] == [(quota, keys[task]) for quota, task in slow.relaxations]


def play(case):
    """Both schedulers through the same rounds; the largest difference of every column seen."""
    rng = random.Random(case.seed)
    graph = random_graph(case, rng)
    world = world_of(graph)
    select = SelectConfig(
        batch_size=case.batch_size,
        coverage_share=case.coverage_share,
        penalty=case.penalty,
        penalty_threshold=0.5,
        per_round=case.per_round,
        rolling=case.rolling,
    )
    predict = PredictConfig(preset=case.preset, v_floor=case.v_floor)
    fast = EnvSched(None, graph, batch_size=case.batch_size, seed=case.seed, preset=case.preset, select=select, predict=predict)
    settings = reference.Settings(
        batch_size=case.batch_size,
        seed=case.seed,
        coverage_share=case.coverage_share,
        penalty=case.penalty,
        per_round=case.per_round,
        rolling=case.rolling,
        exposure_scale=16.0 if case.preset == "paper" else 1.0,
    )
    slow = ReferenceScheduler(world, settings, case.preset, case.v_floor)
    worst, pending, t = {}, [], 0
    for round_number in range(case.rounds):
        earlier = 0
        for request in range(case.requests):
            parts = compare_scores(fast, slow, t, worst) if request == 0 else slow.predict(t)
            n = case.batch_size if case.requests == 1 else rng.randint(1, case.batch_size)
            selection = fast.select(t, n, request_id=f"{t}.{request}")
            _, batch = slow.select(t, n)
            compare_batch(selection, batch, parts, graph, worst, earlier)
            earlier += len(selection.picks)
            report(case, rng, graph, fast, slow, pending, round_number, t, [task for task, _, _ in batch.picks])
        t += rng.choice(case.gaps)
    return worst


def report(case, rng, graph, fast, slow, pending, round_number, t, picked):
    """Groups report in any order: at once, some rounds later, or never."""
    for task in picked:
        delay, fate = 0, rng.random()
        if fate < case.late / 3:
            if rng.random() < 0.5:
                fast.cancel([group(graph, t, task, ()).group_id])
                slow.cancel(t, task)
            continue
        if fate < case.late:
            delay = rng.randint(1, 3)
        pending.append((round_number + delay, t, task, random_rewards(case, rng, *slow.world.reward_range[task])))
    due = [entry for entry in pending if entry[0] <= round_number]
    pending[:] = [entry for entry in pending if entry[0] > round_number]
    rng.shuffle(due)
    fast.observe([group(graph, step, task, rewards) for _, step, task, rewards in due])
    for _, step, task, rewards in due:
        slow.observe(step, task, rewards)


FIXED = {
    "plain": Case(seed=1, rounds=8),
    "binary": Case(seed=2, rounds=8, binary=True, tasks=24, environments=4),
    "one environment": Case(seed=3, environments=1, tasks=12),
    "one task": Case(seed=4, environments=1, tasks=1, batch_size=2),
    "every task its own environment": Case(seed=5, environments=9, tasks=9),
    "gaps": Case(seed=6, gaps=(1, 3, 17), rounds=8),
    "long silence": Case(seed=7, gaps=(1, 2500), rounds=5),
    "late": Case(seed=8, late=0.5, rounds=10, tasks=30),
    "masked": Case(seed=9, masked=0.4, rounds=8),
    "odd ranges": Case(seed=10, odd_ranges=True, rounds=8),
    "held out": Case(seed=11, held_out=0.4, environments=5, tasks=30, rounds=8),
    "quotas bind": Case(seed=12, per_round=2, rolling=3, rounds=8, environments=3, tasks=12, batch_size=8),
    "pool smaller than the batch": Case(seed=13, tasks=5, batch_size=16, rounds=8, gaps=(1, 2)),
    "all coverage": Case(seed=14, coverage_share=1.0, rounds=6),
    "no coverage": Case(seed=15, coverage_share=0.0, rounds=8, per_round=2),
    "no penalty": Case(seed=16, penalty=0.0),
    "strong penalty": Case(seed=17, penalty=3.0, words=2),
    "all alike": Case(seed=18, words=1),
    "all strangers": Case(seed=19, words=40),
    "two requests a step": Case(seed=20, requests=2, rounds=6, tasks=30),
    "all of it": Case(seed=21, environments=6, tasks=40, odd_ranges=True, held_out=0.1, late=0.3, masked=0.1, gaps=(1, 2, 9), rounds=12),
    "v_floor for fractional rewards": Case(seed=22, v_floor=0.02, rounds=8),
    "hardly any variance": Case(seed=24, tasks=6, batch_size=3, constant=0.94, rounds=30),
    "hardly any constant group": Case(seed=25, tasks=6, batch_size=3, constant=0.06, rounds=30),
    "batch of one": Case(seed=23, batch_size=1, rounds=8),
}


@pytest.mark.parametrize("preset", ["paper", "default"])
@pytest.mark.parametrize("name", FIXED)
def test_fixed_cases(name, preset):
    worst = play(Case(**{**vars(FIXED[name]), "preset": preset}))
    assert worst


cases = st.builds(
    Case,
    seed=st.integers(0, 2**31),
    environments=st.integers(1, 6),
    tasks=st.integers(1, 40),
    words=st.sampled_from((1, 2, 3, 5, 12)),
    binary=st.booleans(),
    odd_ranges=st.booleans(),
    held_out=st.sampled_from((0.0, 0.2, 0.8)),
    preset=st.sampled_from(("paper", "default")),
    v_floor=st.sampled_from((1e-6, 0.01)),
    batch_size=st.integers(1, 12),
    coverage_share=st.sampled_from((0.0, 0.3, 0.5, 1.0)),
    per_round=st.sampled_from((None, 1, 2, 4)),
    rolling=st.sampled_from((None, 1, 3, 6)),
    penalty=st.sampled_from((0.0, 0.5, 2.0)),
    rounds=st.integers(2, 6),
    gaps=st.sampled_from(((1,), (1, 2, 5), (1, 40))),
    late=st.sampled_from((0.0, 0.4)),
    masked=st.sampled_from((0.0, 0.2, 0.8)),
    requests=st.sampled_from((1, 1, 2)),
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases)
def test_random_cases(case):
    assert play(case)


def test_similarities_are_the_inner_products():
    """pair_similarity against plain dot products on the grid of 2^-20."""
    rng = random.Random(5)
    within, cross = unit_vectors(rng, 12, 4), unit_vectors(rng, 5, 4)
    record = [rng.randrange(5) for _ in range(12)]
    env = [i % 3 for i in range(12)]
    graph = assemble_graph(
        env_ids=["a", "b", "c"],
        env_index=torch.tensor(env),
        task_ids=[str(i) for i in range(12)],
        within_vectors=within,
        cross_vectors=cross,
        record_index=torch.tensor(record),
    )
    rows = torch.arange(12)
    got = pair_similarity(graph, rows, rows).double().tolist()
    for i in range(12):
        for j in range(12):
            a, b = (within[i], within[j]) if env[i] == env[j] else (cross[record[i]], cross[record[j]])
            exact = 0.0 if i == j else min(math.fsum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)), 1.0)
            assert abs(got[i][j] - exact) <= 2**-21 + 1e-12
            assert got[i][j] * 2**20 == round(got[i][j] * 2**20)
