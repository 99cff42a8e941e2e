"""`run` and `report`: results on stdout, progress on stderr, Ctrl-C keeps what is done."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from envsched_gnn.cli.display import Live, Plain, figures, seconds
from envsched_gnn.cli.main import app
from envsched_gnn.config import to_toml
from envsched_gnn.pool.manifest import write_manifest
from tests.train.test_run import ledger_rows, tiny_pool

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_manifest(tiny_pool(), tmp_path / "pool")
    path = tmp_path / "c.toml"
    path.write_text(
        to_toml(
            {
                "pool": {"path": str(tmp_path / "pool")},
                "select": {"batch_size": 4},
                "rollout": {"num_rollouts": 3, "workers": 1},
                "run": {"name": "r", "folder": str(tmp_path / "runs"), "steps": 2, "device": "cpu"},
            }
        )
    )
    return path


def test_run_then_resume_then_report(config: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "-c", str(config), "-s", "select.penalty=0.25"])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / "r"
    assert result.stdout == f"{folder / 'report.html'}\n"
    assert "step 2/2  reward " in result.stderr
    assert (folder / "config.toml").read_text() == config.read_text() + "# -s select.penalty=0.25\n"
    assert "penalty = 0.25" in (folder / "resolved.toml").read_text()

    more = CliRunner().invoke(app, ["run", "-c", str(config), "-s", "select.penalty=0.25", "-s", "run.steps=3"])
    assert more.exit_code == 0
    assert "resuming at round 2" in more.stderr
    assert len(ledger_rows(folder)["selections"]) == 12

    (folder / "report.html").unlink()
    report = CliRunner().invoke(app, ["report", str(folder)])
    assert report.exit_code == 0
    assert (folder / "report.html").is_file()
    figures = json.loads(CliRunner().invoke(app, ["report", str(folder), "--json"]).stdout)
    assert (figures["name"], figures["policy"], figures["rounds"], figures["rollouts"]) == ("r", "envsched", 3, 36)
    assert set(figures["figures"]["zero_variance_share"]) == {"mean", "first", "last"}


def test_other_settings_are_one_sentence(config: Path) -> None:
    assert CliRunner().invoke(app, ["run", "-c", str(config), "-s", "run.steps=1"]).exit_code == 0
    result = CliRunner().invoke(app, ["run", "-c", str(config), "-s", "run.seed=1"])
    assert result.exit_code == 1
    assert "run.seed = 0 there and 1 now" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_keeps_what_is_done_and_says_how_to_resume(config: Path, tmp_path: Path) -> None:
    code = "from envsched_gnn.cli.main import app; app()"
    command = [sys.executable, "-c", code, "run", "-c", str(config), "-s", "run.steps=100000"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    metrics = tmp_path / "runs" / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert "everything finished is kept" in err
    assert f"envsched run -c {config} -s run.steps=100000" in err
    assert "Traceback" not in err
    assert len(ledger_rows(tmp_path / "runs" / "r")["groups"]) >= 4


LINE: dict[str, Any] = {
    "step": 0,
    "reward_mean": 0.5,
    "variance_mean": None,
    "zero_variance_share": 0.25,
    "environments": 3,
    "envsched/round/rank_correlation": 0.412,
    "seconds_rollout": 3.0,
    "seconds_select": 0.01,
    "seconds_update": 1.5,
    "seconds_save": None,
}
PART: dict[str, Any] = {"tasks": 3, "reward": 0.25, "solved": 0.0, "failed": 0}
EVALUATION: dict[str, Any] = {"step": 2, "seconds": 1.25, "held_out_tasks": PART, "held_out_environments": PART | {"reward": None}}


def test_progress_on_a_terminal_and_in_a_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    for shown in (Plain(3), Live(3)):
        with shown:
            shown.stage("reading")
            shown.stage("warning: a [red] one")
            shown.group(1, 4)
            shown.round(LINE)
            shown.evaluated(EVALUATION)
            shown.round({**LINE, "step": 1})
    printed = capsys.readouterr()
    assert printed.out == ""
    watched = "reward 0.50  variance -  without variance 0.25  environments 3  rank correlation 0.41"
    assert printed.err.count(watched) == 3, "two lines in the log, one at the end on the terminal"
    assert f"step 2/3  {watched}  4.5 s: rollout 3.0, update 1.5  0:0" in printed.err
    seen = "evaluation after 2 rounds: reward on held-out tasks 0.250 (3 tasks), held-out environments - (3 tasks), 1.2 s"
    assert printed.err.count(seen) == 2
    assert printed.err.count("warning: a [red] one") == 2
    assert "steps" in printed.err


def test_uniform_selection_has_no_rank_correlation() -> None:
    assert figures({"step": 0, "reward_mean": 0.5}).endswith("environments -  rank correlation -")
    assert seconds({"seconds_save": None}) == ""
