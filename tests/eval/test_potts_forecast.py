"""The prompt graph's estimate as a forecast of a replay."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.errors import ConfigError, GraphError
from envsched_gnn.eval.replay.judge import judge
from envsched_gnn.eval.replay.potts import prompt_graph
from envsched_gnn.eval.replay.predictors import check_names, predictor_of
from envsched_gnn.eval.replay.result import replay
from envsched_gnn.graph.build import build_graph
from envsched_gnn.history import group_statistics
from envsched_gnn.pool.load import load_pool
from tests.eval.ledgers import recorded_of

POOL = load_pool(PoolConfig(toolworld=ToolWorldConfig(environments=3, tasks=8)))


@pytest.fixture(scope="module")
def graph():
    return build_graph(POOL)


def test_a_chance_of_success_read_as_a_forecast(graph):
    recorded = replace(recorded_of(graph, [0], [0.1]), pool=POOL)
    forecast = prompt_graph(recorded)
    before = forecast.predict(graph, None, 0)
    # Nothing known: p = 1/2. Of 8 rewards all are equal once in 128; the expected variance is 7/8 of 1/4.
    assert before.p_informative.tolist() == pytest.approx([127 / 128] * 24)
    assert before.predicted_variance.tolist() == pytest.approx([7 / 32] * 24)
    failed = group_statistics([[0.0] * 8], torch.zeros(1), torch.ones(1))
    forecast.update(0, failed, before.at(torch.tensor([5])))
    after = forecast.predict(graph, None, 1)
    p = (1 - 0.5) * float(forecast.estimate.memory.shared["label"][5] @ mean_of_labels(forecast)) + 0.5 * 0.0
    assert 0 < p < 0.25
    assert float(after.p_informative[5]) == pytest.approx(1 - p**8 - (1 - p) ** 8)
    assert float(after.p_informative[5]) == float(after.p_informative.min()) < 0.9


def mean_of_labels(forecast):
    shared = forecast.estimate.memory.shared
    return (shared["a"] / (shared["a"] + shared["b"])).to(shared["label"].dtype)


def test_it_is_judged_where_it_is_named(graph):
    tasks = [row for _ in range(4) for row in range(24)]
    recorded = replace(recorded_of(graph, tasks, [0.2 * (row % 2) for row in tasks]), pool=POOL)
    assert {row["predictor"] for row in replay(recorded, ["own", "graph_potts"])["rows"]} == {"own", "graph_potts"}
    assert "graph_potts" not in check_names([])
    assert np.isfinite(judge(recorded, ["graph_potts"]).predicted["variance", "graph_potts"]).all()


def test_without_prompts_it_is_refused(graph):
    with pytest.raises(
        GraphError, match=r"made\.sqlite: graph_potts needs the prompts of the pool, and only its graph is there\. Give --pool"
    ):
        prompt_graph(recorded_of(graph, [0], [0.1]))
    with pytest.raises(ConfigError, match=r"predictor 'graph_pots': no such predictor\. Did you mean graph_potts\?"):
        predictor_of("graph_pots", None, 0.0)
