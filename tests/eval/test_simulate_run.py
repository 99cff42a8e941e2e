"""Simulated runs: the engine, the oracle, the folder, resuming."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from envsched_gnn.config import Config, load_config
from envsched_gnn.config_simulate import SimulateConfig
from envsched_gnn.errors import ConfigError, EnvSchedError
from envsched_gnn.eval.metrics import read_run
from envsched_gnn.eval.report import write_report
from envsched_gnn.eval.simulate import CAUTION
from envsched_gnn.eval.simulate.engine import SimulatedEngine
from envsched_gnn.eval.simulate.policies import ExactOracle
from envsched_gnn.eval.simulate.pool import graph_of, pool_of
from envsched_gnn.eval.simulate.run import read_truth, simulate
from envsched_gnn.eval.simulate.summary import summary
from envsched_gnn.eval.simulate.world import World, make_world
from envsched_gnn.ledger import Ledger
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Pick, RolloutGroup, Selection, group_id_of

WORLD = SimulateConfig(environments=12, tasks=20, structure=0.5, seed=3)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(WORLD)


@pytest.fixture(scope="module")
def pool(world: World) -> Pool:
    return pool_of(world)


def selection_of(pool: Pool, step: int, rows: list[int], **rest: object) -> Selection:
    picks = [
        Pick(
            rank=rank,
            env_id=pool.tasks[row].env_id,
            task_id=pool.tasks[row].task_id,
            task_index=row,
            group_id=group_id_of(step, pool.tasks[row].env_id, pool.tasks[row].task_id),
            phase="uniform",
            score=0.0,
            predicted_variance=0.0,
            p_informative=0.0,
        )
        for rank, row in enumerate(rows, 1)
    ]
    return Selection(step=step, picks=tuple(picks), **rest)  # type: ignore[arg-type]


def settings(folder: Path, *more: str) -> Config:
    world = ["simulate.environments=12", "simulate.tasks=20", "simulate.held_out_environments=0.1"]
    size = ["select.batch_size=12", "rollout.num_rollouts=4", "train.checkpoint_every=2", "evaluate.every=3", "evaluate.tasks=20"]
    return load_config(None, [f"run.folder={folder}", "run.steps=6", *world, *size, *more])


def groups_of(folder: Path) -> list[RolloutGroup]:
    with Ledger(folder / "ledger.sqlite", folder.name, read_only=True) as ledger:
        return [group for step in range(6) for group in ledger.groups(step)]


def test_groups_have_the_chance_of_variance_that_the_learner_tells(world: World, pool: Pool) -> None:
    engine = SimulatedEngine(pool, world, num_rollouts=4, seed=1)
    chance = engine.learner.informative_chance(4)
    groups = list(engine.rollout(selection_of(pool, 0, list(range(240)))))
    informative = np.array([len(set(group.rewards)) > 1 for group in groups])
    assert informative.sum() == pytest.approx(chance.sum(), abs=4 * math.sqrt((chance * (1 - chance)).sum()))
    assert not informative[chance == 0].any()
    assert 0.1 < (chance == 0).mean() < 0.6


def test_a_groups_rewards_depend_on_nothing_that_was_picked_with_it(world: World, pool: Pool) -> None:
    together = SimulatedEngine(pool, world, seed=1).rollout(selection_of(pool, 4, [7, 8, 9]))
    alone = SimulatedEngine(pool, world, seed=1).rollout(selection_of(pool, 4, [9]))
    assert list(together)[2] == next(iter(alone))
    other = SimulatedEngine(pool, world, seed=2).rollout(selection_of(pool, 4, list(range(50))))
    assert [g.rewards for g in other] != [
        g.rewards for g in SimulatedEngine(pool, world, seed=1).rollout(selection_of(pool, 4, list(range(50))))
    ]


def test_a_round_that_was_interrupted_ends_the_same(world: World, pool: Pool) -> None:
    selection = selection_of(pool, 0, list(range(30)))
    whole, parts = SimulatedEngine(pool, world, seed=1), SimulatedEngine(pool, world, seed=1)
    groups = list(whole.rollout(selection))
    rest = list(parts.rollout(selection, groups[:10]))
    assert rest == groups[10:]
    assert np.array_equal(whole.learner.logits(), parts.learner.logits())


def test_evaluations_and_looks_teach_nothing(world: World, pool: Pool) -> None:
    engine = SimulatedEngine(pool, world, seed=1)
    before = engine.learner.logits()
    rewards = engine.evaluate(list(range(240)), 3)
    assert [len(some) for some in rewards] == [3] * 240
    looked = list(engine.rollout(selection_of(pool, 0, [1, 2], use="reference", num_rollouts=5)))
    assert [len(group.rewards) for group in looked] == [5, 5]
    assert np.array_equal(engine.learner.logits(), before)
    assert engine.learner.version == 0


def test_playing_and_learning_apart_come_to_the_same(world: World, pool: Pool) -> None:
    selection = selection_of(pool, 0, list(range(30)))
    one, other = SimulatedEngine(pool, world, seed=1), SimulatedEngine(pool, world, seed=1)
    groups = list(one.play(selection))
    assert one.learner.version == 0
    one.learn(groups)
    assert list(other.rollout(selection)) == groups
    assert np.array_equal(one.learner.logits(), other.learner.logits())
    assert (one.learner.version, other.learner.version) == (1, 1)


def test_costs(world: World, pool: Pool) -> None:
    groups = list(SimulatedEngine(pool, world, seed=1).rollout(selection_of(pool, 0, list(range(240)))))
    tokens = np.array([rollout.tokens for group in groups for rollout in group.rollouts])
    assert np.median(tokens) == pytest.approx(400, rel=0.15)
    first = groups[0].rollouts[0]
    assert first.seconds == pytest.approx(first.tokens / 50)


def test_a_task_of_another_pool(world: World, pool: Pool) -> None:
    other = pool_of(make_world(replace(WORLD, environments=13)))
    with pytest.raises(EnvSchedError, match="task 'sim_00012/task_00019' is not in the pool"):
        list(SimulatedEngine(pool, world).rollout(selection_of(other, 0, [259])))


def test_the_oracle_takes_the_best_tasks_within_the_quotas(world: World, pool: Pool) -> None:
    chance = SimulatedEngine(pool, world).learner.informative_chance(8)
    config = replace(load_config().select, batch_size=12, penalty=0.0, per_round=1)
    oracle = ExactOracle(pool, graph_of(world, pool), seed=0, select=config, num_rollouts=8)
    oracle.know(0, torch.from_numpy(chance))
    grid = np.round(chance / 0.05) * 0.05
    assert oracle.state_dict()["score"] == pytest.approx(chance.tolist())
    oracle.know(3, torch.zeros(240))
    picks = oracle.select(0).picks
    best = np.where(world.held_out, -1, grid).reshape(12, 20).max(1)
    assert sorted(grid[pick.task_index] for pick in picks) == pytest.approx(sorted(best))


@pytest.mark.parametrize("policy", ["envsched", "oracle"])
def test_a_resumed_run_goes_on_with_the_same_bits(policy: str, tmp_path: Path) -> None:
    whole = simulate(settings(tmp_path / "whole", f"run.policy={policy}"))
    for steps in (3, 6):
        parts = simulate(settings(tmp_path / "parts", f"run.policy={policy}", f"run.steps={steps}"))
    assert groups_of(whole) == groups_of(parts)
    assert len(groups_of(whole)) == 72
    assert (whole / "truth.jsonl").read_bytes() == (parts / "truth.jsonl").read_bytes()
    ends = [[line["all"] for line in map(json.loads, (run / "evaluations.jsonl").read_text().splitlines())] for run in (whole, parts)]
    assert ends[0][-1] == ends[1][-1]


def test_the_folder_is_read_by_report_and_tells_what_it_is(tmp_path: Path) -> None:
    folder = simulate(settings(tmp_path, "run.policy=oracle"))
    run = read_run(folder)
    assert [line["step"] for line in run.evaluations or []] == [0, 3, 6]
    assert [line["held_out_environments"]["tasks"] for line in run.evaluations or []] == [10, 10, 10]
    page = write_report(folder).read_text()
    assert "The oracle chose 12 tasks a round for 6 rounds of a simulated learner from simulated: 240 tasks in 12 environments" in page
    assert CAUTION in page
    assert "envsched simulate -c" in page
    found = summary(folder)
    assert found["caution"] == CAUTION
    assert (found["policy"], found["steps"], found["rollouts"], found["tasks"]) == ("oracle", 6, 288, 240)
    assert [third["rounds"] for third in found["thirds"]] == ["early", "middle", "late"]
    rounds = [1 - line["zero_variance_share"] for line in run.rounds]
    assert [third["informative"] for third in found["thirds"]] == pytest.approx([sum(rounds[i : i + 2]) / 2 for i in (0, 2, 4)])
    lines = read_truth(folder)
    assert [line["step"] for line in lines] == list(range(7))
    assert found["thirds"][1]["success_live"] == pytest.approx((lines[2]["success_live"] + lines[3]["success_live"]) / 2)
    assert found["end"] == {name: lines[6][name] for name in ("success_live", "success_held_out")}


def test_truth_is_that_of_the_world(tmp_path: Path) -> None:
    """Before the first round, of the tasks that can be learned and of those that are held out."""
    config = settings(tmp_path, "run.steps=1", "run.policy=uniform")
    world = make_world(config.simulate)
    rows = world.behaves_as
    p = 1 / (1 + np.exp(-world.start[rows]))
    p = np.where(world.dead[rows] > 0, 1.0, np.where(world.dead[rows] < 0, 0.0, p))
    line = read_truth(simulate(config))[0]
    assert line["success_live"] == pytest.approx(p[(world.dead[rows] == 0) & ~world.held_out].mean())
    assert line["success_held_out"] == pytest.approx(p[world.held_out].mean())


def test_policies_differ_and_seeds_too(tmp_path: Path) -> None:
    runs = {
        name: groups_of(simulate(settings(tmp_path, f"run.name={name}", "run.steps=2", *more)))
        for name, more in {
            "a": ["run.policy=uniform"],
            "b": ["run.policy=paper"],
            "c": ["run.policy=uniform", "run.seed=1"],
            "d": ["run.policy=uniform", "simulate.seed=1"],
        }.items()
    }
    assert len({repr(groups) for groups in runs.values()}) == 4


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    simulate(settings(tmp_path, "run.steps=1"))
    with pytest.raises(ConfigError, match=r"simulate\.drift = 0\.01 there and 0\.5 now"):
        simulate(settings(tmp_path, "run.steps=1", "simulate.drift=0.5"))
