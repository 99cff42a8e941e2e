"""A run resumes bit-equal after a kill at any moment, and loses no finished rollout."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envsched_gnn.config import (
    Config,
    PoolConfig,
    PredictConfig,
    RolloutConfig,
    RunConfig,
    SelectConfig,
    TrainConfig,
    load_config,
    to_toml,
)
from envsched_gnn.config_scheduling import Target
from envsched_gnn.errors import CheckpointError, ConfigError, GraphError, HistoryError
from envsched_gnn.eval.report import write_report
from envsched_gnn.ledger import Ledger
from envsched_gnn.pool.manifest import write_manifest
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Environment, RolloutGroup, Task, Verifier
from envsched_gnn.train import checkpoint
from envsched_gnn.train.loop import Silent
from envsched_gnn.train.run import device_of, run

ROOT = Path(__file__).parent.parent.parent
STEPS = 6
SHELF = '''
class Shelf:
    """Holds named items."""

    def add_item(self, name, count):
        """Put items on the shelf."""
        if name == "crash":
            raise SystemError("the shelf broke")
        self.items[name] = self.items.get(name, 0) + count
        return {"success": True}

    def count_items(self, name):
        """Look an item up."""
        return self.items.get(name, 0)
'''


def tiny_pool(environments: int = 3, tasks: int = 4) -> Pool:
    """Shelves whose tasks put 1 to 4 items on them."""
    parameters = {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}, "required": ["name"]}
    names = ("add_item", "count_items")
    tools = tuple({"type": "function", "function": {"name": name, "description": "", "parameters": parameters}} for name in names)
    operations = ({"name": "add_item", "type": "state_change"}, {"name": "count_items", "type": "query"})
    shelves = tuple(
        Environment(env_id=f"s{e}", name="Shelf", source=SHELF, tools=tools, operations=operations) for e in range(environments)
    )
    return Pool(environments=shelves, tasks=tuple(tiny_task(f"s{e}", t) for e in range(environments) for t in range(tasks)), source="tiny")


def tiny_task(env_id: str, number: int) -> Task:
    items = [f"item{n}" for n in range(number % 4 + 1)]
    checks = tuple(Check(code=f"def check_func(final_state):\n    return final_state['items'].get('{item}') == 2") for item in items)
    return Task(
        env_id=env_id,
        task_id=f"t{number}",
        prompt=f"Put two of each on shelf {env_id}: {', '.join(items)}.",
        initial_state={"items": {}},
        verifier=Verifier(checks=checks),
        ground_truth=[{"name": "add_item", "arguments": {"name": item, "count": 2}} for item in items],
    )


def configuration(folder: Path, name: str, **run_settings: Any) -> Config:
    return Config(
        pool=PoolConfig(path=str(folder / "pool")),
        select=SelectConfig(batch_size=4),
        rollout=RolloutConfig(num_rollouts=3, workers=1, skill_start=0.5, skill_gain=0.1),
        run=RunConfig(**{"name": name, "folder": str(folder / "runs"), "steps": STEPS, "device": "cpu", **run_settings}),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pool and an uninterrupted run `whole`."""
    path = tmp_path_factory.mktemp("runs")
    write_manifest(tiny_pool(), path / "pool")
    run(configuration(path, "whole"))
    return path


def ledger_rows(folder: Path) -> dict[str, list[tuple]]:
    """Everything in a ledger but the run's name and seconds."""
    db = sqlite3.connect(folder / "ledger.sqlite")
    try:
        return {
            "selections": db.execute(
                "SELECT step, rank, group_id, phase, score, predicted_variance, p_informative FROM selections ORDER BY 1, 2"
            ).fetchall(),
            "rollouts": db.execute("SELECT group_id, k, reward, status, tokens, policy_version FROM rollouts ORDER BY 1, 2").fetchall(),
            "relaxations": db.execute("SELECT step, position, quota, env_id, task_id FROM relaxations ORDER BY 1, 2").fetchall(),
            "groups": db.execute("SELECT group_id, rollouts FROM groups ORDER BY 1").fetchall(),
        }
    finally:
        db.close()


def metric_lines(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("seconds_")} for line in lines]


def seconds_of(folder: Path) -> dict[tuple[str, int], float]:
    """Seconds of every finished rollout: they tell whether it was run again."""
    db = sqlite3.connect(folder / "ledger.sqlite")
    try:
        return {(group, k): seconds for group, k, seconds in db.execute("SELECT group_id, k, seconds FROM rollouts")}
    finally:
        db.close()


def assert_same_run(one: Path, other: Path) -> None:
    assert ledger_rows(one) == ledger_rows(other)
    assert metric_lines(one) == metric_lines(other)


def test_a_whole_run(folder: Path) -> None:
    there = folder / "runs" / "whole"
    names = {path.name for path in there.iterdir()}
    assert {
        "config.toml",
        "resolved.toml",
        "versions.json",
        "pool.json",
        "metrics.jsonl",
        "ledger.sqlite",
        "checkpoint",
        "graph.pt",
    } <= names
    rows = ledger_rows(there)
    assert len(rows["selections"]) == 4 * STEPS
    assert len(rows["rollouts"]) == 4 * STEPS * 3
    assert len({reward for _, _, reward, *_ in rows["rollouts"]}) > 1, "rewards vary"
    lines = metric_lines(there)
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert all(0 <= line["zero_variance_share"] <= 1 and 0 <= line["variance_mean"] <= 0.25 for line in lines)
    assert lines[0]["environments"] == len({group.split(":")[1].split("/")[0] for _, _, group, *_ in rows["selections"][:4]})
    assert lines[0]["tools"] == 2
    assert load_config(there / "resolved.toml") == configuration(folder, "whole")
    assert sorted(path.name for path in (there / "checkpoint").iterdir()) == ["step-000005.pt", "step-000006.pt"]


def test_the_same_settings_give_the_same_run(folder: Path) -> None:
    assert_same_run(run(configuration(folder, "again")), folder / "runs" / "whole")


PLACES = {
    "before select": 1,
    "after select": 3,
    "selection written": 2,
    "before a group": 6,
    "group written": 11,
    "observed": 3,
    "metrics written": 4,
    "checkpoint half written": 2,
    "checkpoint torn": 3,
    "checkpoint written": 6,
}
"""Where a run is killed, and at which time it gets there."""

KILLED = """
import json, os, signal, sys
from pathlib import Path
from tests.train.test_run import configuration
from envsched_gnn.ledger import Ledger
from envsched_gnn.schedule.envsched import EnvSched
from envsched_gnn.train import checkpoint
from envsched_gnn.train.run import run

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def half(path, content):
    path.with_name(path.name + ".tmp").write_bytes(content[: len(content) // 2])
    die()

def torn(path, content):
    path.write_bytes(content[: len(content) // 2])
    die()

def killed_at(place, count, config):
    owner, method, before, after = {
        "before select": (EnvSched, "select", die, None),
        "after select": (EnvSched, "select", None, die),
        "selection written": (Ledger, "write_selection", None, die),
        "before a group": (Ledger, "write_group", die, None),
        "group written": (Ledger, "write_group", None, die),
        "observed": (EnvSched, "observe", None, die),
        "metrics written": (checkpoint, "save", die, None),
        "checkpoint half written": (checkpoint, "write_atomic", half, None),
        "checkpoint torn": (checkpoint, "write_atomic", torn, None),
        "checkpoint written": (checkpoint, "save", None, die),
    }[place]
    original, calls = getattr(owner, method), 0

    def patched(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == count and before:
            before(*arguments)
        result = original(*arguments, **options)
        if calls == count and after:
            after()
        return result

    setattr(owner, method, patched)
    run(config)

folder, statuses = Path(sys.argv[1]), {}
for place, count in json.loads(sys.argv[2]).items():
    child = os.fork()
    if child == 0:
        killed_at(place, count, configuration(folder, place.replace(" ", "-")))
        os._exit(0)
    statuses[place] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(statuses))
"""


@pytest.fixture(scope="module")
def statuses(folder: Path) -> dict[str, int]:
    """How the runs that were to be killed at each of PLACES ended."""
    command = [sys.executable, "-c", KILLED, str(folder), json.dumps(PLACES)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_any_stage_changes_nothing(folder: Path, statuses: dict[str, int], place: str) -> None:
    assert statuses[place] == -signal.SIGKILL
    there = folder / "runs" / place.replace(" ", "-")
    finished = seconds_of(there)
    run(configuration(folder, there.name))
    assert_same_run(there, folder / "runs" / "whole")
    assert seconds_of(there).items() >= finished.items(), "no finished rollout was run again"


KILLED_AFTER = """
import os, signal, sys, time
from pathlib import Path
from tests.train.test_run import configuration
from envsched_gnn.train.run import run

folder = Path(sys.argv[1])
for delay in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        run(configuration(folder, "random"))
        os._exit(0)
    time.sleep(float(delay))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_kills_at_random_moments(folder: Path) -> None:
    there = folder / "runs" / "random"
    delays = [f"{0.02 + 0.13 * n:.2f}" for n in range(8)]
    subprocess.run([sys.executable, "-c", KILLED_AFTER, str(folder), *delays], cwd=ROOT, check=True)
    finished = seconds_of(there)
    run(configuration(folder, "random"))
    assert_same_run(there, folder / "runs" / "whole")
    assert seconds_of(there).items() >= finished.items()


def test_without_any_checkpoint_the_ledger_is_replayed(folder: Path) -> None:
    there = run(configuration(folder, "bare"))
    finished = seconds_of(there)
    for path in (there / "checkpoint").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    run(configuration(folder, "bare"))
    assert_same_run(there, folder / "runs" / "whole")
    assert seconds_of(there) == finished


@pytest.mark.parametrize("policy", ["paper", "uniform", "dps", "dots"])
def test_every_policy_runs_and_resumes(folder: Path, policy: str) -> None:
    whole = run(configuration(folder, f"{policy}-whole", policy=policy))
    run(configuration(folder, f"{policy}-parts", policy=policy, steps=2))
    parts = run(configuration(folder, f"{policy}-parts", policy=policy))
    assert_same_run(whole, parts)
    assert ledger_rows(whole)["selections"] != ledger_rows(folder / "runs" / "whole")["selections"]


@pytest.mark.parametrize(("policy", "stopped_after"), [("pilot_commit", 30), ("dapo", 11)])
def test_a_step_of_several_trips_keeps_every_row(folder: Path, policy: str, stopped_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it was stopped between two trips, or within one."""
    whole = run(configuration(folder, f"{policy}-whole", policy=policy))
    rows, lines = ledger_rows(whole), metric_lines(whole)
    for line in lines:
        ranks = [row[1] for row in rows["selections"] if row[0] == line["step"]]
        assert ranks == list(range(1, line["picks"] + 1))
    assert len({row[2] for row in rows["selections"]}) == len(rows["groups"]) == sum(line["picks"] for line in lines)
    assert len(rows["rollouts"]) == sum(line["rollouts"] for line in lines) == lines[-1]["envsched/total/charged_rollouts"]
    assert len(rows["rollouts"]) > STEPS * 4 * 3, "more than a batch a step"
    sizes = {size for _, size in rows["groups"]}
    assert sizes == ({1, 2} if policy == "pilot_commit" else {3}), "two pilots of three rollouts"

    written = 0

    def write_group(self: Ledger, group: RolloutGroup) -> None:
        nonlocal written
        written += 1
        if written > stopped_after:
            raise KeyboardInterrupt
        original(self, group)

    original = Ledger.write_group
    monkeypatch.setattr(Ledger, "write_group", write_group)
    parts = configuration(folder, f"{policy}-parts", policy=policy)
    with pytest.raises(KeyboardInterrupt):
        run(parts)
    monkeypatch.undo()
    finished = seconds_of(folder / "runs" / parts.run.name)
    assert_same_run(run(parts), whole)
    assert seconds_of(folder / "runs" / parts.run.name).items() >= finished.items()


def test_another_setting_is_named(folder: Path) -> None:
    config = configuration(folder, "whole")
    with pytest.raises(ConfigError, match=r"other settings: select\.batch_size = 4 there and 5 now\. Choose another run\.name"):
        run(replace(config, select=SelectConfig(batch_size=5)))
    with pytest.raises(ConfigError, match="holds a run already"):
        run(config, resume=False)
    with pytest.raises(ConfigError, match=r"Set run\.policy = 'paper'"):
        run(load_config(None, ["predict.preset=paper"]))


@pytest.mark.parametrize("target", ["informative", "std"])
def test_paper_has_a_target_of_its_own(folder: Path, target: Target) -> None:
    config = replace(configuration(folder, "target", policy="paper"), predict=PredictConfig(target=target))
    with pytest.raises(ConfigError, match=f"predict.target = '{target}' with run.policy = 'paper', which orders by its own variance"):
        run(config)


def test_a_setting_younger_than_the_run_is_its_default(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs", tmp_path / "runs")
    kept = tmp_path / "runs" / "whole" / "resolved.toml"
    older = tomllib.loads(kept.read_text())
    older = {name: table for name, table in older.items() if name not in ("model", "train", "vllm", "evaluate")}
    kept.write_text(to_toml(older))
    config = replace(configuration(folder, "whole"), run=RunConfig(name="whole", folder=str(tmp_path / "runs"), steps=STEPS, device="cpu"))
    run(config)
    assert tomllib.loads(kept.read_text())["train"]["learning_rate"] == 1e-6
    kept.write_text(to_toml(older))
    with pytest.raises(ConfigError, match=r"other settings: train\.kl = 0\.0 there and 0\.1 now"):
        run(replace(config, train=TrainConfig(kl=0.1)))


def test_a_run_that_has_not_begun_may_be_given_other_settings_and_another_pool(tmp_path: Path) -> None:
    write_manifest(tiny_pool(), tmp_path / "pool")
    wrong = configuration(tmp_path, "r", steps=1, device="warp")
    with pytest.raises(ConfigError, match="warp"):
        run(wrong)
    there = tmp_path / "runs" / "r"
    assert {"resolved.toml", "graph.pt"} <= {path.name for path in there.iterdir()}
    write_manifest(tiny_pool(tasks=5), tmp_path / "pool")
    run(configuration(tmp_path, "r", steps=1, seed=3))
    assert load_config(there / "resolved.toml").run.seed == 3
    assert json.loads((there / "pool.json").read_text())["tasks"] == 15
    (there / "resolved.toml").unlink()
    with pytest.raises(CheckpointError, match=r"rounds without resolved\.toml"):
        run(configuration(tmp_path, "r", steps=1, seed=3))


def test_another_pool_is_named(folder: Path, tmp_path: Path) -> None:
    write_manifest(tiny_pool(), tmp_path / "pool")
    run(configuration(tmp_path, "r", steps=1))
    write_manifest(tiny_pool(tasks=5), tmp_path / "pool")
    with pytest.raises(CheckpointError, match=r"a run of another pool: 12 tasks of hash \w{12} there, 15 with"):
        run(configuration(tmp_path, "r", steps=2))


def test_a_damaged_ledger_is_named(folder: Path, tmp_path: Path) -> None:
    write_manifest(tiny_pool(), tmp_path / "pool")
    there = run(configuration(tmp_path, "r", steps=1))
    (there / "ledger.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(HistoryError, match=r"ledger\.sqlite"):
        run(configuration(tmp_path, "r", steps=2))


def test_environments_that_never_start_cost_the_run_nothing(tmp_path: Path) -> None:
    pool = tiny_pool()
    broken = replace(pool, environments=tuple(replace(e, source="raise RuntimeError('no shelf')") for e in pool.environments))
    write_manifest(broken, tmp_path / "pool")
    there = run(configuration(tmp_path, "r", steps=12))
    rows = ledger_rows(there)
    assert {(reward, status) for _, _, reward, status, *_ in rows["rollouts"]} == {(None, "crashed")}
    lines = metric_lines(there)
    assert [line["variance_mean"] for line in lines] == [None] * 12
    assert lines[-1]["envsched/quarantined"] > 0
    assert "were quarantined for failing" in write_report(there).read_text()


class Told(Silent):
    def __init__(self) -> None:
        self.text: list[str] = []

    def stage(self, text: str) -> None:
        self.text.append(text)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff"])
@pytest.mark.parametrize("name", ["pool.json", "versions.json"])
def test_a_lost_description_is_written_again(name: str, content: bytes | None, tmp_path: Path) -> None:
    write_manifest(tiny_pool(), tmp_path / "pool")
    there = run(configuration(tmp_path, "r", steps=1))
    before = (there / name).read_bytes()
    (there / name).unlink()
    if content is not None:
        (there / name).write_bytes(content)
    told = Told()
    run(configuration(tmp_path, "r", steps=1), progress=told)
    assert any(f"{name}: missing or damaged; written again" in text for text in told.text)
    assert (there / name).read_bytes() == before
    (there / name).unlink()
    write_manifest(tiny_pool(tasks=5), tmp_path / "pool")
    with pytest.raises((CheckpointError, GraphError), match=r"pool"):
        run(configuration(tmp_path, "r", steps=2))
    write_manifest(tiny_pool(), tmp_path / "pool")
    run(configuration(tmp_path, "r", steps=2))


def test_lost_figures_and_a_lost_ledger_are_told(tmp_path: Path) -> None:
    write_manifest(tiny_pool(), tmp_path / "pool")
    there = run(configuration(tmp_path, "r", steps=2))
    metrics = (there / "metrics.jsonl").read_bytes()
    (there / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: missing, or shorter than its checkpoint says\. Restore it"):
        run(configuration(tmp_path, "r", steps=3))
    (there / "metrics.jsonl").write_bytes(metrics)
    (there / "ledger.sqlite").unlink()
    told = Told()
    run(configuration(tmp_path, "r", steps=3), progress=told)
    assert any("holds nothing of the 2 rounds before; restore it" in text for text in told.text)


def test_changed_versions_are_told(tmp_path: Path) -> None:
    write_manifest(tiny_pool(), tmp_path / "pool")
    there = run(configuration(tmp_path, "r", steps=1))
    versions = json.loads((there / "versions.json").read_text())
    (there / "versions.json").write_text(json.dumps(versions | {"torch": "1.0"}))
    told = Told()
    run(configuration(tmp_path, "r", steps=1), progress=told)
    assert any("torch 1.0 then" in text for text in told.text)


def test_two_processes_never_share_a_folder(folder: Path) -> None:
    from envsched_gnn.train.folder import locked

    with locked(folder / "runs" / "whole"), pytest.raises(ConfigError, match="another process is running here"):
        run(configuration(folder, "whole"))


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ConfigError, match=r"run\.device = .warp.: not usable here"):
        device_of("warp")


def test_checkpoints(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) == (None, [])
    for step in (9, 10, 1000000):
        checkpoint.save(tmp_path, step, {"step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000010.pt", "step-1000000.pt"]
    assert checkpoint.load_newest(tmp_path) == ({"step": 1000000}, [])
    newest = tmp_path / "step-1000000.pt"
    newest.write_bytes(newest.read_bytes()[:-1])
    state, problems = checkpoint.load_newest(tmp_path)
    assert state == {"step": 10}
    assert len(problems) == 1
    assert "step-1000000.pt: half-written or damaged" in problems[0]
