"""The command line: its verbs and options, its exit codes, what it imports."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from envsched_gnn.cli.main import app

ROOT = Path(__file__).parent.parent.parent
SURFACE = {
    "compare": {
        *(
            "-c",
            "--config",
            "--in",
            "--policies",
            "--seeds",
            "--processes",
            "--folder",
            "-o",
            "--out",
            "-s",
            "--set",
            "--list",
            "--join",
            "--json",
        ),
    },
    "diagnose": {"LEDGER", "--pool", "--graph", "--permutations", "--seed", "-s", "--set", "-o", "--out", "--json"},
    "doctor": {"-c", "--config", "--memory-gb", "--devices", "-s", "--set", "--json"},
    "explain": {"GRAPH.pt", "--task", "--history", "--preset", "--predictor", "--weights", "--step", "--batch-size", "--seed", "--json"},
    "fit": {"LEDGER...", "-o", "--out", "--split", "--seed", "--pool", "--graph", "-s", "--set", "--json"},
    "graph build": {"pool", "-o", "--out", "--similarity", "--embedding", "--device", "-s", "--set"},
    "graph export": {"graph", "-o", "--out"},
    "pool audit": {"POOL", "--repeats", "--workers", "-s", "--set", "--json"},
    "pool convert": {"POOL", "-o", "--out", "--form", "-s", "--set"},
    "pool shuffle": {"POOL", "OUT", "--seed", "-s", "--set"},
    "pool show": {"POOL", "-s", "--set", "--json"},
    "replay": {"LEDGER", "--pool", "--graph", "--predictor", "-s", "--set", "-o", "--out", "--json"},
    "report": {"RUN", "--json"},
    "run": {"-c", "--config", "--select", "-s", "--set"},
    "simulate": {"-c", "--config", "--policy", "--environments", "--tasks", "--steps", "--seed", "-s", "--set", "--json"},
    "train": {"-c", "--config", "--select", "-s", "--set"},
    "select": {"GRAPH.pt", "--history", "--preset", "--predictor", "--weights", "--step", "--batch-size", "--seed", "--scores", "--json"},
}
HEAVY = {
    *("torch", "torch_geometric", "scipy", "sklearn", "matplotlib", "pandas", "pyarrow"),
    *("transformers", "sentence_transformers", "trl", "datasets", "accelerate"),
}


def surface(command: Any, path: str = "") -> dict[str, set[str]]:
    """Options and arguments of every verb."""
    if hasattr(command, "commands"):
        found: dict[str, set[str]] = {}
        for name, sub in command.commands.items():
            found |= surface(sub, f"{path} {name}".strip())
        return found
    names: set[str] = set()
    for parameter in command.params:
        if parameter.name != "help":
            names |= {parameter.metavar or str(parameter.name)} if parameter.param_type_name == "argument" else set(parameter.opts)
    return {path: names}


def test_the_surface_is_frozen() -> None:
    assert surface(typer.main.get_command(app)) == SURFACE


def test_help_imports_neither_torch_nor_the_heavy_rest() -> None:
    code = (
        "import sys\nfrom envsched_gnn.cli.main import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
        f"heavy = {HEAVY} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy), code)"
    )
    for arguments in (["--help"], ["select", "--help"], ["run", "--help"], ["train", "--help"], ["pool", "audit", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "HEAVY [] 0" in done.stdout
        assert "Usage" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["select"],
        ["nothing"],
        ["run", "-c"],
        ["train"],
        ["train", "-c", "c.toml", "--select", "best"],
        ["select", "g.pt", "--preset", "best"],
        ["pool", "convert", "x"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "-c", "none.toml"], "none.toml: no such file"),
        (["train", "-c", "none.toml"], "none.toml: no such file"),
        (["report", "none"], "not a run folder"),
        (["pool", "show", "none"], "none"),
        (["graph", "export", "none.pt", "-o", "x.npz"], "none.pt: no such file"),
        (["select", "none.pt"], "none.pt: no such file"),
        (["select", "none.pt", "--history", "none.jsonl"], "none.jsonl: cannot be read (No such file or directory)"),
        (["pool", "show", "toolworld", "-s", "pool.toolworld.enviroments=3"], "Did you mean pool.toolworld.environments?"),
    ],
)
def test_a_mistake_is_one_sentence_with_a_cure_and_exits_with_1(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["pool", "convert", "toolworld", "-s", "pool.toolworld.environments=1", "-s", "pool.toolworld.tasks=1", "-o", "FILE/out"],
        ["pool", "convert", "toolworld", "-s", "pool.toolworld.environments=1", "-s", "pool.toolworld.tasks=1", "-o", "FILE"],
        ["run", "-c", "FILE", "-s", "run.folder=FILE", "-s", "pool.toolworld.environments=1", "-s", "pool.toolworld.tasks=1"],
        ["run", "-c", "FILE/c.toml"],
        ["report", "FILE"],
        ["select", "FILE/g.pt"],
        ["select", "FILE", "--history", "FILE/h.jsonl"],
        ["graph", "build", "FILE/pool", "-o", "g.pt"],
    ],
)
def test_a_path_that_cannot_be_used_is_one_sentence(arguments: list[str], tmp_path: Path) -> None:
    """A file where a folder is needed fails for every user, root too."""
    file = tmp_path / "file"
    file.write_text("")
    result = CliRunner().invoke(app, [argument.replace("FILE", str(file)) for argument in arguments])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error: " in result.stderr
    assert str(file) in result.stderr
    assert file.read_text() == ""
    assert isinstance(result.exception, SystemExit), result.exception


def test_doctor() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    states = {finding["name"]: finding["state"] for finding in report["findings"]}
    assert report["ok"] is True
    for name in ("python", "torch", "torch-geometric", "devices", "workers", "writing"):
        assert states[name] == "ok"
    assert set(states.values()) <= {"ok", "missing"}


def test_a_package_that_training_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.delitem(sys.modules, "envsched_gnn.train.pocket.language", raising=False)
    (tmp_path / "c.toml").write_text("[pool.toolworld]\nenvironments = 2\ntasks = 4\n")
    result = CliRunner().invoke(app, ["doctor", "-c", str(tmp_path / "c.toml")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: the package tokenizers is not installed. Install what training needs: pip install 'envsched-gnn[rl]'.\n"
    )
