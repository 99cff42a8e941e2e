"""`envsched fit`: what is gathered, which groups are left out, what is written, which ledgers are refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from envsched_gnn.cli.main import app
from envsched_gnn.errors import HistoryError
from envsched_gnn.eval.replay import fit as module
from envsched_gnn.eval.replay.fit import fit, gather, joined
from envsched_gnn.eval.replay.judge import judge
from envsched_gnn.graph.io import save_graph
from envsched_gnn.models.weights import load_weights
from envsched_gnn.schedule.uniform import Uniform
from tests.eval.ledgers import recorded_of, write_ledger
from tests.schedule.small import graph_of


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPOCHS", 2)


def made(groups: int = 120, seed: int = 0):
    """Ten groups a step, of 40 tasks in 8 environments; every third task never shows variance."""
    graph = graph_of([row // 5 for row in range(40)])
    graph.pool_hash = "a" * 64
    tasks = torch.randint(40, (groups,), generator=torch.Generator().manual_seed(seed))
    return recorded_of(graph, tasks, torch.where(tasks % 3 == 0, 0.0, 0.2))


def test_what_is_gathered_is_what_the_mixture_would_have_said() -> None:
    recorded = made()
    gathered = gather(recorded)
    said = judge(recorded, ["mixture"]).predicted["informative", "mixture"]
    np.testing.assert_allclose(gathered.mixture[10:].numpy(), said, rtol=0, atol=1e-15)
    assert gathered.groups.outcome[:, 0].tolist() == (recorded.statistics.variance > 0).float().tolist()
    assert gathered.step.tolist() == [k // 10 for k in range(120)]


def test_splits() -> None:
    recorded = made()
    gathered = gather(recorded)
    assert gathered.late.tolist() == [k >= 80 for k in range(120)]
    env = recorded.graph["task"].env_index[recorded.tasks]
    aside = set(env[gathered.aside].tolist())
    assert 0 < len(aside) < 8
    assert aside.isdisjoint(env[~gathered.aside].tolist())


def test_steps_of_two_ledgers_are_not_one() -> None:
    both = joined([gather(made()), gather(made(seed=1))])
    assert both.step.tolist() == [k // 10 for k in range(240)]
    assert len(both.groups.nodes) == 240


@pytest.mark.parametrize("split", ["time", "environment"])
def test_weights_are_written_and_figures_told(split: str, tmp_path: Path) -> None:
    recorded = made()
    result = fit([recorded, made(seed=1)], tmp_path / "w.pt", split)  # type: ignore[arg-type]
    assert (result["groups"], result["fitted_on"] + result["judged_on"]) == (240, 240)
    assert result["content"] == "abstract records of pool aaaaaaaaaaaa"
    assert set(result["mixture"]) == {"log_likelihood", "spearman", "calibration_error"}
    assert load_weights(tmp_path / "w.pt", recorded.graph)["trained"] == 240
    again = fit([recorded, made(seed=1)], tmp_path / "v.pt", split)  # type: ignore[arg-type]
    assert again["learned"] == result["learned"]


def test_few_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="40 observed groups, 30 of them to fit on with --split time; expected at least 50") as error:
        fit([made(40)], tmp_path / "w.pt")
    assert "is the mixture, until it has seen as many" in str(error.value)
    assert not (tmp_path / "w.pt").exists()


def test_ledgers_of_unlike_graphs_are_refused(tmp_path: Path) -> None:
    other = graph_of([row // 5 for row in range(40)])
    other.pool_hash = "b" * 64
    with pytest.raises(HistoryError, match=r"records of pool bbbbbbbbbbbb, 6 \+ 12 neighbours, beside .* records of pool aaaaaaaaaaaa"):
        fit([made(), replace(made(), graph=other)], tmp_path / "w.pt")


def test_the_command(tmp_path: Path) -> None:
    graph = graph_of([row // 5 for row in range(40)])
    save_graph(graph, tmp_path / "g.pt")
    write_ledger(tmp_path / "l.sqlite", Uniform(None, graph, batch_size=10), 9, lambda key, step: [0.0, float(sum(map(ord, key)) % 2)])
    arguments = ["fit", str(tmp_path / "l.sqlite"), "--graph", str(tmp_path / "g.pt"), "-o", str(tmp_path / "w.pt")]
    shown = CliRunner().invoke(app, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["groups"] == 90
    assert "judged on 30" in CliRunner().invoke(app, arguments).stdout
    wrong = CliRunner().invoke(app, ["fit", str(tmp_path / "none"), "-o", str(tmp_path / "w.pt")])
    assert (wrong.exit_code, "no such file or folder" in wrong.stderr) == (1, True)
