"""`replay` and `diagnose` on the folder of a run that was really made: a small ToolWorld, scripted, uniform."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envsched_gnn.cli.main import app
from envsched_gnn.config import to_toml
from envsched_gnn.eval.replay.predictors import NAMES
from envsched_gnn.pool.manifest import write_manifest
from tests.train.test_run import tiny_pool

TABLE = {
    "pool": {"toolworld": {"environments": 9, "tasks": 4}},
    "select": {"batch_size": 9},
    "rollout": {"num_rollouts": 3, "workers": 1, "skill_start": 0.6},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    settings = {"run": {"name": "r", "folder": str(path), "steps": 8, "policy": "uniform", "device": "cpu"}}
    (path / "c.toml").write_text(to_toml(TABLE | settings))
    result = CliRunner().invoke(app, ["run", "-c", str(path / "c.toml")])
    assert result.exit_code == 0, result.output
    return path / "r"


def test_replay(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "replay.json"
    printed = CliRunner().invoke(app, ["replay", str(run), "--predictor", "own", "--predictor", "mixture", "-o", str(out)])
    assert printed.exit_code == 0, printed.output
    assert printed.stderr == ""
    assert "ledger r (real), policy uniform\njudged: 63 groups in 7 steps\n" in printed.stdout
    assert "Every pick was uniform" in printed.stdout
    result = json.loads(CliRunner().invoke(app, ["replay", str(run / "ledger.sqlite"), "--json"]).stdout)
    assert {row["predictor"] for row in result["rows"]} == set(NAMES)
    assert {"own", "mixture", "learned", "ensemble"} <= set(NAMES)
    assert (result["observed"], result["selected"]) == (72, 72)
    written = json.loads(out.read_text())
    assert written["rows"] == [row for row in result["rows"] if row["predictor"] in ("own", "mixture")]


def test_diagnose(run: Path, tmp_path: Path) -> None:
    arguments = ["diagnose", str(run), "--permutations", "99"]
    result = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert (result["groups"], result["observed_tasks"], result["environments"], result["groups_per_task"]) == (72, 36, 9, 2.0)
    tests = {(row["relation"], row["view"]) for row in result["views"]}
    assert tests == {
        *(("within", view) for view in ("initial_context", "instruction_words", "instruction_characters")),
        *(("within", view) for view in ("verifier_text", "verifier_structure", "operations")),
        *(("cross", view) for view in ("ops", "gates", "deps", "reward")),
    }
    assert all(0.01 <= row["p"] <= row["p_holm"] <= 1 for row in (*result["relations"], *result["views"]) if row["p"] is not None)
    assert sum(row["p"] is not None for row in result["relations"]) == 6
    printed = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "d.json")])
    assert printed.exit_code == 0, printed.output
    assert json.loads((tmp_path / "d.json").read_text()) == result
    assert "observed: 72 groups of 36 tasks in 9 environments, median 2.0 groups a task" in printed.stdout


def test_another_pool_is_refused_and_both_are_named(run: Path, tmp_path: Path) -> None:
    write_manifest(tiny_pool(), tmp_path / "pool")
    for verb in ("replay", "diagnose"):
        result = CliRunner().invoke(app, [verb, str(run), "--pool", str(tmp_path / "pool")])
        assert (result.exit_code, result.stdout) == (1, "")
        there = json.loads((run / "pool.json").read_text())
        assert f"a ledger of pool {there['source']!r} of hash {there['content_hash'][:12]}, but pool " in result.stderr
        assert str(tmp_path / "pool") in result.stderr


@pytest.mark.parametrize("verb", ["replay", "diagnose"])
def test_no_ledger_is_one_sentence(verb: str, tmp_path: Path) -> None:
    for path, found in ((tmp_path / "none", "no such file or folder"), (tmp_path, "no ledger.sqlite in it")):
        result = CliRunner().invoke(app, [verb, str(path)])
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"error: {path}: {found}; expected a run folder, or a ledger. Give the folder that envsched run wrote.\n"


def test_a_lost_graph_is_built_again(run: Path) -> None:
    before = CliRunner().invoke(app, ["replay", str(run), "--json"]).stdout
    (run / "graph.pt").unlink()
    assert CliRunner().invoke(app, ["replay", str(run), "--json"]).stdout == before
