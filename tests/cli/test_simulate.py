"""`envsched simulate`."""

import json
from pathlib import Path

from typer.testing import CliRunner

from envsched_gnn.cli.main import app
from envsched_gnn.eval.simulate import CAUTION

SMALL = ["--environments", "6", "--tasks", "5", "--steps", "3", "-s", "select.batch_size=6", "-s", "evaluate.tasks=4"]


def test_table_json_and_resuming(tmp_path: Path) -> None:
    command = ["simulate", "--policy", "paper", "--seed", "4", *SMALL, "-s", f"run.folder={tmp_path}"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("paper, 6 environments, 30 tasks, structure 1, seed 4: 3 rounds, 144 rollouts, ")
    assert lines[1].split("  ")[0] == "rounds"
    assert [line.split()[0] for line in lines[2:5]] == ["early", "middle", "late"]
    assert lines[-1] == CAUTION
    folder = tmp_path / "simulate-paper-6x5-seed4"
    assert f"run folder {folder}" in result.stdout
    assert "# -s run.policy=paper\n" in (folder / "config.toml").read_text()
    before = (folder / "metrics.jsonl").read_bytes()
    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["caution"], figures["policy"], figures["seed"], len(figures["thirds"])) == (CAUTION, "paper", 4, 3)
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_file_and_fewer_rounds_than_thirds(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[run]\nname = "mine"\npolicy = "uniform"\nsteps = 2\n[simulate]\nenvironments = 3\ntasks = 4\n')
    result = CliRunner().invoke(
        app, ["simulate", "-c", str(tmp_path / "c.toml"), "-s", f"run.folder={tmp_path}", "-s", "select.batch_size=3"]
    )
    assert result.exit_code == 0, result.output
    assert [line.split("  ")[0] for line in result.stdout.splitlines()[2:4]] == ["rounds 1 to 1", "rounds 2 to 2"]
    assert result.stdout.splitlines()[2].split()[-1] == "-"
    assert (tmp_path / "mine" / "graph.pt").is_file()


def test_mistakes(tmp_path: Path) -> None:
    for arguments, sentence in (
        (["simulate", "-s", "simulate.enviroments=3"], "Did you mean simulate.environments?"),
        (["simulate", "--environments", "0"], "simulate.environments = 0: expected at least 1"),
        (["run", "-c", str(tmp_path / "c.toml"), "-s", "run.policy=oracle"], "Use envsched simulate --policy oracle"),
    ):
        (tmp_path / "c.toml").write_text("")
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert sentence in result.stderr
    assert CliRunner().invoke(app, ["simulate", "--policy", "best"]).exit_code == 2
