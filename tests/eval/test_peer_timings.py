"""The timings of peers run, and count what they say."""

from envsched_gnn.eval.benchmarks.peers import COLUMNS, measure
from envsched_gnn.eval.benchmarks.pools import Size, random_graph


def test_a_row():
    graph = random_graph(Size(environments=10, tasks_per_environment=10, records=8, dimension=8))
    row = measure("dapo", graph, 1)
    assert set(row) == set(COLUMNS)
    assert (row["policy"], row["tasks"]) == ("dapo", 100)
    assert row["trips"] >= 2  # 100 tasks, half of their groups mixed: one draw of 64 is no batch of 64
    assert 0 < row["select_max_ms"] <= row["select_ms"]
