"""The counterexample: tasks stay as they are, and what a scheduler sees of them says nothing."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from envsched_gnn.cli.main import app
from envsched_gnn.config import ToolWorldConfig, load_config
from envsched_gnn.errors import PoolError
from envsched_gnn.graph.build import build_graph
from envsched_gnn.graph.io import load_graph, save_graph
from envsched_gnn.graph.similarity import pair_similarity
from envsched_gnn.ledger import Ledger
from envsched_gnn.pool.manifest import read_manifest, write_manifest
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.shuffle import shown_rows, shuffle
from envsched_gnn.pool.toolworld import generate
from envsched_gnn.records import Environment, Rollout, RolloutGroup, Task
from envsched_gnn.schedule import EnvSched
from envsched_gnn.train.run import run

SMALL = ToolWorldConfig(environments=6, tasks=10, held_out_tasks=0.2)


@pytest.fixture(scope="module")
def toolworld() -> Pool:
    return generate(SMALL)


@pytest.fixture(scope="module")
def twin(toolworld: Pool, tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """Through the files."""
    folder = tmp_path_factory.mktemp("twin")
    write_manifest(shuffle(toolworld, seed=3), folder)
    return read_manifest(folder)


def plain_pool(sizes: list[int], held_out: int = 0) -> Pool:
    """Environments of these sizes; the first `held_out` tasks of each are held out."""
    tasks = [
        Task(env_id=f"e{e}", task_id=f"t{i}", prompt="", info={"held_out": True} if i < held_out else {})
        for e, size in enumerate(sizes)
        for i in range(size)
    ]
    return Pool(environments=tuple(Environment(env_id=f"e{e}") for e in range(len(sizes))), tasks=tuple(tasks), source="plain")


def test_tasks_stay_as_they_are_but_for_the_mark(toolworld: Pool, twin: Pool) -> None:
    for old, new in zip(toolworld.tasks, twin.tasks, strict=True):
        assert new.info["shown_as"] in toolworld.index_of
        assert {**vars(new), "info": None} == {**vars(old), "info": None}
        assert {name: value for name, value in new.info.items() if name != "shown_as"} == dict(old.info)
    assert twin.environments == toolworld.environments
    assert twin.content_hash != toolworld.content_hash


@given(st.lists(st.integers(1, 6), min_size=2, max_size=5), st.integers(0, 2), st.integers(0, 2**32))
def test_a_permutation_that_keeps_environment_sizes_and_what_is_held_out(sizes: list[int], held_out: int, seed: int) -> None:
    pool = plain_pool([size + held_out for size in sizes], held_out)
    shown = shown_rows(shuffle(pool, seed))
    assert sorted(shown.tolist()) == list(range(len(pool.tasks)))
    assert [pool.tasks[row].held_out for row in shown] == [task.held_out for task in pool.tasks]
    trained = np.array([not task.held_out for task in pool.tasks])
    assert Counter(pool.env_index[shown][trained].tolist()) == Counter(pool.env_index[trained].tolist())


def chi_square(first: np.ndarray, second: np.ndarray) -> float:
    """`sum (observed - expected)^2 / expected` of the table of pairs, of numbers from 0."""
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    return float(((table - expected) ** 2 / expected).sum())


def test_the_new_environment_is_independent_of_the_old_one() -> None:
    """Under a random permutation chi-square has mean N/(N-1) (E-1)^2 and about twice that variance; kept as it was, it is N (E-1)."""
    pool = plain_pool([50] * 20)
    old, n, freedom = pool.env_index, 1000, 19 * 19
    found = [chi_square(old, old[shown_rows(shuffle(pool, seed))]) for seed in range(20)]
    assert chi_square(old, old) == pytest.approx(n * 19)
    assert np.mean(found) == pytest.approx(n / (n - 1) * freedom, abs=4 * (2 * freedom / 20) ** 0.5)
    assert max(found) < freedom + 4.5 * (2 * freedom) ** 0.5
    assert len(set(found)) > 10


def test_the_graph_is_the_old_one_with_its_nodes_renamed(toolworld: Pool, twin: Pool, tmp_path: Path) -> None:
    everyone = torch.arange(len(toolworld.tasks))
    shown = torch.from_numpy(shown_rows(twin))
    old, new = build_graph(toolworld), build_graph(twin)
    before, after = pair_similarity(old, everyone, everyone), pair_similarity(new, everyone, everyone)
    assert torch.equal(after, before[shown][:, shown])
    assert torch.equal(new["task"].identity, old["task"].identity)
    assert torch.equal(new["task"].env_index, old["task"].env_index[shown])
    save_graph(new, tmp_path / "g.pt")
    assert torch.equal(load_graph(tmp_path / "g.pt")["task"].home_index, old["task"].env_index)


def test_similarity_says_nothing_of_the_old_similarity(toolworld: Pool, twin: Pool) -> None:
    """Correlation over pairs, against what 300 random permutations give (the Mantel test)."""
    everyone = torch.arange(len(toolworld.tasks))
    old, new = (pair_similarity(build_graph(pool), everyone, everyone).numpy() for pool in (toolworld, twin))
    upper, rng = np.triu_indices(len(old), 1), np.random.default_rng(0)

    def correlation(matrix: np.ndarray) -> float:
        return float(np.corrcoef(old[upper], matrix[upper])[0, 1])

    null = []
    for _ in range(300):
        order = rng.permutation(len(old))
        null.append(correlation(old[order][:, order]))
    assert abs(correlation(new)) < 4 * np.std(null) < 0.2
    assert correlation(old) == pytest.approx(1.0)


def settings(path: str, folder: Path, policy: str, *more: str) -> list[str]:
    world = [f"pool.toolworld.{name}={getattr(SMALL, name)}" for name in ("environments", "tasks", "held_out_tasks")]
    place = [f"pool.path={path}", f"run.folder={folder}", f"run.name={policy}", f"run.policy={policy}"]
    return [*world, *place, "run.steps=4", "select.batch_size=6", "rollout.num_rollouts=4", "rollout.workers=1", *more]


def rewards_of(folder: Path, policy: str) -> list[tuple[str, tuple[float | None, ...]]]:
    with Ledger(folder / policy / "ledger.sqlite", policy, read_only=True) as ledger:
        return [(group.group_id, group.rewards) for step in range(4) for group in ledger.groups(step)]


def test_the_same_plans_earn_the_same_rewards(twin: Pool, tmp_path: Path) -> None:
    """Uniform selection sees no structure: it picks the same tasks of both pools, and the scripted policy does the same with them."""
    write_manifest(twin, tmp_path / "twin")
    run(load_config(None, settings("toolworld", tmp_path / "old", "uniform")))
    run(load_config(None, settings(str(tmp_path / "twin"), tmp_path / "new", "uniform")))
    old, new = (rewards_of(tmp_path / name, "uniform") for name in ("old", "new"))
    assert old == new
    assert len(old) == 24
    assert len({rewards for _, rewards in old}) > 3


def test_envsched_runs_on_it_and_goes_on_where_it_stopped(twin: Pool, tmp_path: Path) -> None:
    write_manifest(twin, tmp_path / "twin")
    run(load_config(None, settings(str(tmp_path / "twin"), tmp_path / "whole", "envsched")))
    for steps in (2, 4):
        run(load_config(None, settings(str(tmp_path / "twin"), tmp_path / "parts", "envsched", f"run.steps={steps}")))
    whole, parts = (rewards_of(tmp_path / name, "envsched") for name in ("whole", "parts"))
    assert whole == parts
    assert len(whole) == 24


def test_quotas_count_the_environment_that_is_shown() -> None:
    """Two environments of 8 tasks, at most 1 a round: the picks are shown in both, wherever they are executed."""
    pool = shuffle(plain_pool([8, 8]), seed=1)
    shown = shown_rows(pool)
    scheduler = EnvSched(pool, build_graph(pool), select=replace(load_config().select, batch_size=2, per_round=1))
    homes = set()
    for step in range(6):
        picks = scheduler.select(step).picks
        assert {pool.env_index[shown[pick.task_index]] for pick in picks} == {0, 1}
        assert [pool.keys[pick.task_index] for pick in picks] == [pick.key for pick in picks]
        homes.add(tuple(sorted(pick.env_id for pick in picks)))
        rollouts = tuple(Rollout(reward=reward) for reward in (0.0, 1.0))
        scheduler.observe(
            RolloutGroup(group_id=p.group_id, env_id=p.env_id, task_id=p.task_id, step=step, rollouts=rollouts) for p in picks
        )
    assert len(homes) > 1


def test_a_pool_that_is_not_shuffled_shows_itself() -> None:
    assert shown_rows(plain_pool([2, 3])).tolist() == [0, 1, 2, 3, 4]


def test_which_shuffled_pool_follows_from_the_seed() -> None:
    pool = plain_pool([30, 30])
    assert shuffle(pool, 7) == shuffle(pool, 7)
    assert shuffle(pool, 7) != shuffle(pool, 8)
    assert shuffle(shuffle(pool, 8), 7).tasks == shuffle(pool, 7).tasks


@pytest.mark.parametrize(
    ("shown", "match"),
    [
        ("e9/t9", r"task 'e0/t0', info\.shown_as: 'e9/t9'; expected the ENV_ID/TASK_ID of a task of this pool\. Shuffle the pool again"),
        (3, r"info\.shown_as: 3; expected"),
        ("e1/t1", "'e0/t0' and 'e1/t1' are both shown as 'e1/t1'; expected each task shown once"),
    ],
)
def test_a_broken_mark_is_named(shown: object, match: str) -> None:
    pool = plain_pool([2, 2])
    tasks = (replace(pool.tasks[0], info={"shown_as": shown}), *pool.tasks[1:])
    with pytest.raises(PoolError, match=match):
        build_graph(replace(pool, tasks=tasks))


def test_nothing_to_exchange() -> None:
    with pytest.raises(PoolError, match="1 tasks to train on; expected at least two"):
        shuffle(plain_pool([1]))


def test_the_verb(tmp_path: Path) -> None:
    size = ["-s", "pool.toolworld.environments=2", "-s", "pool.toolworld.tasks=3"]
    for seed in ("1", "2"):
        result = CliRunner().invoke(app, ["pool", "shuffle", "toolworld", str(tmp_path / seed), "--seed", seed, *size])
        assert (result.exit_code, result.stdout) == (0, f"{tmp_path / seed}\n")
    first, second = (Pool.load(tmp_path / seed) for seed in ("1", "2"))
    assert shown_rows(first).tolist() != shown_rows(second).tolist()
    result = CliRunner().invoke(app, ["graph", "build", str(tmp_path / "1"), "-o", str(tmp_path / "g.pt")])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["pool", "audit", str(tmp_path / "1"), "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
