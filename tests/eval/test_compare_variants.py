"""What the variants come to in the scheduler: relations taken out, terms taken out, neighbours of the last rounds alone."""

from pathlib import Path

import pytest
import torch

from envsched_gnn.config import Config, load_config
from envsched_gnn.eval.compare.arena import SimulatedArena
from envsched_gnn.eval.compare.policies import Recent, policy_in
from envsched_gnn.eval.compare.variants import entry_of
from envsched_gnn.graph.neighbors import Relation
from envsched_gnn.ops import weighted_gather
from envsched_gnn.predict import paper
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.policies import play_round

TINY = ["simulate.environments=6", "simulate.tasks=10", "select.batch_size=8", "rollout.num_rollouts=4"]


def played(name: str, rounds: int = 4) -> tuple[EnvSched, Config]:
    """A scheduler after some rounds of the tiny world."""
    entry = entry_of(name)
    config = load_config(None, [*TINY, *(entry.variant.settings if entry.variant else ())])
    arena = SimulatedArena(config)
    policy = policy_in(arena, entry, config)
    assert isinstance(policy, EnvSched)
    for step in range(rounds):
        arena.learn(play_round(policy, arena, step).train)
    return policy, config


@pytest.mark.parametrize(("name", "out", "left"), [("within_only", "cross", "within"), ("cross_only", "within", "cross")])
def test_a_relation_that_is_taken_out_says_its_reference_of_every_task(name: str, out: Relation, left: Relation) -> None:
    policy, _ = played(f"paper:{name}")
    evidence, prediction = policy.predicted(4)
    assert policy.neighbors.similarity(out).numel() == 0
    assert policy.neighbors.similarity(left).any()
    long = evidence.reference[0].tolist()
    for stat, reference in zip(("variance", "mean", "dispersion"), long, strict=True):
        assert prediction.parts[f"{out}_{stat}"].tolist() == pytest.approx([reference] * 60)
        assert len(prediction.parts[f"{left}_{stat}"].unique()) > 1
    assert prediction.parts["cross_weight"].any() == (out == "within")
    assert len(policy.select(4).picks) == 8
    policy.explain(policy.select(4).task_ids[0])


def test_nothing_is_gathered_from_no_neighbours() -> None:
    table = torch.ones((3, 2), dtype=torch.float64)
    none = torch.empty((5, 0))
    assert weighted_gather(table, none.to(torch.int32), none).tolist() == [[0.0, 0.0]] * 5


def test_terms_that_are_taken_out() -> None:
    v, m, d = (torch.tensor(values, dtype=torch.float64) for values in ([0.04, 0.16, 0.09], [0.5, 0.9, 0.1], [1.0, 0.1, 0.2]))
    # pr = 1/6, 5/6, 1/2: v itself; with f = 0.25, 0.009, 0.018, of ranks 5/6, 1/6, 1/2, it is pulled to the middle.
    assert paper.horizon_variance(v, m, d, share=0.0).tolist() == pytest.approx([0.04, 0.16, 0.09])
    pulled = paper.horizon_variance(v, m, d, share=0.35)
    assert pulled.tolist() != pytest.approx([0.04, 0.16, 0.09])
    assert paper.predicted_variance(v, v / 2, 0.5).tolist() == pytest.approx([0.03, 0.12, 0.0675])
    assert paper.predicted_variance(v, v / 2, 0.0).tolist() == v.tolist()


@pytest.mark.parametrize("name", ["no_decline", "no_reconstruction"])
def test_a_term_is_taken_out_of_the_prediction(name: str) -> None:
    policy, _ = played(f"paper:{name}")
    _, prediction = policy.predicted(4)
    parts = prediction.parts
    if name == "no_decline":
        assert torch.equal(prediction.predicted_variance, parts["variance_long"])
    else:
        assert parts["variance_long"].tolist() == pytest.approx(parts["estimate_variance"].tolist())
    assert (parts["variance_long"] > parts["variance_short"]).any()


def test_neighbours_of_the_last_rounds_alone() -> None:
    policy, _ = played("paper:recent_8", rounds=12)
    assert isinstance(policy.predictor, Recent)
    recent = policy.predictor.observed(12)
    latest = dict(zip(policy.history.tasks.tolist(), policy.history.steps.tolist(), strict=True))
    assert recent.tolist() == sorted(task for task, step in latest.items() if step >= 4)
    assert 0 < len(recent) < len(policy.neighbors.observed)
    inner = policy.predictor._predictor
    policy.predicted(12)
    assert inner.neighbors.observed.tolist() == recent.tolist()


def test_a_horizon_longer_than_the_run_changes_nothing() -> None:
    """The lists are made anew each round; they must be those that grew."""
    (recent, _), (plain, _) = played("envsched:recent_32"), played("envsched")
    assert recent.select(4).task_ids == plain.select(4).task_ids
    left, right = recent.predicted(4)[1], plain.predicted(4)[1]
    assert left.p_informative.tolist() == pytest.approx(right.p_informative.tolist(), abs=1e-12)


def test_recent_neighbours_survive_a_resume(tmp_path: Path) -> None:
    policy, config = played("paper:recent_8", rounds=10)
    again = policy_in(SimulatedArena(config), entry_of("paper:recent_8"), config)
    again.load_state_dict(policy.state_dict())
    assert again.select(10) == policy.select(10)
