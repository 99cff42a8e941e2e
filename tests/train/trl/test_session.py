"""A language model's training in its folder: everything is kept, rounds that are played again take the place of the first try."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from envsched_gnn.config import Config, PoolConfig, RolloutConfig, RunConfig, SelectConfig, load_config
from envsched_gnn.config_training import EvaluateConfig, ModelConfig, TrainConfig
from envsched_gnn.errors import CheckpointError, ConfigError, EnvSchedError
from envsched_gnn.eval.metrics import read_run
from envsched_gnn.graph.build import build_graph
from envsched_gnn.ledger import Ledger
from envsched_gnn.pool.manifest import write_manifest
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Selection, Task, Verifier
from envsched_gnn.schedule import EnvSched
from envsched_gnn.schedule.metrics import reward_figures
from envsched_gnn.train.evaluation import read_evaluations
from envsched_gnn.train.session import train
from envsched_gnn.train.trl.build import ScheduledGRPO, build_trainer
from envsched_gnn.train.trl.evaluation import evaluate
from envsched_gnn.train.trl.models import load_model
from envsched_gnn.train.workers import WorkerPool
from tests.train.test_run import tiny_pool
from tests.train.test_session import Told

ROOT = Path(__file__).parents[3]
STEPS = 3
CHANCE = Check(code="import os\ndef check_func(final_state):\n    return os.urandom(1)[0] < 128")
"""Rewards of training differ, so that there is something to learn."""
ENDED = Check(code="def check_func(final_state):\n    return True")
"""Rewards of evaluation are 1 where the policy ended its answer within the limit, else 0."""


def coins() -> Pool:
    """Three shelves of two tasks that pay by chance; one more of each shelf, and a fourth shelf, are held out."""
    shelves = tiny_pool(environments=4).environments

    def task(env_id: str, number: int) -> Task:
        out = env_id == "s3" or number == 2
        verifier = Verifier(checks=(ENDED if out else CHANCE,))
        prompt = f"Flip coin {number} of {env_id}."
        return Task(
            env_id=env_id, task_id=f"t{number}", prompt=prompt, initial_state={"items": {}}, verifier=verifier, info={"held_out": out}
        )

    return Pool(environments=shelves, tasks=tuple(task(f"s{e}", n) for e in range(4) for n in range(3)), source="coins")


def brief_model(folder: Path) -> Path:
    """The tiny model; a quarter of its words end an answer."""
    model, tokenizer = load_model(ModelConfig(kind="language_model", path="tiny"))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(128, 256)]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def configuration(folder: Path, name: str, **run_settings: Any) -> Config:
    """Three rounds of two updates; a checkpoint before round 2 and at the end."""
    return Config(
        pool=PoolConfig(path=str(folder / "pool")),
        select=SelectConfig(batch_size=3),
        rollout=RolloutConfig(num_rollouts=4, workers=1),
        model=ModelConfig(kind="language_model", path=str(folder / "model")),
        train=TrainConfig(learning_rate=0.03, warmup_steps=0, num_iterations=2, max_completion_tokens=6, max_turns=1, checkpoint_every=2),
        evaluate=EvaluateConfig(every=2, tasks=4, samples=3),
        run=RunConfig(**{"name": name, "folder": str(folder / "runs"), "steps": STEPS, "device": "cpu", **run_settings}),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("language")
    write_manifest(coins(), path / "pool")
    brief_model(path / "model")
    return path


def check_whole(folder: Path) -> None:
    """Ledger, figures, evaluations and checkpoints tell of one and the same run of three rounds."""
    record = read_run(folder)
    assert [line["step"] for line in record.rounds] == list(range(STEPS))
    with Ledger(folder / "ledger.sqlite", record.config["run"]["name"], read_only=True) as ledger:
        groups = ledger.groups()
    assert [group.step for group in groups] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all(len(group.rollouts) == 4 for group in groups)
    assert [{rollout.policy_version for group in groups[at : at + 3] for rollout in group.rollouts} for at in (0, 3, 6)] == [{0}, {2}, {4}]
    for line in record.rounds:
        of_step = record.groups.step == line["step"]
        known = [(v, m) for v, m in zip(record.groups.variance[of_step], record.groups.mean[of_step], strict=True) if v == v]
        expected = reward_figures([v for v, _ in known], [m for _, m in known]) if known else {}
        assert {name: line[name] for name in expected} == pytest.approx(expected)
        assert line["envsched/rounds"] == line["step"] + 1
        assert line["seconds_rollout"] > line["seconds_select"] > 0 < line["seconds_update"]
        assert {"trainer/loss", "trainer/completions/mean_length"} <= set(line)
    assert [line["step"] for line in read_evaluations(folder / "evaluations.jsonl")] == [0, 2, 3]
    assert (folder / "trainer" / "checkpoint-6" / "trainer_state.json").is_file()


def test_a_whole_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = Told()
    there = train(configuration(folder, "whole"), progress=told)
    assert there == folder / "runs" / "whole"
    check_whole(there)
    assert sorted(path.name for path in (there / "trainer").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]
    assert told.evaluations == read_evaluations(there / "evaluations.jsonl")
    for line in told.evaluations:
        assert (line["held_out_tasks"]["tasks"], line["held_out_environments"]["tasks"], line["all"]["failed"]) == (2, 2, 0)
    assert 0 < told.evaluations[0]["all"]["reward"] < 1
    untrained, trained = (load_file(path / "model.safetensors") for path in (folder / "model", there / "trainer" / "checkpoint-6"))
    assert not torch.equal(untrained["model.embed_tokens.weight"], trained["model.embed_tokens.weight"])
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "All reward functions" not in printed.err
    train(configuration(folder, "whole"), progress=told)
    assert len(told.evaluations) == 3, "a run that is over is not evaluated again"
    check_whole(there)
    lines = (there / "evaluations.jsonl").read_bytes().splitlines(keepends=True)
    (there / "evaluations.jsonl").write_bytes(b"".join(lines[:2]))
    train(configuration(folder, "whole"), progress=told)
    assert without_seconds(told.evaluations[3]) == without_seconds(told.evaluations[2]), "the checkpoint's weights play"
    check_whole(there)
    longer = configuration(folder, "whole", steps=STEPS + 1)
    train(longer, progress=told)
    assert told.text[-2:] == ["resuming at round 3", "evaluating after 4 rounds"]
    assert len(read_run(there).rounds) == 4
    assert load_config(there / "resolved.toml") == longer
    versions = json.loads((there / "versions.json").read_text())
    assert versions["trl"].startswith("1.")
    assert {"transformers", "accelerate"} <= set(versions)


def without_seconds(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "seconds"}


def test_evaluation_is_repeatable_and_leaves_training_as_it_is(folder: Path) -> None:
    pool = coins()
    config = configuration(folder, "evaluated")
    with WorkerPool(1) as workers:
        scheduler = EnvSched(pool, build_graph(pool), batch_size=3)
        trainer = build_trainer(config, pool, scheduler, folder / "evaluated", workers=workers)
        before = torch.get_rng_state()
        rows = [row for row, task in enumerate(pool.tasks) if task.held_out]
        rewards = evaluate(trainer, pool, rows, 5)
        assert [len(of_task) for of_task in rewards] == [5] * 6
        assert {reward for of_task in rewards for reward in of_task} == {0.0, 1.0}, "truncated answers count"
        assert evaluate(trainer, pool, rows, 5) == rewards
        assert torch.equal(torch.get_rng_state(), before)
        assert trainer.model.training
        assert trainer.num_generations_eval == 3
        assert "_calculate_rewards" not in vars(trainer)
        assert not trainer._metrics["eval"]
        assert trainer.envsched_rounds == 0


class KilledError(BaseException):
    """Ends the process's work at once, as a kill does: nobody catches it."""


def test_a_killed_round_is_played_again_and_takes_the_place_of_the_first_try(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Ledger.write_round

    def write_round(ledger: Ledger, selection: Selection, groups: Any) -> None:
        original(ledger, selection, groups)
        if selection.step == 1:
            raise KilledError

    monkeypatch.setattr(Ledger, "write_round", write_round)
    with pytest.raises(KilledError):
        train(configuration(folder, "killed"))
    monkeypatch.undo()
    there = folder / "runs" / "killed"
    with Ledger(there / "ledger.sqlite", "killed", read_only=True) as ledger:
        first = [group.group_id for group in ledger.groups(0)]
        assert len(ledger.groups()) == 6
    assert len((there / "metrics.jsonl").read_bytes().splitlines()) == 1
    train(configuration(folder, "killed"))
    check_whole(there)
    with Ledger(there / "ledger.sqlite", "killed", read_only=True) as ledger:
        assert [group.group_id for group in ledger.groups(0)] == first, "the scheduler repeats its selection"


KILLED = """
import os, signal, sys
from pathlib import Path
from transformers import Trainer
from envsched_gnn.train.session import train
from tests.train.trl.test_session import configuration

original = Trainer._save_optimizer_and_scheduler

def save(trainer, folder):
    original(trainer, folder)
    if trainer.state.global_step == 6:
        os.kill(os.getpid(), signal.SIGKILL)

Trainer._save_optimizer_and_scheduler = save
train(configuration(Path(sys.argv[1]), "torn"))
"""


@pytest.mark.slow
def test_a_kill_in_the_midst_of_a_checkpoint(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    there = folder / "runs" / "torn"
    assert sorted(path.name for path in (there / "trainer").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]
    told = Told()
    train(configuration(folder, "torn"), progress=told)
    assert "resuming at round 2" in told.text
    check_whole(there)


def patched(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: Callable[[Any], None]) -> None:
    original = getattr(owner, name)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        before(self)
        return original(self, *arguments, **options)

    monkeypatch.setattr(owner, name, call)


def test_ctrl_c_then_a_full_disk_then_an_engine_that_dies_then_ctrl_c_in_an_evaluation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def press(trainer: Any) -> None:
        if trainer.model.training:
            os.kill(os.getpid(), signal.SIGINT)

    def full(trainer: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def die(trainer: Any) -> None:
        if trainer.model.training and trainer.state.global_step == 4:
            raise RuntimeError("EngineCore died\nunexpectedly")

    def press_in_evaluation(trainer: Any) -> None:
        if not trainer.model.training and trainer.state.global_step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    config, there = configuration(folder, "unlucky"), folder / "runs" / "unlucky"
    patched(monkeypatch, ScheduledGRPO, "_generate_single_turn", press)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.undo()
    assert "stopping when this round is done" in capfd.readouterr().err
    assert len(read_run(there).rounds) == 1
    with Ledger(there / "ledger.sqlite", "unlucky", read_only=True) as ledger:
        first = ledger.groups()

    patched(monkeypatch, ScheduledGRPO, "_save_optimizer_and_scheduler", full)
    with pytest.raises(CheckpointError, match=r"checkpoint-4: could not be written .*No space left on device.*Free disk space"):
        train(config)
    monkeypatch.undo()
    assert len(read_run(there).rounds) == 2

    patched(monkeypatch, ScheduledGRPO, "_generate_single_turn", die)
    with pytest.raises(EnvSchedError, match=r"failed \(RuntimeError: EngineCore died\); what was finished is kept.*go on from the last"):
        train(config)
    monkeypatch.undo()
    assert "unexpectedly" in (there / "error.txt").read_text()
    assert len(read_run(there).rounds) == 2
    patched(monkeypatch, ScheduledGRPO, "_generate_single_turn", press_in_evaluation)
    told = Told()
    with pytest.raises(KeyboardInterrupt):
        train(config, progress=told)
    monkeypatch.undo()
    assert "resuming at round 2" in told.text
    assert [line["step"] for line in read_evaluations(there / "evaluations.jsonl")] == [0, 2]
    rounds = (there / "metrics.jsonl").read_bytes()
    train(config)
    check_whole(there)
    assert (there / "metrics.jsonl").read_bytes() == rounds, "no round was played again for the evaluation"
    with Ledger(there / "ledger.sqlite", "unlucky", read_only=True) as ledger:
        assert ledger.groups(0) == first, "the round that Ctrl-C found going was finished, saved and never played again"


def test_uniform_selection_and_lost_figures(folder: Path) -> None:
    there = train(configuration(folder, "uniform", policy="uniform", steps=1))
    assert there is not None
    assert set(read_run(there).groups.phase) == {"uniform"}
    (there / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: holds 0 rounds, its checkpoint 1\. Restore it, or delete"):
        train(configuration(folder, "uniform", policy="uniform", steps=2))


@pytest.mark.slow
def test_two_processes_keep_one_folder(folder: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom envsched_gnn.train.session import train\n"
        "from tests.train.trl.test_session import configuration\nkept = train(configuration(Path(sys.argv[1]), 'two'))\n"
        "sys.stdout.write(f'FOLDER {kept}\\n')"  # in one piece: both processes write to the same pipe
    )
    script = folder / "two.py"
    script.write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = folder / "runs" / "two"
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("FOLDER")) == [f"FOLDER {there}", "FOLDER None"]
    check_whole(there)
    assert [line["all"]["failed"] for line in read_evaluations(there / "evaluations.jsonl")] == [0, 0, 0]
