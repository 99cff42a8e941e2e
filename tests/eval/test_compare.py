"""Comparisons: names, runs in the simulator, figures by hand, results, what is said where nothing can be told."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envsched_gnn.errors import ConfigError, HistoryError
from envsched_gnn.eval.compare.compare import join
from envsched_gnn.eval.compare.figures import Figures, Record, figures_of, read
from envsched_gnn.eval.compare.join import joined
from envsched_gnn.eval.compare.play import Run
from envsched_gnn.eval.compare.plot import write_plot
from envsched_gnn.eval.compare.results import FLAT, LONE, NO_ORACLE, notes_of, result_of, summary_of, write_result
from envsched_gnn.eval.compare.runs import Planned, describe, described, make, make_all, planned
from envsched_gnn.eval.compare.variants import VARIANTS, entries_of, entry_of, seeds_of
from envsched_gnn.eval.compare.words import HEAD, cells
from envsched_gnn.eval.resumable import lines
from envsched_gnn.policy_facts import NAMES

TINY = ["simulate.environments=4", "simulate.tasks=8", "select.batch_size=4", "rollout.num_rollouts=4", "train.checkpoint_every=1"]


def runs_of(folder: Path, names: str, seeds: str = "0", *more: str) -> list[Planned]:
    return planned(folder, "simulate", entries_of(names), seeds_of(seeds), None, [*TINY, "run.steps=3", *more])


def made(runs: list[Planned]) -> list[Planned]:
    for run in runs:
        describe(run)
        make(run)
    return runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of every policy."""
    folder = tmp_path_factory.mktemp("compare")
    made(runs_of(folder, ",".join(NAMES)))
    return folder


# ---- names ----


def test_a_name_is_a_policy_or_a_variant_of_one() -> None:
    assert entry_of("mopps").name == "mopps"
    assert (entry_of("paper:rho_0").policy, entry_of("paper:rho_0").folder) == ("paper", "paper.rho_0")
    assert [entry.name for entry in entries_of("paper, uniform,paper", ("uniform",))] == ["uniform", "paper"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("papr", "Did you mean 'paper'"),
        ("paper:within", "Did you mean 'within_only'"),
        ("envsched:no_decline", "no such variant"),  # its score does not read predicted variance
        ("mopps:rho_0", "expected a variant of envsched or paper"),
        ("", "expected names with commas"),
    ],
)
def test_a_wrong_name_tells_the_nearest(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        entries_of(name)


def test_seeds() -> None:
    assert seeds_of("0-2") == [0, 1, 2]
    assert seeds_of("7,0-1,1") == [0, 1, 7]
    for wrong in ("", "a", "2-1", "-1", "1-"):
        with pytest.raises(ConfigError, match="expected numbers from 0"):
            seeds_of(wrong)


# ---- runs ----


def test_every_policy_plays_in_the_simulator(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    for name in NAMES:
        run = read(folder / name / "0", name, 0)
        assert run.total("rollouts") >= 4 * run.total("groups") > 0
        assert run.evaluated.tolist() == list(range(len(run.columns["step"]) + 1))
        assert run.success[0] == pytest.approx(read(folder / "uniform" / "0", "uniform", 0).success[0], abs=0)
    spends_more = {"dots", "pilot_commit", "dapo"}
    for name in NAMES:
        run = read(folder / name / "0", name, 0)
        assert (run.total("trained_rollouts") < run.total("rollouts")) == (name in spends_more)


def test_a_run_ends_when_its_budget_is_spent(folder: Path) -> None:
    """3 steps of 4 tasks with 4 rollouts; Pilot-Commit pays 24 for pilots and 8 for 4 commits in its first step."""
    steps = {name: [line["rollouts"] for line in lines(folder / name / "0" / "steps.jsonl")] for name in NAMES}
    assert steps["uniform"] == [16, 16, 16]
    assert all(sum(spent[:-1]) < 48 for spent in steps.values())
    assert all(sum(spent) >= 48 or len(spent) == 3 for spent in steps.values())


def test_a_run_that_was_stopped_ends_with_the_same_figures(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Run._step
    monkeypatch.setattr(Run, "_step", lambda self, at: step(self, at) if at < 2 else (_ for _ in ()).throw(KeyboardInterrupt))
    runs = runs_of(tmp_path, "envsched,greso")
    for run in runs:
        describe(run)
        with pytest.raises(KeyboardInterrupt):
            make(run)
        assert not run.done
    monkeypatch.undo()
    for run in made(runs):
        for name in ("steps.jsonl", "curve.jsonl"):
            whole, parts = (lines(where / name) for where in (folder / run.entry.name / "0", run.folder))
            for line in (*whole, *parts):
                for key in [key for key in line if key.startswith("seconds_")]:
                    del line[key]
            assert whole == parts


def test_a_finished_run_is_not_made_again_and_other_settings_are_refused(folder: Path) -> None:
    before = (folder / "mopps" / "0" / "steps.jsonl").stat().st_mtime_ns
    told: list[str] = []
    assert make_all(runs_of(folder, "mopps"), 2, told.append) == []
    assert told == ["1 of 1 runs are finished already"]
    assert (folder / "mopps" / "0" / "steps.jsonl").stat().st_mtime_ns == before
    describe(runs_of(folder, "mopps", "0", "rollout.workers=1")[0])  # decides nothing
    with pytest.raises(ConfigError, match=r"simulate\.spread = 2\.0 there and 3\.0 now.*Give another --folder"):
        make_all(runs_of(folder, "mopps", "0", "simulate.spread=3.0"), 2, told.append)


def test_runs_of_a_seed_share_the_world_and_all_that_is_drawn(tmp_path: Path) -> None:
    uniform, paper, other = runs_of(tmp_path, "uniform,paper", "3") + runs_of(tmp_path, "uniform", "4")
    assert uniform.config == paper.config
    assert (uniform.config.simulate.seed, uniform.config.run.seed, other.config.simulate.seed) == (3, 3, 4)
    describe(uniform)
    assert described(uniform.folder) == uniform


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """A parent that is killed cannot tidy up."""
    (run,) = runs_of(tmp_path, "uniform", "0", "run.steps=100000")
    describe(run)
    code = "import sys, time; from pathlib import Path; from envsched_gnn.eval.compare import runs; "
    code += "print(runs._started(runs.described(Path(sys.argv[1]))).pid, flush=True); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", code, str(run.folder)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    deadline = time.monotonic() + 90
    while not lines(run.folder / "steps.jsonl") and time.monotonic() < deadline:
        time.sleep(0.1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lines(run.folder / "steps.jsonl")
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.is_file() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, "uniform")
    describe(run)
    (run.folder / "resolved.toml").write_text((run.folder / "resolved.toml").read_text().replace("[pool]", "[pool]\nnothing = 1"))
    (run.folder / "run.json").write_text('{"where": "simulate", "policy": "uniform", "seed": 0}')
    with pytest.raises(ConfigError, match=r"unknown key pool\.nothing"):
        make_all([run], 1, print)
    (run.folder / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json: cannot be read"):
        described(run.folder)


# ---- figures ----


def record(policy: str, seed: int = 0, *, success: list[float], **columns: list[float]) -> Record:
    """Steps of 8 charged rollouts and 80 tokens, 2 groups of 4; half of all informative, of variance 0.25."""
    n = len(success) - 1
    plain = {"step": range(n), "rollouts": 8, "tokens": 80, "groups": 2, "informative_groups": 1, "trained_rollouts": 8}
    plain |= {"informative_rollouts": 4, "informative_tokens": 60, "variance_rollouts": 1.0, "environments": 2, "looks": 0}
    filled = {name: np.broadcast_to(np.array(columns.get(name, value), dtype=float), n) for name, value in plain.items()}
    return Record(policy=policy, seed=seed, columns=filled, evaluated=np.arange(n + 1), success=np.array(success, dtype=float))


def test_figures_by_hand() -> None:
    uniform = record("uniform", success=[0.0, 0.2, 0.4])
    own = figures_of(uniform, uniform)
    assert (own.informative, own.informative_by_step, own.informative_by_token, own.variance) == (0.5, 0.5, 0.75, 0.125)
    assert (own.area, own.final, own.best_of_uniform, own.unused) == (pytest.approx(0.2), 0.4, 2, 0)
    # One step that cost as much as both of uniform's: six groups were thrown away.
    columns = {"rollouts": [16], "trained_rollouts": [8], "informative_groups": [2], "informative_rollouts": [8], "tokens": [160]}
    dapo = figures_of(record("dapo", success=[0.0, 0.4], **columns), uniform)
    assert (dapo.informative, dapo.informative_by_step, dapo.unused, dapo.rollouts) == (0.5, 1.0, 0.5, 16)
    assert dapo.clock.tolist() == [0, 2]
    assert (dapo.area, dapo.area_by_step, dapo.best_of_uniform) == (pytest.approx(0.2), pytest.approx(0.2), 2)
    early = figures_of(record("early", success=[0.0, 0.5, 0.3]), uniform)
    assert early.best_of_uniform == 1  # its fit is 0, 0.4, 0.4
    assert figures_of(record("late", success=[0.0, 0.1, 0.39]), uniform).best_of_uniform == math.inf


def test_the_share_of_the_way_and_its_interval() -> None:
    """Means over seeds: uniform 0.5, oracle 0.75, between them 0.625, which is half of the way."""
    rows = []
    for seed in (0, 1):
        uniform = record("uniform", seed, success=[0.0, 0.2])
        rows.append(figures_of(uniform, uniform))
        for name, rollouts in (("half", 5), ("oracle", 6)):
            rows.append(figures_of(record(name, seed, success=[0.0, 0.3], informative_rollouts=[rollouts]), uniform))
    uniform_row, half, oracle = summary_of(rows)
    assert [row["share_of_way"]["value"] for row in (uniform_row, half, oracle)] == [0, 0.5, 1]
    assert (half["share_of_way"]["low"], half["share_of_way"]["high"]) == (0.5, 0.5)
    assert half["informative"]["minus_uniform"]["value"] == 0.125
    assert half["area"]["minus_uniform"]["value"] == pytest.approx(0.05)
    assert half["best_of_uniform"] == {"value": 1, "low": 1, "high": 1, "seeds": 2, "reached": 2}
    shown = dict(zip(HEAD, cells(half), strict=True))
    assert (shown["way to the oracle"], shown["informative"]) == ("0.50 [0.50, 0.50]", "0.625 [+0.125, +0.125]")
    assert shown["uniform's best by step"] == "1 [1, 1], 2/2"


def row_of(policy: str, **values: float) -> Figures:
    uniform = record("uniform", success=[0.2, 0.2], informative_rollouts=[0], variance_rollouts=[values.get("variance", 0.0)])
    return figures_of(uniform, uniform)


def test_what_is_said_where_nothing_can_be_told() -> None:
    assert notes_of([row_of("uniform")]) == [FLAT, LONE, NO_ORACLE]
    assert notes_of([row_of("uniform", variance=0.1)]) == [LONE, NO_ORACLE]
    (summary,) = summary_of([row_of("uniform")])
    assert math.isnan(summary["area"]["low"])
    shown = cells(json.loads(json.dumps(summary).replace("NaN", "null")))
    assert shown[1] == "–"
    assert "[" not in "".join(shown)


def test_the_result_has_a_row_a_policy_and_seed(folder: Path, tmp_path: Path) -> None:
    result = result_of(made(runs_of(folder, "uniform,mopps,oracle,paper", "0-1")), "envsched compare ...")
    json.dumps(result, allow_nan=False)
    assert set(result) == {"command", "commit", "date", "in", "settings", "seeds", "summary", "rows", "notes"}
    assert [(row["policy"], row["seed"]) for row in result["rows"]] == [
        (name, seed) for seed in (0, 1) for name in ("uniform", "mopps", "oracle", "paper")
    ]
    assert result["settings"]["simulate.environments"] == 4
    assert "run.seed" not in result["settings"]
    assert result["notes"] == []
    assert next(row["informative"]["value"] for row in result["summary"] if row["policy"] == "oracle") == 1.0
    for name, start in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        assert write_plot(result, tmp_path / name).read_bytes().startswith(start)


def test_results_made_apart_are_joined(folder: Path, tmp_path: Path) -> None:
    """Seed 0 of two policies, then seed 1 of both and another policy of seed 0: as if all had been made at once."""
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    parts = [runs_of(folder, "uniform,mopps"), runs_of(folder, "uniform,mopps", "1"), runs_of(folder, "uniform,dps")]
    whole = result_of(made([*parts[0], *parts[1], parts[2][1]]), "all")
    for path, runs, command in zip(paths, parts, ("first", "second", "third"), strict=True):
        write_result(result_of(runs, command) | {"commit": f"of the {command}", "date": f"day of the {command}"}, path)
    found = join(paths[:2], out=tmp_path / "ab.json")
    found = join([tmp_path / "ab.json", paths[2]], out=tmp_path / "abc.json", command="envsched compare --join ...")
    assert json.loads((tmp_path / "abc.json").read_text()) == found
    assert (tmp_path / "abc.svg").is_file()
    for name in ("seeds", "summary", "rows", "settings", "notes"):
        assert found[name] == whole[name], name
    assert {part["command"]: part["runs"] for part in found["parts"]} == {
        "first": {"mopps": [0]},
        "second": {"uniform": [1], "mopps": [1]},
        "third": {"uniform": [0], "dps": [0]},
    }
    assert all((part["commit"], part["date"]) == (f"of the {part['command']}", f"day of the {part['command']}") for part in found["parts"])


def test_results_that_cannot_stand_in_one_table_are_not_joined(folder: Path, tmp_path: Path) -> None:
    def changed(name: str, change: Callable[[dict[str, Any]], object]) -> Path:
        result = result_of(made(runs_of(folder, "uniform,mopps")), "x")
        change(result)
        write_result(result, tmp_path / name)
        return tmp_path / name

    plain = changed("plain.json", lambda result: None)
    slower = changed("slower.json", lambda result: result["rows"][0].update(seconds_a_step=9.0))
    assert joined([plain, slower], "x")["rows"][0]["seconds_a_step"] == 9.0
    for path, said in (
        (changed("other.json", lambda result: result["settings"].update({"run.steps": 4})), r"run\.steps = 3 and 4"),
        (changed("where.json", lambda result: result.update({"in": "run"})), "--in = 'simulate' and 'run'"),
        (changed("uniform.json", lambda result: result["rows"][0].update(area=0.5)), "uniform of seed 0 is another run"),
    ):
        with pytest.raises(ConfigError, match=said):
            joined([plain, path], "x")
    changed("bare.json", lambda result: result["rows"][1].pop("curve"))
    changed("lone.json", lambda result: result["rows"].pop(0))
    changed("empty.json", lambda result: result["rows"].clear())
    changed("parts.json", lambda result: result.update(parts=[{}]))
    changed("settings.json", lambda result: result.update(settings=3))
    for name, text in (("text.json", "{"), ("list.json", "[]"), ("rows.json", '{"rows": [1]}')):
        (tmp_path / name).write_text(text)
    for name in (
        "bare.json",
        "lone.json",
        "empty.json",
        "parts.json",
        "settings.json",
        "text.json",
        "list.json",
        "rows.json",
        "absent.json",
    ):
        with pytest.raises(HistoryError, match=rf"{name}: cannot be read .*expected rows, settings"):
            joined([plain, tmp_path / name], "x")


def test_a_damaged_run_is_named(tmp_path: Path, folder: Path) -> None:
    for name in ("steps.jsonl", "curve.jsonl", "done.json"):
        (tmp_path / name).write_bytes((folder / "uniform" / "0" / name).read_bytes())
    read(tmp_path, "uniform", 0)
    (tmp_path / "steps.jsonl").write_bytes(b"")
    with pytest.raises(HistoryError, match="0 steps; expected 3"):
        read(tmp_path, "uniform", 0)


# ---- variants ----


def test_a_variant_changes_one_thing(tmp_path: Path) -> None:
    """What each sets, against the policy that it is a variant of."""
    names = ",".join(["paper", *(f"{variant.of[-1]}:{variant.name}" for variant in VARIANTS)])
    base, *others = planned(tmp_path, "run", entries_of(names), [0], None, TINY)
    for run in others:
        assert run.entry.variant is not None
        changed = [section for section in ("graph", "select", "predict") if getattr(run.config, section) != getattr(base.config, section)]
        assert len(changed) + (run.entry.variant.recent is not None) == 1
