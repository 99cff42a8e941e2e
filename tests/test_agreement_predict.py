"""History, neighbours and predictor against the slow oracle, part by part, without a scheduler in between."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import History, group_statistics
from envsched_gnn.predict.heuristic import HeuristicPredictor
from tests.reference import prediction as reference
from tests.reference.cases import Case, random_graph, random_rewards, world_of
from tests.reference.history import informative_half_life
from tests.reference.scheduler import ReferenceScheduler
from tests.reference.selection import Settings

STATISTICS = {"v": "variance", "m": "mean", "d": "dispersion"}


class Fast:
    """The batched parts, wired as a scheduler wires them."""

    def __init__(self, graph, case):
        self.graph, self.said = graph, {}
        half_life = informative_half_life(case.tasks, case.batch_size)
        self.history = History(case.tasks, half_life_informative=half_life, v_floor=case.v_floor, power=1.0)
        self.neighbors = Neighbors(graph)
        self.predictor = HeuristicPredictor(case.preset, self.neighbors, v_floor=case.v_floor, target="variance")

    def predict(self, t):
        return self.predictor.predict(self.graph, self.history.evidence(t), t)

    def observe(self, step, tasks, rewards):
        store, tasks = self.graph["task"], torch.tensor(tasks)
        groups = group_statistics(rewards, store.reward_low[tasks], store.reward_high[tasks])
        seen = groups.observed
        self.history.add(tasks[seen], torch.full_like(tasks[seen], step), groups.variance[seen], groups.mean[seen], groups.dispersion[seen])
        self.neighbors.insert(tasks[seen])
        self.predictor.update(step, groups, self.said[step].at(tasks))


def near(name, fast, slow, worst):
    fast, slow = torch.as_tensor(fast, dtype=torch.float64), torch.as_tensor(slow, dtype=torch.float64)
    difference = float((fast - slow).abs().max())
    worst[name] = max(worst.get(name, 0.0), difference)
    assert difference <= 1e-9, name


def compare(fast, slow, t, worst):
    """Neighbour lists exactly, every part of the prediction to 1e-9, ranks to the last bit but one."""
    world, observed = slow.world, {task for task, _, _ in slow.log}
    for relation in ("within", "cross"):
        for i in world.tasks:
            tasks, similarity = fast.neighbors.of(relation, i)
            assert list(zip(tasks.tolist(), similarity.tolist(), strict=True)) == reference.neighbours(world, observed, i, relation)
    got, want = fast.predict(t), slow.predict(t)
    for y, name in STATISTICS.items():
        near("estimate", got.parts[f"estimate_{name}"], want["est"]["long"][y], worst)
        for relation in ("within", "cross"):
            near("relation", got.parts[f"{relation}_{name}"], want["rel"]["long"][relation][y], worst)
    near("u", got.predicted_variance, want["u"], worst)
    near("u_short", got.parts["variance_short"], want["u_short"], worst)
    everything = torch.arange(len(world.env))
    near("p_e", sorted_rows(fast.predictor.experts_at(got.at(everything)).tolist()), sorted_rows(want["p_e"]), worst)
    near("expert weights", sorted(fast.predictor.experts.weights().tolist()), sorted(want["expert_weights"]), worst)
    near("p_informative", got.p_informative, want["p_informative"], worst)
    assert got.informativeness.tolist() == pytest.approx(want["q"], abs=1e-14)


def sorted_rows(rows):
    """The experts' probabilities of each task in order of size: the order of experts is nobody's business."""
    return torch.tensor(rows, dtype=torch.float64).sort(0).values


def play(case):
    rng = random.Random(case.seed)
    graph = random_graph(case, rng)
    fast = Fast(graph, case)
    slow = ReferenceScheduler(world_of(graph), Settings(batch_size=case.batch_size, seed=case.seed), case.preset, case.v_floor)
    worst, t, waiting = {}, 0, []
    for _ in range(case.rounds):
        compare(fast, slow, t, worst)
        fast.said[t] = fast.predict(t)
        _, batch = slow.select(t)
        waiting += [(t, task) for task, _, _ in batch.picks]
        rng.shuffle(waiting)
        late = int(len(waiting) * case.late)
        waiting, due = waiting[:late], waiting[late:]
        for step in sorted({step for step, _ in due}):
            tasks = [task for s, task in due if s == step]
            rewards = [random_rewards(case, rng, *slow.world.reward_range[task]) for task in tasks]
            fast.observe(step, tasks, rewards)
            for task, reward in zip(tasks, rewards, strict=True):
                slow.observe(step, task, reward)
        t += rng.choice(case.gaps)
    return worst


@pytest.mark.parametrize("preset", ["paper", "default"])
@pytest.mark.parametrize("late", [0.0, 0.4])
@pytest.mark.parametrize("words", [2, 5, 15])
def test_fixed_cases(preset, late, words):
    """A pool with more observed tasks than a list can hold."""
    case = Case(
        seed=words, environments=3, tasks=60, words=words, preset=preset, batch_size=12, rounds=8, late=late, masked=0.1, gaps=(1, 2, 7)
    )
    assert play(case)["u"] >= 0


cases = st.builds(
    Case,
    seed=st.integers(0, 2**31),
    environments=st.integers(1, 6),
    tasks=st.integers(1, 40),
    words=st.sampled_from((1, 2, 3, 5, 12)),
    binary=st.booleans(),
    odd_ranges=st.booleans(),
    held_out=st.sampled_from((0.0, 0.5)),
    preset=st.sampled_from(("paper", "default")),
    v_floor=st.sampled_from((1e-6, 0.01)),
    batch_size=st.integers(1, 12),
    rounds=st.integers(2, 6),
    gaps=st.sampled_from(((1,), (1, 2, 5), (1, 3000))),
    late=st.sampled_from((0.0, 0.5)),
    masked=st.sampled_from((0.0, 0.3)),
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(case=cases)
def test_random_cases(case):
    play(case)
