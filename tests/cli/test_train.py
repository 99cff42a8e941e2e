"""`train`: the pocket model learns in a run folder; progress on stderr, the report's path on stdout, Ctrl-C tells how to resume."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envsched_gnn.cli.main import app
from envsched_gnn.config import to_toml
from envsched_gnn.eval.metrics import read_run
from tests.train.test_run import ledger_rows

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Four small environments, one of them held out; a policy that was hardly taught."""
    shares = {"held_out_tasks": 0.25, "held_out_environments": 0.25}
    path = tmp_path / "c.toml"
    path.write_text(
        to_toml(
            {
                "pool": {"path": "toolworld", "taught_share": 0.25, "toolworld": {"environments": 4, "tasks": 8, **shares}},
                "select": {"batch_size": 4},
                "rollout": {"num_rollouts": 4, "workers": 1},
                "model": {"hidden_size": 32, "layers": 1, "warm_start_batches": 25},
                "train": {"learning_rate": 0.01, "warmup_steps": 0, "max_completion_tokens": 24, "checkpoint_every": 2},
                "evaluate": {"every": 2, "tasks": 6, "samples": 2},
                "run": {"name": "t", "folder": str(tmp_path / "runs"), "steps": 3, "device": "cpu"},
            }
        )
    )
    return path


def test_train_then_resume_then_another_scheduler(config: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "-c", str(config)])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / "t"
    assert result.stdout == f"{folder / 'report.html'}\n"
    for text in (
        "warming the pocket model up",
        "step 3/3  reward ",
        "rank correlation ",
        "evaluation after 3 rounds: reward on held-out tasks ",
    ):
        assert text in result.stderr
    assert {"config.toml", "resolved.toml", "versions.json", "pool.json", "graph.pt", "ledger.sqlite", "metrics.jsonl"} <= set(
        os.listdir(folder)
    )
    record = read_run(folder)
    assert record.evaluations is not None
    assert [line["step"] for line in record.evaluations] == [0, 2, 3]
    assert all(line["seconds_generate"] > 0 and line["seconds_learn"] >= 0 for line in record.rounds)
    assert [name for name, count in zip(record.groups.keys, record.groups.step, strict=True) if count > 2] == []

    more = CliRunner().invoke(app, ["train", "-c", str(config), "-s", "run.steps=4"])
    assert more.exit_code == 0, more.output
    assert "resuming at round 3" in more.stderr
    figures = json.loads(CliRunner().invoke(app, ["report", str(folder), "--json"]).stdout)
    assert (figures["rounds"], [line["step"] for line in figures["evaluations"]]) == (4, [0, 2, 3, 4])
    assert "envsched train -c" in (folder / "report.html").read_text()

    clash = CliRunner().invoke(app, ["train", "-c", str(config), "-s", "run.steps=4", "--select", "uniform"])
    assert clash.exit_code == 1
    assert "run.policy = 'envsched' there and 'uniform' now. Choose another run.name" in clash.stderr
    uniform = CliRunner().invoke(app, ["train", "-c", str(config), "--select", "uniform", "-s", "run.name=u", "-s", "run.steps=1"])
    assert uniform.exit_code == 0, uniform.output
    assert set(read_run(tmp_path / "runs" / "u").groups.phase) == {"uniform"}
    paper = CliRunner().invoke(app, ["train", "-c", str(config), "--select", "paper", "-s", "run.name=p", "-s", "run.steps=1"])
    assert paper.exit_code == 0, paper.output
    assert 'policy = "paper"' in (tmp_path / "runs" / "p" / "resolved.toml").read_text()


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(config: Path, tmp_path: Path) -> None:
    whole = CliRunner().invoke(app, ["train", "-c", str(config), "-s", "run.name=whole"])
    assert whole.exit_code == 0, whole.output
    code = "from envsched_gnn.cli.main import app; app()"
    command = [sys.executable, "-c", code, "train", "-c", str(config), "--select", "envsched", "-s", "run.name=stopped"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = tmp_path / "runs" / "stopped"
    deadline = time.monotonic() + 60
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
    assert ledger_rows(folder) == ledger_rows(tmp_path / "runs" / "whole")
    lines = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in read_run(f).evaluations or []]
        for f in (folder, folder.parent / "whole")
    ]
    assert lines[0] == lines[1]


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
def test_bad_settings_are_one_sentence(config: Path, settings: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["train", "-c", str(config), *(part for setting in settings for part in ("-s", setting))])
    assert result.exit_code == 1, result.output
    assert sentence in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.stderr
