"""Explanations add up to the numbers that selection used."""

import json

import pytest

from envsched_gnn.errors import HistoryError
from envsched_gnn.schedule import EnvSched
from tests.schedule.small import graph_of, groups


@pytest.mark.parametrize("preset", ["paper", "default"])
@pytest.mark.parametrize("rounds", [0, 1, 6])
def test_every_explanation_adds_up(preset, rounds):
    graph = graph_of([k % 5 for k in range(30)], seed=3)
    scheduler = EnvSched(None, graph, batch_size=6, preset=preset)
    for step in range(rounds):
        scheduler.observe(groups(scheduler.select(step)))
    scores = scheduler.scores(rounds)
    quantity = {"paper": "predicted_variance", "default": "p_informative"}[preset]
    for row, key in enumerate(scheduler.book.keys):
        e = scheduler.explain(key)
        assert (e.task, e.step, e.quantity) == (key, rounds, quantity)
        assert e.value == float(scores[quantity][row])
        assert sum(value for _, value in e.terms) == pytest.approx(e.value, abs=1e-12)
        assert e.informativeness == float(scores["informativeness"][row])
        assert e.scores == {"coverage": float(scores["coverage_score"][row]), "exploitation": float(scores["exploitation_score"][row])}
        assert sum(o.weight for o in e.history) == pytest.approx(float(scores["weight_long"][row]), abs=1e-12)
        if preset == "paper":
            shown = dict(e.formulas)
            for stat in ("variance", "mean", "dispersion"):
                estimate = shown[f"est_{stat} = (W own + 2 (within + cross) / 2) / (W + 2)"]
                assert estimate == pytest.approx(float(scores[f"{stat}_long"][row]), abs=1e-12)
        elif rounds:
            shown = dict(e.formulas)
            size = shown["size = (W zbar own + level) / (W zbar + 1), of the variance where there is any"]
            assert shown["informativeness = p_informative size / 0.25"] == e.informativeness == pytest.approx(e.value * size / 0.25)


def test_an_explanation_is_plain_data_and_readable():
    graph = graph_of([0, 0, 0, 1, 1], records=1, words=9)
    scheduler = EnvSched(None, graph, batch_size=2, preset="paper")
    selection = scheduler.select(0)
    scheduler.observe(groups(selection))
    e = scheduler.explain(selection.task_ids[0])
    assert json.loads(json.dumps(e.to_dict()))["task"] == selection.task_ids[0]
    text = str(e)
    assert text.splitlines()[0].startswith(f"{selection.task_ids[0]} at step 1, preset paper: predicted_variance ")
    for part in (
        "own history: 1 observed groups",
        ", own variance ",
        "cross neighbours",
        "caps: none",
        "u_long = Q(rank)",
        "selected 1 times before",
    ):
        assert part in text
    with pytest.raises(HistoryError, match="expected ENV_ID/TASK_ID"):
        scheduler.explain("nobody")


def test_caps_are_named():
    graph = graph_of([0, 0, 0, 1], held_out=[False, False, False, True])
    scheduler = EnvSched(None, graph, batch_size=3)
    for step in range(2):
        scheduler.observe(groups(scheduler.select(step)))
    assert set(scheduler.explain("e1/t3").caps) == {"held_out"}
    assert set(scheduler.explain("e0/t0").caps) == {"consecutive"}
    scheduler.select(2)
    assert set(scheduler.explain("e0/t0", 2).caps) == {"consecutive", "in_flight", "selected"}
