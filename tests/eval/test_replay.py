"""Replay: what is predicted when, what the figures mean, which ledgers are refused."""

import copy
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from envsched_gnn.errors import ConfigError, HistoryError
from envsched_gnn.eval.replay import words
from envsched_gnn.eval.replay.judge import judge
from envsched_gnn.eval.replay.predictors import NAMES, check_names, predictor_of
from envsched_gnn.eval.replay.recorded import Recorded, read_recorded
from envsched_gnn.eval.replay.result import replay
from envsched_gnn.eval.replay.score import SUMS, Predicted, difference, figure, interval, resampled, sums_by_step, thirds, upper_half
from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.graph.io import save_graph
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import History
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.schedule.uniform import Uniform
from tests.eval.ledgers import write_ledger
from tests.schedule.small import graph_of

STEPS, BATCH = 9, 8


def rewards(key: str, step: int) -> list[float]:
    """Some tasks have no variance, some always, some in odd steps."""
    number = sum(map(ord, key))
    spread = (0.0, 1.0, float(step % 2))[number % 3]
    return [0.25 * (number % 2), 0.25 * (number % 2) + spread / 2, 0.25, 0.25 * (number % 2)] if spread else [0.25 * (number % 2)] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`uniform.sqlite` and `envsched.sqlite` of one graph, `graph.pt`."""
    path = tmp_path_factory.mktemp("ledgers")
    graph = graph_of([row // 6 for row in range(36)])
    graph.pool_hash = "a" * 64
    save_graph(graph, path / "graph.pt")
    write_ledger(path / "uniform.sqlite", Uniform(None, graph, batch_size=BATCH), STEPS, rewards)
    write_ledger(path / "envsched.sqlite", EnvSched(None, graph, batch_size=BATCH), STEPS, rewards)
    return path


def read(folder: Path, name: str) -> Recorded:
    return read_recorded(folder / f"{name}.sqlite", graph=folder / "graph.pt")


# ---- what is predicted when ----


@pytest.mark.parametrize(("preset", "predictor", "target"), [("default", "mixture", "informative"), ("paper", "paper", "variance")])
def test_a_replay_predicts_what_the_run_itself_predicted(folder: Path, tmp_path: Path, preset, predictor, target) -> None:
    """The ledger keeps what the scheduler said of each pick; the replay of that ledger comes to the same numbers by its own way."""
    graph = graph_of([row // 6 for row in range(36)])
    scheduler = EnvSched(None, graph, batch_size=BATCH, preset=preset)
    selections = write_ledger(tmp_path / "l.sqlite", scheduler, STEPS, rewards)
    recorded = read_recorded(tmp_path / "l.sqlite", graph=folder / "graph.pt")
    said = [p.p_informative if target == "informative" else p.predicted_variance for s in selections[1:] for p in s.picks]
    assert len(said) == (STEPS - 1) * BATCH
    np.testing.assert_allclose(judge(recorded, [predictor]).predicted[target, predictor], said, rtol=0, atol=1e-12)
    assert np.ptp(said) > 0.01


def test_a_prediction_reads_nothing_of_its_own_step_or_later(folder: Path) -> None:
    recorded = read(folder, "uniform")
    before = judge(recorded, NAMES)
    changed = replace(recorded, statistics=copy.deepcopy(recorded.statistics))
    last = recorded.steps >= STEPS - 2
    changed.statistics.variance[last] = 0.25 - changed.statistics.variance[last]
    after = judge(changed, NAMES)
    until = before.step <= STEPS - 2
    assert until.sum() == (STEPS - 2) * BATCH
    for key, said in before.predicted.items():
        np.testing.assert_array_equal(said[until], after.predicted[key][until])
    assert not np.array_equal(before.predicted["variance", "own"], after.predicted["variance", "own"])


def test_single_sources_in_numbers() -> None:
    """Tasks 0 and 1 share an environment, s_within = 0.5; task 2 is alone, s_cross(1, 2) = 0.6, s_cross(0, 2) = 0.

    Observed at step 0: task 0 with v = 0.2, task 2 with v = 0. So ref_v = 0.1 and l = 0.5; W = 2^(-1/8) = 0.917004, for z it is
    2^(-1/200) = 0.996540, and 2 W / (W + 1) = 0.998267 to others.
    """
    graph = assemble_graph(
        env_ids=["a", "b"],
        env_index=torch.tensor([0, 0, 1]),
        task_ids=["0", "1", "2"],
        within_blocks=[torch.tensor([[0.0, 0.5], [0.5, 0.0]]), torch.zeros(1, 1)],
        cross_vectors=torch.tensor([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]]),
        record_index=torch.tensor([0, 1, 2]),
    )
    history, neighbors = History(3), Neighbors(graph)
    seen, zero = torch.tensor([0, 2]), torch.tensor([0.5, 0.5])
    history.add(seen, torch.tensor([0, 0]), torch.tensor([0.2, 0.0]), zero, zero)
    neighbors.insert(seen)
    evidence = history.evidence(1)
    expected = {
        "global_mean": ([0.1, 0.1, 0.1], [0.5, 0.5, 0.5]),
        # (0.917004 x 0.2 + 2 x 0.1) / 2.917004; (0.996540 + 0.5) / 1.996540
        "own": ([0.131436, 0.1, 0.068564], [0.749567, 0.5, 0.250433]),
        # task 1: a = 0.458502: (0.458502 x 0.2 + 0.2) / 2.458502; a = 0.499134: (0.499134 + 0.5) / 1.499134
        "within": ([0.1, 0.118650, 0.1], [0.5, 0.666474, 0.5]),
        # task 1: a = 0.550202: (0 + 0.2) / 2.550202; a = 0.598960: 0.5 / 1.598960
        "cross": ([0.1, 0.078425, 0.1], [0.5, 0.312703, 0.5]),
    }
    for name, (variance, p) in expected.items():
        prediction = predictor_of(name, neighbors, 1e-6).predict(graph, evidence, 1)
        assert prediction.predicted_variance.tolist() == pytest.approx(variance, abs=1e-6), name
        assert prediction.p_informative.tolist() == pytest.approx(p, abs=1e-6), name
    # E[v | v > floor] = 0.1 / 0.5 = 0.2
    said = {name: predictor_of(name, neighbors, 1e-6).predict(graph, evidence, 1) for name in ("paper", "mixture")}
    torch.testing.assert_close(said["paper"].p_informative, (said["paper"].predicted_variance / 0.2).clamp(0, 1))
    torch.testing.assert_close(said["mixture"].predicted_variance, said["mixture"].p_informative * 0.2)


# ---- figures ----


@pytest.mark.parametrize(
    ("predicted", "share"),
    [
        ([0.3, 0.1, 0.3, 0.2], [1, 0, 1, 0]),
        ([0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]),
        ([3, 2, 2, 1], [1, 0.5, 0.5, 0]),
        ([1, 2, 3], [0, 0.5, 1]),
        ([4, 1, 1, 1, 1], [1, 0.375, 0.375, 0.375, 0.375]),
    ],
)
def test_the_upper_half(predicted: list[float], share: list[float]) -> None:
    assert upper_half(np.array(predicted, dtype=float)).tolist() == share


def two_steps(predicted: list[float]) -> np.ndarray:
    """Step 3 came out 0.1, 0, 0.2, 0; step 5 all 0."""
    realised = np.array([0.1, 0.0, 0.2, 0.0, 0.0, 0.0])
    step = np.array([3, 3, 3, 3, 5, 5])
    return sums_by_step(Predicted(step=step, predicted=np.array(predicted), realised=realised, informative=(realised > 0).astype(float)))


def test_figures_in_numbers() -> None:
    sums = two_steps([0.2, 0.1, 0.3, 0.0, 0.1, 0.0])
    # ranks 3 2 4 1 against 3 1.5 4 1.5: covariance 4.5 / sqrt(5 x 4.5) = 0.948683; step 5 has nothing to order
    assert sums.tolist() == [
        pytest.approx([4, 4, 4 * 0.9486833, 0.3, 0.03, 2, 2, 2]),
        pytest.approx([2, 0, 0, 0.1, 0.01, 1, 0, 0]),
    ]
    total = sums.sum(0)
    found = {name: float(figure(name, total)) for name in ("spearman", "mae", "mse", "precision_at_batch", "base_rate")}
    assert found == pytest.approx({"spearman": 0.9486833, "mae": 0.4 / 6, "mse": 0.04 / 6, "precision_at_batch": 2 / 3, "base_rate": 1 / 3})


def test_no_distinction_is_no_correlation_and_no_variance_has_none() -> None:
    sums = two_steps([0.1] * 6)
    assert float(figure("spearman", sums.sum(0))) == 0
    assert float(figure("precision_at_batch", sums.sum(0))) == pytest.approx(1 / 3)
    assert math.isnan(float(figure("spearman", sums[1])))


def test_intervals_are_paired_and_of_the_right_width() -> None:
    rng = np.random.default_rng(3)
    correlation = rng.normal(0.3, 0.1, 200)
    sums = np.zeros((200, len(SUMS)))
    sums[:, SUMS.index("groups")] = sums[:, SUMS.index("ordered")] = 16
    sums[:, SUMS.index("correlation")] = 16 * correlation
    found = interval("spearman", sums)
    assert found.value == pytest.approx(correlation.mean())
    half = 1.96 * correlation.std() / math.sqrt(200)
    assert (found.low, found.high) == pytest.approx((correlation.mean() - half, correlation.mean() + half), abs=0.1 * half)
    better = sums.copy()
    better[:, SUMS.index("correlation")] += 16 * 0.05
    gap = difference("spearman", better, sums)
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.05, 0.05, 0.05))
    assert np.array_equal(resampled(sums), resampled(sums))
    assert math.isnan(interval("spearman", sums[:1]).low)


def test_thirds() -> None:
    assert [len(range(7)[part]) for part in thirds(7).values()] == [2, 3, 2]
    assert [len(range(60)[part]) for part in thirds(60).values()] == [20, 20, 20]


# ---- the result ----


def test_rows_and_what_is_said_of_the_ledger(folder: Path) -> None:
    result = replay(read(folder, "uniform"))
    assert [(row["target"], row["predictor"]) for row in result["rows"][:3]] == [
        ("variance", "global_mean"), ("informative", "global_mean"), ("variance", "own"),
    ]  # fmt: skip
    assert len(result["rows"]) == 16
    assert len(result["differences"]) == 56
    assert (result["uniform"], result["policy"], result["kind"], result["judged"], result["steps"]) == (True, "uniform", "real", 64, 8)
    row = next(row for row in result["rows"] if (row["target"], row["predictor"]) == ("informative", "mixture"))
    needed = {"ledger", "kind", "target", "predictor", "spearman", "spearman_low", "spearman_high", "mae", "precision_at_batch"}
    assert needed <= row.keys()
    assert row["spearman_low"] <= row["spearman"] <= row["spearman_high"]
    assert sum(entry["size"] for entry in row["calibration"]) == row["groups"] == 64
    assert [row[part]["steps"] for part in ("early", "middle", "late")] == [3, 2, 3]
    assert sum(row[part]["groups"] for part in ("early", "middle", "late")) == 64
    flat = next(row for row in result["rows"] if row["predictor"] == "global_mean")
    assert flat["spearman"] == 0
    assert flat["precision_at_batch"] == pytest.approx(flat["base_rate"])
    assert words.cells(row)[0] == "mixture"
    assert words.differences(result, "variance")[0].startswith("  within - own: ")


def test_a_ledger_that_predictions_made_says_so(folder: Path) -> None:
    result = replay(read(folder, "envsched"), ["own"])
    assert not result["uniform"]
    assert "made the picks from predictions" in result["selection_bias"]
    assert result["policy"] == "cold + coverage + exploitation"


def test_no_variance_anywhere_is_said(tmp_path: Path, folder: Path) -> None:
    graph = graph_of([row // 6 for row in range(36)])
    write_ledger(tmp_path / "l.sqlite", Uniform(None, graph, batch_size=BATCH), STEPS, lambda key, step: [0.5] * 4)
    result = replay(read_recorded(tmp_path / "l.sqlite", graph=folder / "graph.pt"))
    assert {row["spearman"] for row in result["rows"]} == {None}
    assert result["mixed_share"]["all"] == 0
    assert "no group had any variance: there is nothing to order, so no correlation exists." in words.head(result)
    assert words.cells(result["rows"][0])[1] == "-"


# ---- refusals ----


def test_too_few_groups_says_how_many_are_needed(tmp_path: Path, folder: Path) -> None:
    graph = graph_of([row // 6 for row in range(36)])
    write_ledger(tmp_path / "l.sqlite", Uniform(None, graph, batch_size=BATCH), 4, rewards)
    with pytest.raises(HistoryError, match="24 observed groups in 3 steps after the first; expected at least 50 in at least 6"):
        replay(read_recorded(tmp_path / "l.sqlite", graph=folder / "graph.pt"))


def test_a_ledger_of_another_pool_names_task_and_pool(tmp_path: Path, folder: Path) -> None:
    other = graph_of([0, 0, 1, 1], task_ids=["w", "x", "y", "z"])
    other.pool_hash = "b" * 64
    save_graph(other, tmp_path / "other.pt")
    with pytest.raises(
        HistoryError, match=r"a ledger of another pool: 36 of its tasks, first 'e0/t0', are not in the graph of pool b{12}\."
    ):
        read_recorded(folder / "uniform.sqlite", graph=tmp_path / "other.pt")


def test_a_lone_ledger_needs_a_pool_or_a_graph(folder: Path) -> None:
    with pytest.raises(HistoryError, match="Give --pool or --graph, or the run's folder"):
        read_recorded(folder / "uniform.sqlite")


def test_several_runs_in_a_ledger(folder: Path, tmp_path: Path) -> None:
    graph = graph_of([row // 6 for row in range(36)])
    for run in ("one", "two"):
        scheduler = Uniform(None, graph, batch_size=BATCH, seed=len(run) + ord(run[0]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("envsched_gnn.schedule.book.group_id_of", lambda *parts, run=run: f"{run}:{':'.join(map(str, parts))}")
            write_ledger(tmp_path / "l.sqlite", scheduler, 2, rewards, run)
    with pytest.raises(HistoryError, match="holds 2 runs: one, two; expected one run"):
        read_recorded(tmp_path / "l.sqlite", graph=folder / "graph.pt")


def test_an_unknown_predictor_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"predictor 'mixtur': no such predictor. Did you mean mixture\?"):
        check_names(["own", "mixtur"])
    assert check_names(["own", "own"]) == ("own",)
    assert check_names([]) == NAMES


def test_a_simulated_ledger_says_so_and_has_no_texts(folder: Path, tmp_path: Path) -> None:
    for name, source in (("s", "simulated"), ("r", "toolworld")):
        run = tmp_path / name
        run.mkdir()
        (run / "resolved.toml").write_text('[run]\npolicy = "uniform"\n')
        (run / "pool.json").write_text(json.dumps({"source": source, "content_hash": "a" * 64}))
        shutil.copy(folder / "uniform.sqlite", run / "ledger.sqlite")
        shutil.copy(folder / "graph.pt", run)
    simulated = read_recorded(tmp_path / "s", with_pool=True)
    assert (simulated.kind, simulated.pool, simulated.policy) == ("simulated", None, "uniform")
    assert read_recorded(tmp_path / "r").kind == "real"
