"""Targets other than the chance of variance: the expected variance or standard deviation, by hand and in a scheduler."""

import pytest
import torch

from envsched_gnn.config import PredictConfig
from envsched_gnn.config_scheduling import Target
from envsched_gnn.predict.mixture import expected_size
from envsched_gnn.records import Evidence
from envsched_gnn.schedule import EnvSched
from tests.schedule.small import graph_of, group


def evidence(size: list[float], level: float) -> Evidence:
    zeros = torch.zeros((2, 3, 2), dtype=torch.float64)
    return Evidence(
        weight=zeros[:, 0],
        estimate=zeros,
        reference=zeros[..., 0],
        informative_weight=torch.tensor([2.0, 0.0], dtype=torch.float64),
        informative_estimate=torch.tensor([0.5, 0.0], dtype=torch.float64),
        informative_level=0.4,
        informative_share=0.4,
        size=torch.tensor(size, dtype=torch.float64),
        size_level=level,
    )


def test_expected_size_by_hand() -> None:
    """The first task has one informative group's weight: halfway between its own and the level. As shares of 0.25 and of 0.5."""
    p = torch.tensor([0.5, 0.4], dtype=torch.float64)
    assert expected_size(p, evidence([0.25, 0.0], 0.15), 1.0).tolist() == pytest.approx([0.5 * 0.2 / 0.25, 0.4 * 0.15 / 0.25])
    assert expected_size(p, evidence([0.5, 0.0], 0.4), 0.5).tolist() == pytest.approx([0.5 * 0.45 / 0.5, 0.4 * 0.4 / 0.5])
    assert expected_size(p, evidence([0.0, 0.0], 0.0), 0.5).tolist() == [0.5, 0.4], "nothing informative yet"


@pytest.mark.parametrize("target", ["variance", "std"])
def test_of_two_tasks_that_always_have_variance_the_one_with_more_comes_first(target: Target) -> None:
    """Task 0 has rewards 0 and 1, task 1 rewards 0.4 and 0.6: alike to the chance of variance, not to its size."""
    rewards = {"t0": [0.0, 1.0], "t1": [0.4, 0.6], "t2": [1.0, 1.0]}
    found = {}
    for name in ("informative", target):
        sched = EnvSched(None, graph_of([0, 1, 2]), batch_size=3, predict=PredictConfig(target=name))
        for step in range(3):
            picks = sched.select(step)
            sched.observe([group(pick, step, rewards[pick.task_id]) for pick in picks.picks])
        found[name] = sched.predicted(3)[1]
        again = EnvSched(None, graph_of([0, 1, 2]), batch_size=3, predict=PredictConfig(target=name))
        again.load_state_dict(sched.state_dict())
        assert again.select(3) == sched.select(3)
        assert sched.explain("e0/t0").to_dict()
    plain, sized = found["informative"].informativeness.tolist(), found[target].informativeness.tolist()
    assert plain[0] == pytest.approx(plain[1])
    assert sized[0] > sized[1] > sized[2]
    assert found[target].p_informative.tolist() == found["informative"].p_informative.tolist()
    assert 0 <= min(sized) <= max(sized) <= 1
