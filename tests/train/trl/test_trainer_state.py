"""A trainer with scheduler goes on after a stop, a kill or a full disk as if nothing had happened."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from envsched_gnn.errors import CheckpointError
from envsched_gnn.ledger import Ledger
from envsched_gnn.train.trl import trainer_state
from envsched_gnn.train.trl.trainer_state import newest_checkpoint
from tests.train.trl import helpers as tiny
from tests.train.trl.helpers import ScheduledGRPO, ScheduledRLOO
from tests.train.trl.run import SETTINGS, run

ROOT = Path(__file__).parents[3]


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def ledger_of(folder):
    with Ledger(folder / "ledger.sqlite", read_only=True) as ledger:
        return ledger.selections(), ledger.groups()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts: its folder and its weights in the end."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, weights(run(folder, save_total_limit=None))


def test_a_run_of_two_passes_writes_what_is_left_of_a_round(whole):
    folder = whole[0]
    kept = {step: sorted(path.name for path in (folder / f"checkpoint-{step}" / "envsched").iterdir()) for step in range(1, 9)}
    assert kept == {
        **{step: ["rank-0-of-1", f"step-{(step + 1) // 2:06d}.pt"] for step in (1, 3, 5, 7)},
        **{step: [f"step-{step // 2:06d}.pt"] for step in (2, 4, 6, 8)},
    }
    assert [row.step for row in ledger_of(folder)[0]] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert newest_checkpoint(folder) == folder / "checkpoint-8"


@pytest.mark.parametrize("step", [3, 4])
def test_resumed_within_a_round_and_between_two(whole, tmp_path, step):
    folder, expected = whole
    shutil.copytree(folder / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    resumed = run(tmp_path)
    assert torch.equal(weights(resumed), expected)
    rows, groups = ledger_of(folder)
    assert ledger_of(tmp_path) == ([row for row in rows if row.step >= 2], [group for group in groups if group.step >= 2])
    assert resumed._envsched_scheduler.metrics()["envsched/total/groups"] == 16
    assert resumed._envsched_scheduler.metrics()["envsched/total/duplicates"] == 0


def test_a_trainer_that_stopped_within_a_round_goes_on_from_a_checkpoint_between_two(whole, tmp_path):
    seen = []
    settings = SETTINGS | {"per_device_train_batch_size": 8, "max_steps": 3}
    trainer = tiny.trainer(tmp_path, on_round=lambda *r: seen.append(r), **settings)
    trainer.train()
    assert trainer._step == 6
    trainer.args.max_steps = 8
    trainer.train(resume_from_checkpoint=str(whole[0] / "checkpoint-4"))
    assert torch.equal(weights(trainer), whole[1])
    assert [selection.step for selection, _ in seen] == [0, 1, 2, 3]


def test_rollouts_of_other_processes_are_left_out_and_no_round_is_lost_or_repeated(whole, tmp_path, caplog):
    shutil.copytree(whole[0] / "checkpoint-3", tmp_path / "checkpoint-3")
    (tmp_path / "checkpoint-3/envsched/rank-0-of-1").rename(tmp_path / "checkpoint-3/envsched/rank-0-of-2")
    with caplog.at_level("WARNING"):
        resumed = run(tmp_path)
    assert "rollouts of another number of processes" in caplog.text
    rows, groups = ledger_of(tmp_path)
    assert [row.step for row in rows] == [2] * 4 + [3] * 4 + [4] * 4
    assert groups[0].rollouts[0].policy_version == 3
    assert [row.group_id for row in rows[:4]] == [row.group_id for row in ledger_of(whole[0])[0][8:12]]
    assert resumed._envsched_scheduler.metrics()["envsched/total/groups"] == 20


@pytest.mark.parametrize(("kind", "steps"), [(ScheduledRLOO, 4), (ScheduledRLOO, 3)])
def test_rloo_resumes_too(tmp_path, kind, steps):
    settings = SETTINGS | {"per_device_train_batch_size": 8, "max_steps": 6}
    seen = []
    straight = tiny.trainer(tmp_path / "a", kind, on_round=lambda *r: seen.append(r), **settings)
    straight.train()
    again = []
    resumed = tiny.trainer(tmp_path / "b", kind, on_round=lambda *r: again.append(r), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{steps}"))
    assert again == seen[2:]
    assert torch.equal(weights(resumed), weights(straight))


def killed(folder, *when):
    command = [sys.executable, "-W", "ignore", "-m", "tests.train.trl.run", str(folder), *when]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=110)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_kills_leave_the_same_run(whole, tmp_path):
    """Within a round, when a round has reported and nothing is saved of it yet, and in the midst of a checkpoint."""
    folder, expected = whole
    killed(tmp_path, "update", "3")
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-3"
    killed(tmp_path, "round", "2")
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
    assert len(ledger_of(tmp_path)[1]) == 12
    killed(tmp_path, "save", "7")
    assert (tmp_path / "checkpoint-7" / "model.safetensors").exists()
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-6"
    assert torch.equal(weights(run(tmp_path)), expected)
    assert ledger_of(tmp_path) == ledger_of(folder)


def test_one_kill_leaves_the_same_run(whole, tmp_path):
    folder, expected = whole
    killed(tmp_path, "update", "5")
    assert torch.equal(weights(run(tmp_path)), expected)
    assert ledger_of(tmp_path) == ledger_of(folder)


# ---- a full disk, and damage ----


@contextmanager
def files_no_longer_than(size):
    """Writes beyond `size` bytes of a file fail, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class OnFullDisk(ScheduledGRPO):
    """There is room for little when a checkpoint is written."""

    room = 0

    def _save_checkpoint(self, model, trial):
        with files_no_longer_than(self.room):
            super()._save_checkpoint(model, trial)


@pytest.mark.parametrize(("room", "kind"), [(2_000, OSError), (30_000, SafetensorError)])
def test_a_disk_that_is_full_at_a_checkpoint(tmp_path, room, kind):
    """First no room for the scheduler's state, then none for the weights."""
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    tiny.trainer(tmp_path, max_steps=1, **settings).train()
    size = (tmp_path / "checkpoint-1/envsched/step-000001.pt").stat().st_size
    assert 2_000 < size < 30_000 < (tmp_path / "checkpoint-1/model.safetensors").stat().st_size
    trainer = tiny.trainer(tmp_path, OnFullDisk, max_steps=2, **settings)
    trainer.room = room
    expected = r"checkpoint-2: could not be written \(.*Free disk space and resume from the newest"
    with pytest.raises(CheckpointError, match=expected) as caught:
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert isinstance(caught.value.__cause__, kind)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-1"
    assert not (tmp_path / "checkpoint-2").exists()
    tiny.trainer(tmp_path, max_steps=2, **settings).train(resume_from_checkpoint=newest_checkpoint(tmp_path))
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-2"


def test_a_checkpoint_without_scheduler_or_with_a_damaged_one_is_refused(whole, tmp_path):
    folder = tmp_path / "checkpoint-4"
    shutil.copytree(whole[0] / "checkpoint-4", folder)
    file = folder / "envsched" / "step-000002.pt"
    file.write_bytes(file.read_bytes()[:-5])
    trainer = tiny.trainer(tmp_path, per_device_train_batch_size=8, **SETTINGS)
    with pytest.raises(CheckpointError, match=r"checkpoint-4: holds no scheduler state: .*half-written or damaged.*Resume from another"):
        trainer.train(resume_from_checkpoint=str(folder))
    shutil.rmtree(folder / "envsched")
    with pytest.raises(CheckpointError, match="holds no scheduler state: it was written without a scheduler"):
        trainer.train(resume_from_checkpoint=str(folder))


def test_a_checkpoint_is_whole_when_all_its_parts_are(tmp_path):
    assert newest_checkpoint(tmp_path / "none") is None
    for step in (9, 10, 11):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        trainer_state.save_scheduler(folder, 3, {"picks": [1, 2]}, processes=2)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "checkpoint-11" / "trainer_state.json").write_text('{"global_st')
    (tmp_path / "checkpoint-10" / "rng_state_0.pth").write_bytes(b"one of two")
    (tmp_path / "checkpoint-99x").mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-9"
    (tmp_path / "checkpoint-10" / "rng_state_1.pth").write_bytes(b"the other")
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert trainer_state.load_scheduler(tmp_path / "checkpoint-10") == {"rounds": 3, "processes": 2, "scheduler": {"picks": [1, 2]}}
    trainer_state.save_scheduler(tmp_path / "checkpoint-10", 4, {}, processes=2)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-9"
