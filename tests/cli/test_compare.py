"""`envsched compare`: its lists, its table, what it refuses."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from envsched_gnn.cli.main import app

NAMES = [
    *("uniform", "envsched", "paper", "oracle", "dps", "leeps", "dots", "pilot_commit", "mopps"),
    *("sec", "dump", "graph_potts", "pcl", "greso", "bots", "dapo"),
]


def test_the_list_names_all_policies_and_what_is_known_of_them():
    done = CliRunner().invoke(app, ["compare", "--list", "--json"])
    assert done.exit_code == 0
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == NAMES
    fields = {"name", "does", "environments", "shares", "extra_rollouts", "source", "licence", "ours"}
    assert all(set(row) == fields for row in rows)
    extra = [row["name"] for row in rows if row["extra_rollouts"] != "none"]
    assert extra == ["oracle", "dots", "pilot_commit", "dapo"]
    environments = [row["name"] for row in rows if row["environments"] != "nothing"]
    assert environments == ["envsched", "paper", "oracle", "sec", "dump", "bots"]


def test_the_list_is_for_people_too():
    done = CliRunner().invoke(app, ["compare", "--list"])
    assert done.exit_code == 0
    policies, variants = done.stdout.split("\n\n")
    assert [line.split(":")[0] for line in policies.splitlines() if not line.startswith(" ")] == NAMES
    assert [line.split(":")[0].strip() for line in variants.splitlines()[1:]] == [
        *(
            "within_only",
            "cross_only",
            "rho_0",
            "rho_1",
            "exposure_16",
            "exposure_1",
            "neighbours_3_12",
            "neighbours_12_12",
            "neighbours_6_6",
            "neighbours_6_24",
        ),
        *(
            "no_decline",
            "no_reconstruction",
            "no_penalty",
            "no_quotas",
            "dense",
            "dense_both",
            "target_informative",
            "target_std",
            "learned",
            "ensemble",
            "bonus",
            "thompson",
            "recent_8",
            "recent_32",
        ),
    ]


def test_without_anything_to_do_it_is_wrong_usage():
    assert CliRunner().invoke(app, ["compare"]).exit_code == 2


def test_the_list_imports_nothing_heavy():
    code = (
        "import sys\nfrom envsched_gnn.cli.main import app\n"
        "try:\n    app(['compare', '--list'])\nexcept SystemExit:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


TINY = ["simulate.environments=4", "simulate.tasks=8", "run.steps=3", "select.batch_size=4", "rollout.num_rollouts=4"]
SETTINGS = [part for setting in TINY for part in ("-s", setting)]


def test_a_comparison_from_end_to_end(tmp_path):
    """Runs in processes; the same command again makes nothing and says the same."""
    command = ["compare", "--policies", "paper", "--seeds", "0", "--processes", "2", "--folder", str(tmp_path / "runs"), *SETTINGS]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out" / "compare_tiny.json")])
    assert done.exit_code == 0, done.output
    assert "0 runs left" in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("uniform ", "oracle ", "paper "))]
    assert [row.split()[0] for row in rows] == ["uniform", "oracle", "paper"]
    assert "one seed: no interval" in done.stdout
    written = json.loads((tmp_path / "out" / "compare_tiny.json").read_text())
    assert [(row["policy"], row["seed"]) for row in written["rows"]] == [("uniform", 0), ("oracle", 0), ("paper", 0)]
    assert (tmp_path / "out" / "compare_tiny.svg").read_text().startswith("<?xml")
    again = CliRunner().invoke(app, [*command, "--json"])
    assert again.exit_code == 0
    assert again.stderr.splitlines() == ["3 of 3 runs are finished already"]
    assert json.loads(again.stdout)["summary"] == written["summary"]
    other = CliRunner().invoke(app, [*command, "-s", "simulate.drift=0.5"])
    assert (other.exit_code, other.stdout) == (1, "")
    assert "simulate.drift = 0.01 there and 0.5 now" in other.stderr
    part = str(tmp_path / "out" / "compare_tiny.json")
    joined = CliRunner().invoke(app, ["compare", "--join", part, "--join", part, "-o", str(tmp_path / "joined.json"), "--json"])
    assert joined.exit_code == 0, joined.output
    assert json.loads(joined.stdout)["summary"] == written["summary"]
    for wrong in (["--join", part], ["--join", part, "-o", part, "--policies", "paper"]):
        assert CliRunner().invoke(app, ["compare", *wrong]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policies", "mops"], "Did you mean 'mopps'?"),
        (["--policies", "paper:rho0"], "Did you mean 'rho_0'?"),
        (["--policies", "paper", "--seeds", "x"], "--seeds 'x': expected numbers from 0"),
        (["--policies", "paper", "-s", "evaluate.tasks=0"], "evaluate.tasks = 0: expected at least 1: a comparison needs a learning curve"),
        (["--policies", "paper", "-s", "simulate.taks=3"], "Did you mean simulate.tasks?"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, said):
    done = CliRunner().invoke(app, ["compare", *arguments])
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr
