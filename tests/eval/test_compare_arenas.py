"""The arenas of real environments, of the scripted policy and of a pocket model in training, and short runs from random first batches."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envsched_gnn.config import load_config
from envsched_gnn.errors import ConfigError
from envsched_gnn.eval.compare import cold
from envsched_gnn.eval.compare.engines import EngineArena, engine_arena
from envsched_gnn.eval.compare.figures import figures_of, read
from envsched_gnn.eval.compare.policies import policy_in
from envsched_gnn.eval.compare.runs import Planned, describe, make, planned
from envsched_gnn.eval.compare.variants import entries_of, entry_of
from envsched_gnn.eval.resumable import lines
from envsched_gnn.pool.load import load_pool
from envsched_gnn.records import RolloutGroup
from envsched_gnn.schedule.policies import play_round
from envsched_gnn.train.pocket.engine import PocketEngine

REAL = [
    *("pool.toolworld.environments=3", "pool.toolworld.tasks=6", "pool.toolworld.held_out_tasks=0.34", "run.steps=2"),
    *("select.batch_size=3", "rollout.num_rollouts=4", "rollout.workers=1", "evaluate.every=1", "evaluate.tasks=4", "evaluate.samples=5"),
]


@pytest.fixture(scope="module")
def arena(cache_home: None) -> Iterator[EngineArena]:
    with engine_arena("run", load_config(None, REAL)) as arena:
        yield arena


def test_an_arena_plays_first_and_learns_later(arena: EngineArena) -> None:
    config = load_config(None, REAL)
    played = play_round(policy_in(arena, entry_of("pilot_commit"), config), arena, 0)
    assert arena.state_dict()["version"] == 0
    assert {len(group.rollouts) for group in played.groups if ".pilot:" in group.group_id} == {2}
    assert {len(group.rollouts) for group in played.train} <= {4}
    before = arena.engine.evaluate([0, 1], 5)
    assert before == arena.engine.evaluate([0, 1], 5)
    assert [len(some) for some in before] == [5, 5]
    start = arena.state_dict()
    arena.learn(played.train)
    assert arena.state_dict()["version"] == 1
    arena.load_state_dict(start)
    assert arena.state_dict() == start


def test_success_is_measured_when_it_is_due(arena: EngineArena) -> None:
    config = load_config(None, [*REAL, "evaluate.every=2"])
    rare = EngineArena(config, arena.pool, arena.engine)
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


# ---- in training ----

TRAINED = [
    *("pool.toolworld.environments=3", "pool.toolworld.tasks=16", "pool.toolworld.max_operations=1", "pool.toolworld.reward=binary"),
    *("pool.toolworld.impossible=0.3", "pool.toolworld.held_out_tasks=0.2", "pool.taught_share=0.4", "run.steps=4"),
    *("model.hidden_size=32", "model.layers=1", "model.warm_start_batches=75", "model.warm_start_reward=0.4"),
    *("train.learning_rate=1e-3", "train.warmup_steps=0", "train.max_completion_tokens=16", "train.checkpoint_every=1"),
    *("select.batch_size=3", "rollout.num_rollouts=4", "rollout.workers=1", "evaluate.every=2", "evaluate.tasks=6", "evaluate.samples=2"),
]
NAMED = "uniform,oracle,envsched,pilot_commit,dapo"


@pytest.fixture(scope="module")
def trained(cache_home: None, tmp_path_factory: pytest.TempPathFactory) -> list[Planned]:
    """A finished run of some policies."""
    runs = planned(tmp_path_factory.mktemp("train"), "train", entries_of(NAMED), [0], None, TRAINED)
    for run in runs:
        describe(run)
        make(run)
    return runs


def test_policies_train_from_the_same_start_for_the_same_rollouts(trained: list[Planned]) -> None:
    records = {run.entry.name: read(run.folder, run.entry.name, 0) for run in trained}
    for run in trained:
        assert (run.config.pool.toolworld.seed, run.config.run.seed) == (0, 0)
        record = records[run.entry.name]
        assert record.success[0] == records["uniform"].success[0]
        assert record.evaluated[-1] == len(record.columns["step"])
        own = figures_of(record, records["uniform"])
        assert 0 < own.informative_by_token < 1
        assert own.rollouts >= 4 * 3 * 4
        assert record.total("tokens") > own.rollouts
    assert records["uniform"].evaluated.tolist() == [0, 2, 4]
    assert len({tuple(record.success) for record in records.values()}) > 1, "they have learned from different tasks"
    discarded = records["dapo"].total("rollouts") - records["dapo"].total("trained_rollouts")
    assert discarded > 0
    assert records["dapo"].total("informative_rollouts") == records["dapo"].total("trained_rollouts")
    pilots = records["pilot_commit"]
    assert pilots.columns["rollouts"][0] > 3 * 4


def test_the_oracle_looks_at_what_can_be_solved(trained: list[Planned]) -> None:
    """16 rollouts of each, at step 0 of 4; nobody is charged for them."""
    pool = load_pool(trained[0].config.pool)
    solvable = [task for task in pool.tasks if not task.held_out and task.ground_truth]
    assert 0 < len(solvable) < sum(not task.held_out for task in pool.tasks)
    oracle = read(trained[1].folder, "oracle", 0)
    assert oracle.columns["looks"].tolist() == [16 * len(solvable), 0, 0, 0]
    assert oracle.total("rollouts") == 4 * 3 * 4


@pytest.mark.parametrize(("name", "learned"), [("envsched", 3), ("dapo", 0)])
def test_a_training_that_was_stopped_ends_with_the_same_figures(
    trained: list[Planned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, learned: int
) -> None:
    """It is stopped when a round is played and not learned from; nothing but its folder is left."""

    def learn(self: PocketEngine, groups: Sequence[RolloutGroup]) -> None:
        if self._version == learned:
            raise KeyboardInterrupt
        original(self, groups)

    original = PocketEngine.learn
    monkeypatch.setattr(PocketEngine, "learn", learn)
    whole = next(run for run in trained if run.entry.name == name)
    (run,) = planned(tmp_path, "train", [whole.entry], [0], None, TRAINED)
    describe(run)
    with pytest.raises(KeyboardInterrupt):
        make(run)
    assert len(lines(run.folder / "steps.jsonl")) == learned
    monkeypatch.undo()
    make(run)
    for file in ("steps.jsonl", "curve.jsonl"):
        one, other = (
            [{key: value for key, value in line.items() if not key.startswith("seconds_")} for line in lines(folder / file)]
            for folder in (whole.folder, run.folder)
        )
        assert one == other


def test_a_language_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.kind = 'language_model': expected 'pocket'"):
        planned(tmp_path, "train", entries_of("uniform"), [0], None, [*TRAINED, "model.kind=language_model", "model.path=tiny"])


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
