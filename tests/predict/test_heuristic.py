"""The predictor as a whole: properties of the method on random pools, and the corners where nothing is known."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import GroupStatistics, History
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.records import Prediction

PRESETS = ("paper", "default")


class World:
    """A random pool with a random history; `order` permutes its tasks without changing anything else."""

    def __init__(self, seed: int, tasks: int, rounds: int = 6, order: list[int] | None = None, device: str = "cpu") -> None:
        r, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        environments = r.randint(1, max(1, tasks // 2))
        order = list(range(tasks)) if order is None else order
        env = torch.randint(0, environments, (tasks,), generator=generator)
        within, cross = (torch.rand(tasks, d, generator=generator, dtype=torch.float64) ** 2 for d in (4, 5))
        within, cross = (x / x.norm(dim=1, keepdim=True) for x in (within, cross))
        log = [
            (step, r.sample(range(tasks), min(tasks, 5)), torch.rand(3, min(tasks, 5), generator=generator, dtype=torch.float64))
            for step in range(rounds)
        ]
        self.graph: HeteroData = assemble_graph(
            env_ids=[str(e) for e in range(environments)],
            env_index=env[order],
            task_ids=[str(i) for i in order],
            within_vectors=within[order],
            cross_vectors=cross[order],
            record_index=torch.arange(tasks),
        ).to(device)
        self.history, self.neighbors = History(tasks, device=device), Neighbors(self.graph)
        self.rounds = rounds
        for step, picked, (v, m, d) in log:
            rows = torch.tensor([order.index(i) for i in picked])
            v = torch.where(v < 0.3, 0, v / 4)
            self.history.add(rows, torch.full_like(rows, step), v, m, d)
            self.neighbors.insert(rows)

    def predict(self, preset: str, step: int | None = None) -> Prediction:
        step = self.rounds if step is None else step
        return HeuristicPredictor(preset, self.neighbors).predict(self.graph, self.history.evidence(step), step)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), tasks=st.integers(1, 30))
def test_ranges_and_decline(preset: str, seed: int, tasks: int) -> None:
    prediction = World(seed, tasks).predict(preset)
    q, u, p = prediction.informativeness, prediction.predicted_variance, prediction.p_informative
    assert q.dtype == u.dtype == p.dtype == torch.float64
    if preset == "paper":
        assert bool(((q > 0) & (q < 1)).all())
        assert float(q.mean()) == pytest.approx(0.5)
    else:
        assert torch.equal(q, p)
    assert bool((u <= prediction.parts["variance_long"] + 1e-15).all())
    assert bool(((u >= 0) & (u <= 0.25)).all())
    assert bool(((p >= 0) & (p <= 1 + 1e-12)).all())


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), tasks=st.integers(2, 30))
def test_a_permuted_pool_gives_permuted_predictions(preset: str, seed: int, tasks: int) -> None:
    order = random.Random(seed + 1).sample(range(tasks), tasks)
    plain, permuted = World(seed, tasks).predict(preset), World(seed, tasks, order=order).predict(preset)
    for name in ("informativeness", "predicted_variance", "p_informative"):
        torch.testing.assert_close(getattr(permuted, name), getattr(plain, name)[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("tasks", [1, 5])
@pytest.mark.parametrize("preset", PRESETS)
def test_nothing_observed_makes_all_tasks_equal(preset: str, tasks: int, device: torch.device) -> None:
    prediction = World(0, tasks, rounds=0, device=str(device)).predict(preset)
    assert prediction.informativeness.tolist() == [0.5] * tasks
    assert prediction.predicted_variance.tolist() == pytest.approx([0.05] * tasks, abs=1e-16)
    assert prediction.p_informative.tolist() == pytest.approx([0.5] * tasks)
    for name, reference in (("variance", 0.05), ("mean", 0.5), ("dispersion", 0.25)):
        for part in ("estimate", "within", "cross"):
            assert prediction.parts[f"{part}_{name}"].tolist() == pytest.approx([reference] * tasks)


@pytest.mark.parametrize("preset", PRESETS)
def test_all_weights_underflowed_is_as_if_only_the_references_were_known(preset: str) -> None:
    world = World(1, 20)
    prediction = world.predict(preset, step=10**7)
    reference = world.history.evidence(10**7).reference
    torch.testing.assert_close(prediction.predicted_variance, reference[0, 0].expand(20), rtol=0, atol=1e-15)
    assert prediction.informativeness.tolist() == [0.5 if preset == "paper" else float(prediction.p_informative[0])] * 20


@pytest.mark.parametrize("preset", PRESETS)
def test_many_observations_overrule_the_prior(preset: str) -> None:
    world = World(2, 12, rounds=1)
    hot, cold = torch.tensor([3]), torch.tensor([4])
    for step in range(1, 40):
        world.history.add(
            torch.cat([hot, cold]), torch.full((2,), step), torch.tensor([0.2, 0.0]), torch.tensor([0.5, 0.5]), torch.tensor([0.8, 0.0])
        )
    world.neighbors.insert(torch.cat([hot, cold]))
    prediction = world.predict(preset, step=40)
    assert float(prediction.p_informative[3]) > 0.9 > 0.1 > float(prediction.p_informative[4])
    own, estimate = world.history.evidence(40).estimate[0, 0, 3], prediction.parts["estimate_variance"][3]
    assert float((own - estimate).abs()) < 0.03
    assert float(prediction.informativeness[3]) > float(prediction.informativeness[4])


def test_the_presets_differ_only_in_informativeness() -> None:
    world = World(3, 25)
    a, b = world.predict("paper"), world.predict("default")
    assert torch.equal(a.predicted_variance, b.predicted_variance)
    assert torch.equal(a.p_informative, b.p_informative)
    assert not torch.equal(a.informativeness, b.informativeness)
    assert torch.equal(a.informativeness.argsort(), a.predicted_variance.argsort())


def test_every_part_has_one_value_a_task() -> None:
    prediction = World(4, 9).predict("default")
    assert {name: tuple(part.shape) for name, part in prediction.parts.items()} == dict.fromkeys(prediction.parts, (9,))
    at = prediction.at(torch.tensor([7, 2]))
    assert at.parts["prior_level"].shape == (2,)
    assert at.parts["estimate_mean"].tolist() == prediction.parts["estimate_mean"][[7, 2]].tolist()


def statistics(variance: list[float], observed: list[bool]) -> GroupStatistics:
    v = torch.tensor(variance, dtype=torch.float64)
    seen = torch.tensor(observed)
    return GroupStatistics(variance=v, mean=v, dispersion=v, observed=seen, num_valid=seen.long() * 8, rejected=())


def test_update_moves_the_weights_toward_the_experts_that_were_right() -> None:
    world = World(5, 20)
    predictor = HeuristicPredictor("default", world.neighbors)
    before = predictor.predict(world.graph, world.history.evidence(6), 6)
    tasks = torch.arange(6)
    predictor.update(6, statistics([0.2] * 5 + [0.0], [True] * 5 + [False]), before.at(tasks))
    experts = predictor.experts_at(before.at(tasks[:5]))
    expected = torch.softmax(experts.clamp(0.02, 0.98).log().sum(1), 0)
    torch.testing.assert_close(predictor.experts.weights(), expected)
    after = predictor.predict(world.graph, world.history.evidence(6), 6)
    torch.testing.assert_close(after.p_informative, expected @ predictor.experts_at(before), rtol=0, atol=1e-12)


def test_preset_paper_does_not_learn_weights() -> None:
    world = World(5, 20)
    predictor = HeuristicPredictor("paper", world.neighbors)
    before = predictor.predict(world.graph, world.history.evidence(6), 6)
    predictor.update(6, statistics([0.2, 0.2], [True, True]), before.at(torch.arange(2)))
    assert predictor.experts.weights().tolist() == pytest.approx([1 / 21] * 21)


def test_a_state_restores_predictions_bit_equal() -> None:
    world = World(6, 20)
    predictor = HeuristicPredictor("default", world.neighbors)
    before = predictor.predict(world.graph, world.history.evidence(6), 6)
    predictor.update(5, statistics([0.2, 0.0, 0.1], [True] * 3), before.at(torch.arange(3)))
    other = HeuristicPredictor("default", world.neighbors)
    other.load_state_dict(predictor.state_dict())
    a, b = (p.predict(world.graph, world.history.evidence(6), 6) for p in (predictor, other))
    assert torch.equal(a.p_informative, b.p_informative)
    assert not torch.equal(a.p_informative, before.p_informative)


@pytest.mark.parametrize("preset", PRESETS)
def test_devices_agree(preset: str, device: torch.device) -> None:
    cpu, there = World(7, 200, rounds=20).predict(preset), World(7, 200, rounds=20, device=str(device)).predict(preset)
    torch.testing.assert_close(there.predicted_variance.cpu(), cpu.predicted_variance, rtol=0, atol=1e-9)
    assert torch.equal(there.informativeness.cpu(), cpu.informativeness)
