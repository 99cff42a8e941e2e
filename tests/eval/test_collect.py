"""Rows of several replays in one file."""

import json
import sys

import pytest

from envsched_gnn.errors import HistoryError
from envsched_gnn.eval.replay import collect
from envsched_gnn.eval.replay.result import replay
from tests.eval.ledgers import recorded_of
from tests.schedule.small import graph_of


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    tasks = list(range(40)) * 4
    recorded = recorded_of(graph_of([task // 10 for task in range(40)]), tasks, [0.1 if task % 2 else 0.0 for task in tasks])
    path = tmp_path_factory.mktemp("replay") / "made.json"
    path.write_text(json.dumps(replay(recorded, ["own", "mixture"])))
    return path


def test_a_row_a_ledger_target_and_predictor(result, tmp_path, monkeypatch):
    out = tmp_path / "predictors.json"
    monkeypatch.setattr(sys, "argv", ["collect", str(result), str(result), "-o", str(out)])
    collect.main()
    found = json.loads(out.read_text())
    said = [(row["predictor"], row["target"]) for row in found["rows"]]
    assert said == [(name, target) for name in ("own", "mixture") for target in ("variance", "informative")] * 2
    wanted = {"ledger", "kind", "target", "predictor", "spearman", "spearman_low", "spearman_high", "mae", "precision_at_batch"}
    assert all(wanted <= row.keys() for row in found["rows"])
    assert found["rows"][0]["kind"] == "real"
    # Half of the tasks have variance, always the same: after three judged steps in which nothing is known, each rank is right.
    assert found["rows"][0]["spearman"] == pytest.approx(12 / 15)
    assert {(pair["predictor"], pair["minus"]) for pair in found["differences"]} == {("mixture", "own")}


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": []}'])
def test_what_no_replay_wrote(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(HistoryError, match=r"other\.json: .*; expected a file of `envsched replay RUN -o FILE\.json`"):
        collect.collected([path])
