"""A whole run on every device: all that a scheduler holds follows it, and what it says is what it says on the CPU.

Where there is no GPU, `test_a_second_device` runs this file and all others that have the fixture `device` on a stand-in for one.
"""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from envsched_gnn.config import PredictConfig, SelectConfig
from envsched_gnn.models.make import predictor_of
from envsched_gnn.records import RolloutGroup
from envsched_gnn.schedule import EnvSched
from tests.schedule.small import graph_of, groups

TESTS = Path(__file__).parent
FOLDERS = ("test_ops.py", "test_history.py", "test_devices.py", "graph", "predict", "schedule", "models")
GRAPH = graph_of([k % 7 for k in range(70)], seed=1)


def scheduler_of(preset: str, predictor: str, acquisition: str, device: torch.device) -> EnvSched:
    select, predict = SelectConfig(batch_size=10, acquisition=acquisition), PredictConfig(preset=preset, predictor=predictor)
    return EnvSched(None, GRAPH, select=select, predict=predict, predictor=predictor_of).to(device)


@pytest.mark.parametrize(
    ("preset", "predictor", "acquisition"),
    [
        ("default", "heuristic", "score"),
        ("paper", "heuristic", "bonus"),
        ("default", "learned", "thompson"),
        ("default", "ensemble", "score"),
        ("paper", "ensemble", "bonus"),
    ],
)
def test_a_run_says_the_same_on_every_device(preset: str, predictor: str, acquisition: str, device: torch.device) -> None:
    """With reports a step late, cancelled groups, and a state that goes on in another scheduler.

    A network's sums may differ in their last bits, so the batches of the scheduler on the device are then those of the one on the CPU.
    """
    here, there = (scheduler_of(preset, predictor, acquisition, where) for where in (torch.device("cpu"), device))
    exact = predictor == "heuristic"
    late: list[list[RolloutGroup]] = [[], []]
    for step in range(7):
        picks = here.select(step)
        chosen = there.select(step) if exact else there.shadow(step, picks.task_ids)
        assert chosen.task_ids == picks.task_ids
        for at, (scheduler, selection) in enumerate(((here, picks), (there, chosen))):
            reported = groups(selection)
            scheduler.observe(reported[:6] + late[at])
            scheduler.cancel([group.group_id for group in reported[8:]])
            late[at] = reported[6:8]
    resumed = scheduler_of(preset, predictor, acquisition, device)
    resumed.load_state_dict(reread(there.state_dict()))
    assert resumed.select(7) == there.select(7)
    for scheduler in (there, resumed):
        expected, found = here.predicted(7)[1], scheduler.predicted(7)[1]
        for name in ("informativeness", "p_informative", "predicted_variance"):
            said = getattr(found, name)
            assert said.device.type == device.type
            torch.testing.assert_close(said.cpu(), getattr(expected, name), rtol=0, atol=1e-12 if exact else 1e-4)
    task = there.select(7).task_ids[0]
    assert there.explain(task).to_dict() == resumed.explain(task).to_dict()
    assert there.metrics().keys() == resumed.metrics().keys()


def reread(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint gives it back."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    found: dict[str, Any] = torch.load(buffer, weights_only=True)
    return found


@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(os.environ.get("ENVSCHED_FAR")), reason="is what runs it")
def test_a_second_device() -> None:
    """All tests of the fixture, in a process of their own: the device is registered for a whole process."""
    command = [sys.executable, "-m", "pytest", "-m", "far", "-p", "no:cacheprovider", *(str(TESTS / name) for name in FOLDERS)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"ENVSCHED_FAR": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
