"""The yardstick for predictors, on made-up pools whose chances depend on a word, or on nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envsched_gnn.errors import HistoryError
from envsched_gnn.eval.headline import unseen
from envsched_gnn.eval.headline.run_files import Run
from envsched_gnn.eval.headline.unseen import Known, forecast, judged, marked, read_known, yardsticks
from envsched_gnn.train.checkpoint import save
from tests.schedule.small import graph_of


def known(seed: int, *, readable: bool) -> Known:
    draw = np.random.default_rng(seed)
    hard = draw.random(200) < 0.5
    shown = hard if readable else draw.permutation(hard)
    texts = [f"task {'hard' if h else 'easy'} with w{draw.integers(9)}" for h in shown]
    chance = np.where(hard, 0.9, 0.1)
    return Known(
        seed=seed, texts=texts, env_index=draw.integers(3, size=200), possible=hard, chance=chance, rows=np.arange(200), graph=None
    )


@pytest.mark.parametrize("readable", [True, False])
def test_what_texts_tell(readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen, "GROUPS", 100)
    rows = list(yardsticks([known(0, readable=readable), known(1, readable=readable)]))
    assert [row["seed"] for row in rows] == [0, 1]
    for row in rows:
        for way in ("in_pool", "transfer"):
            assert (row[f"{way}_top"] == pytest.approx(0.9)) >= readable
            assert (row[f"{way}_spearman"] > 0.8) == readable
        assert row["told_possible_spearman"] > 0.8


def test_one_pool_has_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen, "GROUPS", 100)
    assert "transfer_spearman" not in next(yardsticks([known(0, readable=True)]))


@pytest.mark.parametrize("name", ["default", "learned"])
def test_the_scheduler_is_told_the_same_groups(name: str) -> None:
    graph = graph_of([row // 50 for row in range(200)])
    draw = np.random.default_rng(0)
    chance = np.repeat([0.9, 0.1, 0.1, 0.1], 50)  # one environment of four is worth it
    pool = replace(known(0, readable=True), chance=chance, graph=graph, env_index=np.arange(200) // 50)
    learned = draw.permutation(200)[:100]
    p = forecast(pool, graph, unseen.PREDICTORS[name], learned, draw.random(100) < chance[learned])
    assert p[:50].mean() > 2 * p[50:].mean()


def test_figures_by_hand() -> None:
    found = judged(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.0, 0.5, 0.2, 1.0]))
    assert found == pytest.approx({"spearman": 0.8, "top": 1.0})  # ranks 1 2 3 4 and 1 3 2 4: 1 - 6 * 2 / (4 * 15)
    assert marked("v", "a >= b") == "v_a v_b"


def run_in(folder: Path) -> Run:
    return Run(folder=folder, pool="main", arm="oracle", seed=0, steps=[], evaluations=[])


def test_a_folder_without_estimates(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"0: no checkpoint of an oracle; expected a run of the arm oracle. Make it with"):
        read_known(run_in(tmp_path / "0"))


def test_estimates_of_another_pool(tmp_path: Path) -> None:
    save(tmp_path / "0" / "checkpoint", 4, {"step": 4, "pool_hash": "another", "scheduler": {"score": [0.5]}})
    with pytest.raises(HistoryError, match=r"0: estimates of another pool; expected those of configs/headline/main.toml, seed 0"):
        read_known(run_in(tmp_path / "0"))
