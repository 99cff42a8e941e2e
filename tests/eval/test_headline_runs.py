"""Arms, oracle and runs of the headline experiment, on a pool of a few tasks."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from envsched_gnn import Pool, build_graph
from envsched_gnn.config import Config, SelectConfig, load_config
from envsched_gnn.errors import CheckpointError, ConfigError, EnvSchedError
from envsched_gnn.eval.headline import runs
from envsched_gnn.eval.headline.arms import ARMS, FURTHER, Arm, scheduler_of, shuffled, without_relations
from envsched_gnn.eval.headline.oracle import Oracle, informative_probability
from envsched_gnn.eval.headline.run_files import read_finished
from envsched_gnn.eval.headline.told import Told, expected_variance
from envsched_gnn.graph.similarity import pair_similarity
from envsched_gnn.pool.load import load_pool

SMALL = [
    "pool.toolworld.environments=5",
    "pool.toolworld.tasks=16",
    "pool.toolworld.held_out_environments=0.2",
    "model.hidden_size=32",
    "model.layers=1",
    "model.warm_start_batches=1",
    "select.batch_size=6",
    "rollout.num_rollouts=4",
    "run.steps=4",
    "evaluate.every=2",
    "evaluate.tasks=6",
]


@pytest.fixture(autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "headline-cache"))


@pytest.fixture(scope="module")
def pool() -> Pool:
    return load_pool(config().pool)


def config() -> Config:
    return load_config(runs.CONFIGS / "main.toml", SMALL)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_seconds(path: Path) -> list[dict]:
    return [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in lines(path)]


def test_chance_of_variance() -> None:
    assert informative_probability([1.0] * 16, 8) == 0.0
    assert informative_probability([1.0] * 8 + [0.0] * 8, 8) == pytest.approx(1 - 2 / 12870)
    assert informative_probability([1.0] + [0.0] * 15, 8) == pytest.approx(0.5)
    assert informative_probability([0.5, 0.0, 0.0, None], 2) == pytest.approx(2 / 3)
    assert informative_probability([0.5, None], 2) == 0.0


def test_the_oracle_ranks_by_its_estimate(pool: Pool) -> None:
    rows = [row for row, task in enumerate(pool.tasks) if not task.held_out]
    good = set(rows[::7])
    oracle = Oracle(
        pool, build_graph(pool), seed=0, select=SelectConfig(batch_size=len(good), penalty=0.0, per_round=99, rolling=99), num_rollouts=8
    )
    asked: list[list[int]] = []

    def play(some: list[int], samples: int) -> list[list[float | None]]:
        asked.append(list(some))
        assert samples == 16
        return [[float(k % 2) if row in good else 1.0 for k in range(samples)] for row in some]

    oracle.look(0, play)
    oracle.look(1, play)
    assert asked == [rows]
    picks = oracle.select(0)
    assert {pick.task_index for pick in picks.picks} == good
    assert {pick.phase for pick in picks.picks} == {"exploitation"}
    again = Oracle(pool, build_graph(pool), seed=0, select=oracle.select_config, num_rollouts=8)
    again.load_state_dict(oracle.state_dict())
    assert again.select(1).task_ids == oracle.select(1).task_ids


def test_variance_of_a_group_from_other_rollouts() -> None:
    assert expected_variance([1.0, 1.0, 0.0, 0.0, None], 8) == pytest.approx(7 / 8 * 1 / 3)
    assert expected_variance([1.0, 1.0], 8) == 0.0
    assert expected_variance([1.0, None], 8) == 0.0


@pytest.mark.parametrize("about", ["seen", "unseen"])
def test_what_is_told_replaces_the_forecast_of_the_tasks_meant(pool: Pool, about: str) -> None:
    graph = build_graph(pool)
    told, plain = (scheduler_of(arm, config(), pool, graph) for arm in (f"told_{about}", "default"))
    assert isinstance(told, Told)
    seen = set()
    for scheduler in (told, plain):
        picks = scheduler.select(0)
        scheduler.observe(picks, [[0.0, 1.0, 1.0, 1.0]] * len(picks.picks))
        seen = {pick.task_index for pick in picks.picks}
    train = {row for row, task in enumerate(pool.tasks) if not task.held_out}
    meant = {"seen": seen, "unseen": train - seen}[about]
    asked = []

    def play(rows: list[int], samples: int) -> list[list[float | None]]:
        asked.extend(rows)
        return [[float(k % 2) for k in range(samples)]] * len(rows)

    told.look(3, play)
    assert not asked
    told.look(4, play)
    assert set(asked) == meant
    (_, ours), (_, theirs) = (scheduler.predicted(4) for scheduler in (told, plain))
    variance = 3 / 4 * 4 / 15  # a group of 4, and 16 rollouts whose squared deviations add up to 4
    for row in range(len(pool.tasks)):
        if row in meant:
            assert ours.predicted_variance[row] == pytest.approx(variance)
            assert ours.informativeness[row] == pytest.approx(4 * variance)
            assert ours.p_informative[row] == pytest.approx(1 - 2 * 70 / 1820)  # C(8, 4) / C(16, 4) for each of the two rewards
        else:
            assert ours.at(torch.tensor([row])).informativeness == theirs.at(torch.tensor([row])).informativeness


def test_graphs_of_the_ablations(pool: Pool) -> None:
    graph = build_graph(pool)
    rows = torch.arange(len(pool.tasks))
    before = pair_similarity(graph, rows, rows)
    bare, mixed = (pair_similarity(other, rows, rows) for other in (without_relations(graph), shuffled(graph, 0)))
    assert bare.count_nonzero() == 0
    assert torch.equal(pair_similarity(graph, rows, rows), before)
    same = graph["task"].env_index[:, None] == graph["task"].env_index[None]
    assert not torch.equal(mixed, before)
    assert torch.equal(mixed[same].sort().values, before[same].sort().values)
    assert torch.equal(mixed.diagonal(), torch.zeros(len(rows)))


@pytest.mark.parametrize("arm", [*ARMS, *FURTHER])
def test_every_arm_makes_a_run(arm: Arm, tmp_path: Path) -> None:
    runs.make(tmp_path, "main", arm, 0, SMALL)
    run = read_finished(tmp_path / "main" / arm / "0")
    assert sum(int(line["rollouts"]) for line in run.steps) <= 4 * 6 * 4
    if arm != "dapo":
        assert [line["rollouts"] for line in run.steps] == [24] * 4
        assert [(line["step"], line["set"], line["final"]) for line in run.evaluations[:4]] == [
            (0, "tasks", False),
            (0, "environments", False),
            (2, "tasks", False),
            (2, "environments", False),
        ]
    assert run.evaluations[-1]["final"]
    assert (run.arm, run.seed) == (arm, 0)
    assert all(math.isfinite(line["mean"]) for line in run.evaluations)


@pytest.mark.parametrize("arm", ["default", "oracle", "dapo", "told_unseen"])
def test_a_stopped_run_goes_on_as_if_it_had_not(arm: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.make(tmp_path / "whole", "main", arm, 0, SMALL)
    step = runs.Run._step

    def stops(self: runs.Run, at: int) -> None:
        if at == (0 if arm == "dapo" else 3):
            raise EnvSchedError("stopped")
        step(self, at)

    with monkeypatch.context() as patched:
        patched.setattr(runs.Run, "_step", stops)
        with pytest.raises(EnvSchedError, match="stopped"):
            runs.make(tmp_path / "parts", "main", arm, 0, SMALL)
    assert not (tmp_path / "parts" / "main" / arm / "0" / "done.json").exists()
    runs.make(tmp_path / "parts", "main", arm, 0, SMALL)
    for name in ("steps.jsonl", "evaluations.jsonl"):
        whole, parts = (without_seconds(tmp_path / root / "main" / arm / "0" / name) for root in ("whole", "parts"))
        assert whole == parts


def test_the_plan_is_balanced_by_seed() -> None:
    plan = runs.planned(["main", "control"], ARMS, None)
    assert plan[:5] == [("main", "uniform", 0), ("main", "paper", 0), ("main", "default", 0), ("main", "oracle", 0), ("main", "uniform", 1)]
    assert sum(pool == "main" for pool, _, _ in plan) == 4 * 10 + 4 * 5
    assert sum(pool == "control" for pool, _, _ in plan) == 4 * 5
    assert plan.index(("main", "oracle", 9)) < plan.index(("main", "dapo", 0))
    assert runs.planned(["main"], ["uniform", "dapo"], [3]) == [("main", "uniform", 3), ("main", "dapo", 3)]
    assert runs.planned(["control"], ["dapo", "learned"], [3]) == [("control", "learned", 3)]


def test_a_run_keeps_its_settings(tmp_path: Path) -> None:
    two = [*SMALL, "run.steps=2"]
    runs.make(tmp_path, "main", "uniform", 0, two)
    other = r"train\.learning_rate differ\). Give another ROOT"
    with pytest.raises(ConfigError, match=other):
        runs.make(tmp_path, "main", "uniform", 0, [*two, "train.learning_rate=1e-3"])
    (tmp_path / "main" / "uniform" / "0" / "done.json").unlink()
    with pytest.raises(ConfigError, match=other):
        runs.make(tmp_path, "main", "uniform", 0, [*two, "train.learning_rate=1e-3"])
    settings = tmp_path / "main" / "uniform" / "0" / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "gone": {"since": 1}}))
    runs.make(tmp_path, "main", "uniform", 0, two)


def test_a_run_goes_on_with_its_own_pool_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = [*SMALL, "run.steps=2"]
    runs.make(tmp_path, "main", "uniform", 0, two)
    (tmp_path / "main" / "uniform" / "0" / "done.json").unlink()
    monkeypatch.setattr(runs, "load_pool", lambda config: load_pool(replace(config, toolworld=replace(config.toolworld, seed=9))))
    with pytest.raises(CheckpointError, match="begun on another pool"):
        runs.make(tmp_path, "main", "uniform", 0, two)


def test_processes_make_runs_and_name_those_that_fail(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = runs.planned(["main"], ["uniform"], [0])
    assert runs.make_all(tmp_path, plan, 2, [*SMALL, "run.steps=1"]) == []
    assert runs.make_all(tmp_path, plan, 2, [*SMALL, "run.steps=2"]) == ["main/uniform/0"]
    out, err = capfd.readouterr()
    assert "main/uniform/0: done after" in out
    assert "main/uniform/0: failed with 1 after" in out
    assert "Give another ROOT" in err
