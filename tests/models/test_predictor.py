"""The learned predictor and the ensemble: what they start from, what they learn, what they never read, and resuming."""

import copy
import io
from functools import cache

import pytest
import torch

from envsched_gnn.config import PredictConfig
from envsched_gnn.models.learner import MIN_GROUPS, Learner
from envsched_gnn.models.make import predictor_of
from envsched_gnn.models.memory import CAPACITY
from envsched_gnn.models.predictor import EnsemblePredictor, LearnedPredictor
from envsched_gnn.predict import mixture
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.records import Prediction
from envsched_gnn.schedule import EnvSched
from tests.models.world import World
from tests.schedule.small import graph_of, group, groups

ROUNDS = 12


def made(world: World, name: str = "learned", seed: int = 0, **settings) -> LearnedPredictor | EnsemblePredictor:
    return predictor_of(PredictConfig(predictor=name, **settings), world.graph, world.neighbors, seed)


def played(name: str = "learned", rounds: int = ROUNDS, **settings) -> tuple[World, LearnedPredictor | EnsemblePredictor]:
    """A world after some rounds, and what has learned from them; the caller's own copy."""
    return copy.deepcopy(_played(name, rounds, tuple(settings.items())))


@cache
def _played(name: str, rounds: int, settings: tuple) -> tuple[World, LearnedPredictor | EnsemblePredictor]:
    world = World()
    predictor = made(world, name, **dict(settings))
    for step in range(rounds):
        world.round(predictor, step)
    return world, predictor


def now(world: World, predictor, step: int = ROUNDS) -> Prediction:
    return predictor.predict(world.graph, world.history.evidence(step), step)


def loglik(p: torch.Tensor, z: torch.Tensor) -> float:
    p = p.clamp(*mixture.CLIP)
    return float(torch.where(z, p.log(), (1 - p).log()).mean())


@pytest.mark.parametrize("name", ["learned", "ensemble"])
def test_before_fifty_groups_it_is_the_mixture_exactly(name: str) -> None:
    world = World()
    predictor, heuristic = made(world, name, target="informative"), HeuristicPredictor("default", world.neighbors)
    for step in range(3):  # 48 groups
        before, shown = world.round(predictor, step)
        heuristic.update(step, shown, before)
        a, b = now(world, predictor, step + 1), now(world, heuristic, step + 1)
        assert torch.equal(a.informativeness, b.informativeness)
        assert torch.allclose(a.uncertainty, b.uncertainty)
        assert predictor.metrics()["envsched/learned/gate"] == 0.0
    world.round(predictor, 3)
    assert predictor.metrics()["envsched/learned/gate"] == 64 / (64 + 200)
    assert not torch.equal(now(world, predictor, 4).p_informative, now(world, heuristic, 4).p_informative)


def test_it_learns_what_the_neighbours_do_not_tell_and_the_ensemble_follows_it() -> None:
    world, predictor = played("ensemble", rounds=24)
    prediction, z = now(world, predictor, 24), torch.tensor(world.spreads)
    learned, mixed = loglik(prediction.parts["learned_p"], z), loglik(prediction.parts["mixture_p"], z)
    assert learned > mixed + 0.02
    assert loglik(prediction.p_informative, z) > mixed
    figures = predictor.metrics()
    assert figures["envsched/learned/loss_learned"] < figures["envsched/learned/loss_mixture"]
    assert figures["envsched/learned/weight"] > 1 / 13


def test_it_works_where_nothing_was_seen_before() -> None:
    """Weights of one pool, on another that has other tasks, other environments and no observation, and on one without neighbours at all."""
    _, trained = played()
    other = World(tasks=33, seed=5)
    predictor = made(other)
    predictor.learner.load_weights(trained.learner.weights())
    cold = now(other, predictor, 0)
    assert predictor.learner.gate == 192 / 392
    assert bool(((cold.p_informative > 0) & (cold.p_informative < 1)).all())
    assert bool(cold.uncertainty.isfinite().all())
    alone = World(tasks=10)
    alone.graph.within_k = alone.graph.cross_k = 0
    alone.neighbors = type(alone.neighbors)(alone.graph)
    predictor = made(alone)
    for step in range(8):
        alone.round(predictor, step, size=8)
    assert bool(now(alone, predictor, 8).p_informative.isfinite().all())


def test_a_prediction_reads_nothing_of_its_own_step_or_later() -> None:
    world, predictor = played()
    a = now(world, predictor)
    later = torch.arange(10)
    world.history.add(later, torch.full_like(later, ROUNDS), torch.full((10,), 0.25), torch.full((10,), 0.5), torch.ones(10))
    b = now(world, predictor)
    for name in ("p_informative", "predicted_variance", "uncertainty"):
        assert torch.equal(getattr(a, name), getattr(b, name))


def test_asking_does_not_change_the_answer() -> None:
    world, predictor = played()
    state = copy.deepcopy(predictor.state_dict())
    a, _, b = now(world, predictor), now(world, predictor, ROUNDS + 3), now(world, predictor)
    assert torch.equal(a.p_informative, b.p_informative)
    assert same(state, predictor.state_dict())


def test_what_a_group_is_learned_from_is_what_it_was_predicted_from() -> None:
    """A late group: the history goes on in between, and the inputs that are remembered are those of before."""
    world, predictor = played(rounds=4)
    tasks = torch.tensor([3, 7])
    before = now(world, predictor, 4).at(tasks)
    kept = before.parts["learned_nodes"].clone()
    for step in range(4, 8):
        world.round(predictor, step)
    predictor.update(4, world.groups([3, 7]), before)
    assert torch.equal(predictor.learner.memory.groups.nodes[-2:], kept.T)
    assert predictor.learner.fresh == 2  # a late group starts no learning


def test_unobserved_groups_teach_nothing() -> None:
    world, predictor = played()
    count, shown = len(predictor.learner.memory), world.groups([0, 1])
    shown.observed[:] = False
    predictor.update(ROUNDS, shown, now(world, predictor).at(torch.tensor([0, 1])))
    assert len(predictor.learner.memory) == count


def test_learn_every() -> None:
    _, never = played(learn_every=0)
    assert (never.learner.updates, never.learner.gate) == (0, 0.0)
    _, third = played(learn_every=3)
    assert third.learner.updates == 3 * 20  # rounds 3 (48 groups: too few), 6, 9 and 12


def test_memory_is_bounded() -> None:
    _, predictor = played(rounds=4)
    one = predictor.learner.memory.groups
    for _ in range(CAPACITY // len(one.nodes) + 2):
        predictor.learner.add(one)
    assert len(predictor.learner.memory) == CAPACITY


def test_seeds() -> None:
    (_, a), (_, b), c = _played("learned", 5, ()), _played.__wrapped__("learned", 5, ()), Learner(6, 12, seed=1)
    assert same(a.state_dict(), b.state_dict())
    assert not same(a.learner.weights()["network"], c.weights()["network"])


@pytest.mark.parametrize("name", ["learned", "ensemble"])
def test_a_state_goes_on_bit_equal(name: str) -> None:
    world, predictor = played(name)
    buffer = io.BytesIO()
    torch.save(predictor.state_dict(), buffer)
    other = made(world, name, seed=0)
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    twin = copy.deepcopy(world)
    other_learned = other.learned if name == "ensemble" else other
    other_learned.neighbors = other_learned.heuristic.neighbors = twin.neighbors
    for step in range(ROUNDS, ROUNDS + 3):
        a, _ = world.round(predictor, step)
        b, _ = twin.round(other, step)
        assert torch.equal(a.p_informative, b.p_informative)
    assert same(predictor.state_dict(), other.state_dict())


@pytest.mark.parametrize(("settings", "score"), [({"preset": "paper"}, "rank"), ({"target": "variance"}, "u"), ({"target": "std"}, "std")])
def test_what_informativeness_is(settings, score) -> None:
    world, predictor = played(**settings)
    prediction = now(world, predictor)
    p, u, q = prediction.p_informative, prediction.predicted_variance, prediction.informativeness
    match score:
        case "rank":
            assert torch.equal(q.argsort(stable=True), (u * 2**32).round().argsort(stable=True))
        case "u":
            assert torch.equal(q, 4 * u)
        case "std":
            torch.testing.assert_close(q, 2 * p * (u / p).sqrt())


def test_uncertainty_falls_with_what_is_known() -> None:
    world, predictor = played()
    prediction = now(world, predictor)
    seen = world.history.evidence(ROUNDS).informative_weight
    assert float(seen.max()) > 2
    scale = (prediction.p_informative * (1 - prediction.p_informative)).sqrt()
    relative = prediction.uncertainty / scale
    assert float(relative[seen.argmax()]) < float(relative[seen.argmin()])
    assert bool((prediction.uncertainty > 0).all())


# ---- in the scheduler ----


@pytest.mark.parametrize("name", ["learned", "ensemble"])
def test_a_scheduler_resumes_with_the_same_picks(name: str) -> None:
    graph = graph_of([k // 5 for k in range(40)])
    config = PredictConfig(predictor=name)
    a = EnvSched(None, graph, batch_size=12, predict=config, predictor=predictor_of)
    b = EnvSched(None, graph, batch_size=12, predict=config, predictor=predictor_of)
    for step in range(7):
        selection = a.select(step)
        if step == 6:  # some of a round are still in flight
            a.observe(groups(selection)[:5])
            b.load_state_dict(a.state_dict())
            late = [group(p, step, [0.0, 1.0]) for p in selection.picks[5:]]
            a.observe(late)
            b.observe(late)
        else:
            a.observe(groups(selection))
    assert a.metrics()["envsched/learned/groups"] > MIN_GROUPS
    for step in range(7, 10):
        one, two = a.select(step), b.select(step)
        assert one == two
        a.observe(groups(one))
        b.observe(groups(two))
    assert a.metrics() == b.metrics()
    explanation = a.explain("e0/t0")
    assert sum(value for _, value in explanation.terms) == pytest.approx(explanation.value)
    assert explanation.preset == name


@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        ({"target": "informative"}, None),
        ({"target": "variance"}, lambda p, u: 4 * u),
        ({"target": "std"}, lambda p, u: 2 * (p * u) ** 0.5),
        ({"preset": "paper"}, None),
    ],
)
def test_the_explanation_tells_how_the_chance_becomes_the_informativeness(settings, formula) -> None:
    scheduler = EnvSched(
        None,
        graph_of([k // 5 for k in range(40)]),
        batch_size=12,
        predict=PredictConfig(predictor="learned", **settings),
        predictor=predictor_of,
    )
    for step in range(6):
        scheduler.observe(groups(scheduler.select(step)))
    explanation = scheduler.explain("e0/t0")
    said = {name.partition(" = ")[0]: value for name, value in explanation.formulas}
    assert said.get("informativeness") == (None if settings.get("target") == "informative" else explanation.informativeness)
    if formula:
        assert formula(explanation.value, said["predicted_variance"]) == pytest.approx(explanation.informativeness)


def test_devices_follow_the_scheduler(device: torch.device) -> None:
    graph = graph_of([k // 5 for k in range(40)])
    scheduler = EnvSched(None, graph, batch_size=12, predict=PredictConfig(predictor="ensemble"), predictor=predictor_of).to(device)
    for step in range(7):
        scheduler.observe(groups(scheduler.select(step)))
    _, prediction = scheduler.predicted(7)
    assert prediction.p_informative.device.type == device.type
    assert scheduler.metrics()["envsched/learned/gate"] > 0


def same(a, b) -> bool:
    """Whether nested tables, lists, tensors and numbers are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
