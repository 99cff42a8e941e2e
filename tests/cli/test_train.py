"""`train`: the pocket model learns in a run folder; progress on stderr, the report's path on stdout, Ctrl-C tells how to resume."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from envsched_gnn.cli.main import app
from envsched_gnn.config import to_toml
from envsched_gnn.eval.metrics import read_run
from tests.train.test_run import ledger_rows
from tests.train.test_session import evaluations_in

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small environments, one of them held out; a policy that was hardly taught."""
    folder = tmp_path_factory.mktemp("train")
    shares = {"held_out_tasks": 0.25, "held_out_environments": 0.25}
    (folder / "c.toml").write_text(
        to_toml(
            {
                "pool": {"path": "toolworld", "taught_share": 0.25, "toolworld": {"environments": 4, "tasks": 8, **shares}},
                "select": {"batch_size": 4},
                "rollout": {"num_rollouts": 4, "workers": 1},
                "model": {"hidden_size": 32, "layers": 1, "warm_start_batches": 25},
                "train": {"learning_rate": 0.01, "warmup_steps": 0, "max_completion_tokens": 24, "checkpoint_every": 2},
                "evaluate": {"every": 2, "tasks": 6, "samples": 2},
                "run": {"name": "t", "folder": str(folder / "runs"), "steps": 3, "device": "cpu"},
            }
        )
    )
    return folder / "c.toml"


@pytest.fixture(scope="module")
def whole(config: Path) -> tuple[Path, Result]:
    """The folder of an uninterrupted run of three rounds, and what the command printed."""
    return config.parent / "runs" / "t", CliRunner().invoke(app, ["train", "-c", str(config)])


def test_a_run(whole: tuple[Path, Result]) -> None:
    folder, result = whole
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{folder / 'report.html'}\n"
    said = ("warming the pocket model up", "step 3/3  reward ", "rank correlation ", "evaluation after 3 rounds: reward on held-out tasks ")
    assert [text for text in said if text not in result.stderr] == []
    files = {
        "config.toml",
        "resolved.toml",
        "versions.json",
        "pool.json",
        "graph.pt",
        "ledger.sqlite",
        "metrics.jsonl",
        "evaluations.jsonl",
    }
    assert files <= set(os.listdir(folder))
    record = read_run(folder)
    assert record.evaluations is not None
    assert [line["step"] for line in record.evaluations] == [0, 2, 3]
    assert all(line["seconds_generate"] > 0 and line["seconds_play"] > 0 for line in record.rounds)
    assert "envsched train -c" in (folder / "report.html").read_text()


def test_more_rounds_then_another_scheduler(config: Path, whole: tuple[Path, Result], tmp_path: Path) -> None:
    shutil.copytree(whole[0], tmp_path / "t")
    elsewhere = ["-s", f"run.folder={tmp_path}", "-s", "run.steps=4"]
    more = CliRunner().invoke(app, ["train", "-c", str(config), *elsewhere])
    assert more.exit_code == 0, more.output
    assert "resuming at round 3" in more.stderr
    figures = json.loads(CliRunner().invoke(app, ["report", str(tmp_path / "t"), "--json"]).stdout)
    assert (figures["rounds"], [line["step"] for line in figures["evaluations"]]) == (4, [0, 2, 3, 4])
    clash = CliRunner().invoke(app, ["train", "-c", str(config), "--select", "uniform", *elsewhere])
    assert clash.exit_code == 1
    assert "run.policy = 'envsched' there and 'uniform' now. Choose another run.name" in clash.stderr
    uniform = CliRunner().invoke(app, ["train", "-c", str(config), "--select", "uniform", "-s", "run.name=u", "-s", "run.steps=1"])
    assert uniform.exit_code == 0, uniform.output
    assert set(read_run(whole[0].parent / "u").groups.phase) == {"uniform"}


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(config: Path, whole: tuple[Path, Result]) -> None:
    code = "from envsched_gnn.cli.main import app; app()"
    command = [sys.executable, "-c", code, "train", "-c", str(config), "--select", "envsched", "-s", "run.name=stopped"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = whole[0].parent / "stopped"
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not ((folder / "evaluations.jsonl").exists() and (folder / "evaluations.jsonl").stat().st_size):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert f"To resume: envsched train -c {config} -s run.name=stopped -s run.policy=envsched" in err
    assert "Traceback" not in err
    again = CliRunner().invoke(app, ["train", "-c", str(config), "-s", "run.name=stopped"])
    assert again.exit_code == 0, again.output
    assert ledger_rows(folder) == ledger_rows(whole[0])
    assert evaluations_in(folder) == evaluations_in(whole[0])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["train.learning_rte=1"], "unknown key train.learning_rte. Did you mean train.learning_rate?"),
        (["train.learning_rate=0"], "train.learning_rate = 0.0: expected a positive number"),
        (["rollout.num_rollouts=1"], "at least 2: one rollout has no variance"),
        (["model.kind=language_model"], "model.path = ''"),
        (["model.kind=language_model", "model.path=/nowhere/model"], "model.path = '/nowhere/model'"),
        (["model.kind=language_model", "model.path=tiny", "train.algorithm=rloo"], "RLOOTrainer calls no tools"),
        (["pool.taught_share=0"], "taught"),
        (["predict.preset=paper"], "Set run.policy = 'paper'"),
    ],
)
def test_bad_settings_are_one_sentence(config: Path, settings: list[str], sentence: str, tmp_path: Path) -> None:
    settings = [*settings, f"run.folder={tmp_path}"]
    result = CliRunner().invoke(app, ["train", "-c", str(config), *(part for setting in settings for part in ("-s", setting))])
    assert result.exit_code == 1, result.output
    assert sentence in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.glob("t/metrics.jsonl")), "nothing has begun, so the mistake can be mended under the same name"
