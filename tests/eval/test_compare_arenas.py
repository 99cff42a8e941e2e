"""The arena of real environments, and short runs from random first batches."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsched_gnn.config import load_config
from envsched_gnn.eval.compare import cold
from envsched_gnn.eval.compare.figures import figures_of, read
from envsched_gnn.eval.compare.policies import policy_in
from envsched_gnn.eval.compare.runs import describe, make, planned
from envsched_gnn.eval.compare.scripted import ScriptedArena, scripted_arena
from envsched_gnn.eval.compare.variants import entries_of, entry_of
from envsched_gnn.schedule.policies import play_round

REAL = [
    *("pool.toolworld.environments=3", "pool.toolworld.tasks=6", "pool.toolworld.held_out_tasks=0.34", "run.steps=2"),
    *("select.batch_size=3", "rollout.num_rollouts=4", "rollout.workers=1", "evaluate.every=1", "evaluate.tasks=4", "evaluate.samples=5"),
]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def arena(own_cache: None) -> Iterator[ScriptedArena]:
    with scripted_arena(load_config(None, REAL)) as arena:
        yield arena


def test_an_arena_plays_first_and_learns_later(arena: ScriptedArena) -> None:
    config = load_config(None, REAL)
    played = play_round(policy_in(arena, entry_of("pilot_commit"), config), arena, 0)
    assert arena.state_dict()["version"] == 0
    assert {len(group.rollouts) for group in played.groups if ".pilot:" in group.group_id} == {2}
    assert {len(group.rollouts) for group in played.train} <= {4}
    before = arena.sample([0, 1], 5, "once")
    assert before == arena.sample([0, 1], 5, "once")
    assert [len(some) for some in before] == [5, 5]
    start = arena.state_dict()
    arena.learn(played.train)
    assert arena.state_dict()["version"] == 1
    arena.load_state_dict(start)
    assert arena.state_dict() == start


def test_success_is_measured_when_it_is_due(arena: ScriptedArena) -> None:
    config = load_config(None, [*REAL, "evaluate.every=2"])
    rare = ScriptedArena(config, arena.pool, arena._engine)
    assert rare.success(1) is None
    assert rare.success(2) is not None
    assert rare.success(1, last=True) is not None


def test_real_environments_compare(tmp_path: Path) -> None:
    """The oracle's looks are counted and charged to nobody: 16 rollouts of 12 training tasks, once in two steps."""
    runs = planned(tmp_path, "run", entries_of("uniform,oracle,paper:within_only"), [0], None, REAL)
    records = []
    for run in runs:
        assert (run.config.pool.toolworld.seed, run.config.rollout.seed, run.config.run.seed) == (0, 0, 0)
        describe(run)
        make(run)
        records.append(read(run.folder, run.entry.name, 0))
    uniform, oracle, within = (figures_of(record, records[0]) for record in records)
    assert [run.rollouts for run in (uniform, oracle, within)] == [24, 24, 24]
    assert [run.looks for run in (uniform, oracle, within)] == [0, 192, 0]
    assert oracle.informative >= uniform.informative
    assert uniform.curve[0] == oracle.curve[0] == within.curve[0]
    assert len(uniform.curve) == 3


# ---- cold starts ----

WORLD = ["simulate.environments=6", "simulate.tasks=10", "select.batch_size=8", "rollout.num_rollouts=4"]


def test_cold_starts_are_independent_and_repeatable() -> None:
    config = load_config(None, WORLD)
    result = cold.cold_starts(entry_of("paper"), config, runs=4, rounds=2)
    assert [row["round"] for row in result["rows"]] == [0, 1]
    first = result["rows"][0]["informative"]
    assert first["least"] < first["most"]
    assert first["least"] <= first["low"] <= first["middle"] <= first["high"] <= first["most"]
    assert result == cold.cold_starts(entry_of("paper"), config, runs=4, rounds=2)
    (lone,) = cold.cold_starts(entry_of("paper"), config, runs=1, rounds=1)["rows"]
    assert lone["informative"]["deviation"] == 0


def test_cold_starts_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [part for setting in WORLD for part in ("-s", setting)]
    monkeypatch.setattr(
        sys, "argv", ["cold", "--policy", "oracle", "--runs", "2", "--rounds", "2", *settings, "-o", str(tmp_path / "c.json")]
    )
    assert cold.main() == 0
    assert capsys.readouterr().out.startswith("oracle: 2 runs of 2 rounds from random first batches")
    written = json.loads((tmp_path / "c.json").read_text())
    assert {"command", "commit", "date", "rows", "all", "policy"} <= set(written)
    monkeypatch.setattr(sys, "argv", ["cold", "--policy", "orcle"])
    assert cold.main() == 1
    assert "Did you mean 'oracle'?" in capsys.readouterr().err
