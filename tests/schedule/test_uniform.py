"""Epochs without replacement."""

import pytest

from envsched_gnn.errors import GraphError, HistoryError
from envsched_gnn.schedule import Uniform
from tests.features.shop import POOL
from tests.schedule.small import graph_of, groups


def test_every_task_once_an_epoch_in_an_order_that_changes():
    scheduler = Uniform(None, graph_of([0] * 7 + [1] * 3), batch_size=4, seed=2)
    seen = []
    for step in range(10):
        selection = scheduler.select(step)
        assert {p.phase for p in selection.picks} == {"uniform"}
        assert len(set(selection.task_ids)) == 4
        seen += selection.task_ids
        scheduler.observe(groups(selection))
    epochs = [seen[k : k + 10] for k in range(0, 40, 10)]
    assert all(sorted(epoch) == sorted(scheduler.book.keys) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_same_verbs():
    scheduler = Uniform(None, graph_of([0, 0, 1], held_out=[True, False, False]), batch_size=5).to("cpu")
    selection = scheduler.select(0)
    assert sorted(selection.task_ids) == ["e0/t1", "e1/t2"]
    assert scheduler.select(0) is selection
    assert scheduler.select(1).picks == ()
    scheduler.cancel(selection.group_ids[0])
    assert scheduler.select(2).task_ids == selection.task_ids[:1]
    scheduler.observe(selection, [[0.0, 1.0], None])
    metrics = scheduler.metrics()
    assert metrics["envsched/total/observed"] == 1
    assert "envsched/round/rank_correlation" not in metrics
    assert scheduler.problems() == ()
    with pytest.raises(HistoryError):
        scheduler.select(1, 1)


def test_a_graph_of_another_pool_is_refused():
    with pytest.raises(GraphError, match=r"graph of 2 tasks.*Build the graph again"):
        Uniform(POOL, graph_of([0, 1]))
