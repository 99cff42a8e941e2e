"""`envsched compare --list`."""

import json
import subprocess
import sys

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
    assert [line.split(":")[0] for line in done.stdout.splitlines() if not line.startswith(" ")] == NAMES


def test_without_anything_to_do_it_is_wrong_usage():
    assert CliRunner().invoke(app, ["compare"]).exit_code == 2


def test_the_list_imports_nothing_heavy():
    code = (
        "import sys\nfrom envsched_gnn.cli.main import app\n"
        "try:\n    app(['compare', '--list'])\nexcept SystemExit:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
