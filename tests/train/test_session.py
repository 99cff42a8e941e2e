"""Training resumes after a kill at any moment, evaluates without disturbing the rounds, and loses nothing that is finished."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envsched_gnn.config import Config, PoolConfig, RolloutConfig, RunConfig, SelectConfig
from envsched_gnn.config_training import EvaluateConfig, TrainConfig
from envsched_gnn.errors import CheckpointError, ConfigError, EnvSchedError, HistoryError
from envsched_gnn.pool.manifest import write_manifest
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Selection, Task
from envsched_gnn.train import checkpoint
from envsched_gnn.train.engine import ScriptedEngine
from envsched_gnn.train.evaluation import Evaluations, held_out, read_evaluations, summary
from envsched_gnn.train.loop import Line, Silent
from envsched_gnn.train.run import run
from envsched_gnn.train.session import play_rounds
from tests.train.test_run import assert_same_run, ledger_rows, metric_lines, seconds_of, tiny_pool

ROOT = Path(__file__).parent.parent.parent
STEPS = 6


def shared_out(pool: Pool) -> Pool:
    """The last task of every shelf is held out, and the last shelf as a whole."""

    def kept(task: Task) -> Task:
        return replace(task, info={"held_out": True}) if task.task_id == "t3" or task.env_id == "s3" else task

    return Pool(environments=pool.environments, tasks=tuple(map(kept, pool.tasks)), source="tiny")


class Practising(ScriptedEngine):
    """The scripted policy as a learner."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, 3, workers=1, skill_start=0.5, skill_gain=0.1)


class Told(Silent):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.evaluations: list[Line] = []

    def stage(self, text: str) -> None:
        self.text.append(text)

    def evaluated(self, line: Line) -> None:
        self.evaluations.append(line)


def configuration(folder: Path, name: str, *, evaluate: EvaluateConfig | None = None, **run_settings: Any) -> Config:
    return Config(
        pool=PoolConfig(path=str(folder / "pool")),
        select=SelectConfig(batch_size=4),
        rollout=RolloutConfig(num_rollouts=3, workers=1),
        train=TrainConfig(checkpoint_every=2),
        evaluate=evaluate or EvaluateConfig(every=3, tasks=6, samples=2),
        run=RunConfig(**{"name": name, "folder": str(folder / "runs"), "steps": STEPS, "device": "cpu", **run_settings}),
    )


def played(config: Config, told: Told | None = None) -> Path:
    return play_rounds(config, Practising, given="", progress=told or Silent())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pool and an uninterrupted run `whole`."""
    path = tmp_path_factory.mktemp("training")
    write_manifest(shared_out(tiny_pool(environments=4)), path / "pool")
    played(configuration(path, "whole"))
    return path


def evaluations_in(folder: Path) -> list[Line]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_evaluations(folder / "evaluations.jsonl")]


def assert_same(one: Path, other: Path) -> None:
    assert_same_run(one, other)
    assert evaluations_in(one) == evaluations_in(other)


def test_a_whole_run(folder: Path) -> None:
    there = folder / "runs" / "whole"
    lines = evaluations_in(there)
    assert [line["step"] for line in lines] == [0, 3, 6]
    for line in lines:
        assert (line["samples"], line["all"]["tasks"]) == (2, 6)
        assert (line["held_out_tasks"]["tasks"], line["held_out_environments"]["tasks"]) == (3, 3)
        assert 0 <= line["held_out_tasks"]["solved"] <= line["held_out_tasks"]["reward"] <= 1
    assert lines[-1]["all"]["reward"] > lines[0]["all"]["reward"], "practice shows on tasks that were never practised"
    trained = {(row[2].split(":")[1]) for row in ledger_rows(there)["selections"]}
    assert not {key for key in trained if key.startswith("s3/") or key.endswith("/t3")}
    assert sorted(path.name for path in (there / "checkpoint").iterdir()) == ["step-000004.pt", "step-000006.pt"]
    assert {"transformers", "trl", "accelerate"} <= set(json.loads((there / "versions.json").read_text()))


def test_evaluation_disturbs_nothing(folder: Path) -> None:
    quiet = played(configuration(folder, "quiet", evaluate=EvaluateConfig(every=0, tasks=6, samples=2)))
    assert_same_run(quiet, folder / "runs" / "whole")
    assert [line["step"] for line in evaluations_in(quiet)] == [6]
    assert evaluations_in(quiet)[0] == evaluations_in(folder / "runs" / "whole")[-1]


def test_nothing_held_out_is_told(tmp_path: Path) -> None:
    write_manifest(tiny_pool(), tmp_path / "pool")
    told = Told()
    there = played(configuration(tmp_path, "r", steps=1), told)
    assert any("no task is held out, so nothing is evaluated. Mark tasks with info.held_out" in text for text in told.text)
    assert (there / "evaluations.jsonl").read_bytes() == b""


PLACES = {
    "group written": 11,
    "checkpoint torn": 2,
    "before an evaluation": 2,
    "evaluation played": 2,
    "evaluation half written": 2,
}
"""Where a run is killed, and at which time it gets there; `test_run` kills the same loop at more places."""

KILLED = """
import json, os, signal, sys
from pathlib import Path
from envsched_gnn.ledger import Ledger
from envsched_gnn.train import checkpoint, evaluation
from tests.train.test_session import Practising, configuration, played

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def torn(path, content):
    path.write_bytes(content[: len(content) // 2])
    die()

def half(path, line):
    with path.open("ab") as file:
        file.write(json.dumps(line).encode()[:40])
    die()

def killed_at(place, count, config):
    owner, method, before, after = {
        "group written": (Ledger, "write_group", None, die),
        "checkpoint torn": (checkpoint, "write_atomic", torn, None),
        "before an evaluation": (Practising, "evaluate", die, None),
        "evaluation played": (Practising, "evaluate", None, die),
        "evaluation half written": (evaluation, "append", half, None),
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
    played(config)

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
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_any_stage_changes_nothing(folder: Path, statuses: dict[str, int], place: str) -> None:
    assert statuses[place] == -signal.SIGKILL
    there = folder / "runs" / place.replace(" ", "-")
    finished = seconds_of(there)
    played(configuration(folder, there.name))
    assert_same(there, folder / "runs" / "whole")
    assert seconds_of(there).items() >= finished.items(), "no finished rollout was played again"


def test_more_rounds_go_on_where_it_ended(folder: Path) -> None:
    played(configuration(folder, "longer", steps=4))
    there = played(configuration(folder, "longer"))
    assert_same_run(there, folder / "runs" / "whole")
    assert [line["step"] for line in evaluations_in(there)] == [0, 3, 4, 6]


class Pressing(Practising):
    """Presses Ctrl-C at the first group of the third round, or in the second evaluation."""

    where = "round"

    def play(self, selection: Selection, finished: Any = ()) -> Any:
        if self.where == "round" and selection.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        yield from super().play(selection, finished)

    def evaluate(self, rows: Sequence[int], samples: int) -> list[list[float | None]]:
        if self.where == "evaluation" and self.policy.version == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return super().evaluate(rows, samples)


@pytest.mark.parametrize(("where", "rounds"), [("round", 3), ("evaluation", 3)])
def test_ctrl_c_ends_a_round_whole_and_an_evaluation_at_once(
    folder: Path, where: str, rounds: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = configuration(folder, f"ctrl-c-{where}")
    monkeypatch.setattr(Pressing, "where", where)
    with pytest.raises(KeyboardInterrupt):
        play_rounds(config, Pressing, given="", progress=Silent())
    there = folder / "runs" / config.run.name
    assert len(metric_lines(there)) == rounds
    state, _ = checkpoint.load_newest(there / "checkpoint")
    assert state is not None
    assert state["step"] == rounds
    assert [line["step"] for line in evaluations_in(there)] == [0]
    assert ("stopping when this round is done" in capfd.readouterr().err) == (where == "round")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    played(config)
    assert_same(there, folder / "runs" / "whole")


def test_a_second_ctrl_c_ends_a_round_at_once(folder: Path) -> None:
    class Twice(Practising):
        def play(self, selection: Selection, finished: Any = ()) -> Any:
            for number, group in enumerate(super().play(selection, finished)):
                if (selection.step, number) in ((1, 1), (1, 2)):
                    os.kill(os.getpid(), signal.SIGINT)
                yield group

    config = configuration(folder, "twice")
    with pytest.raises(KeyboardInterrupt):
        play_rounds(config, Twice, given="", progress=Silent())
    there = folder / "runs" / "twice"
    assert len(ledger_rows(there)["groups"]) == 4 + 2
    finished = seconds_of(there)
    played(config)
    assert_same(there, folder / "runs" / "whole")
    assert seconds_of(there).items() >= finished.items()


def test_an_engine_that_dies_during_a_round_is_told(folder: Path) -> None:
    class Dying(Practising):
        def play(self, selection: Selection, finished: Any = ()) -> Any:
            for number, group in enumerate(super().play(selection, finished)):
                if (selection.step, number) == (3, 2):
                    raise RuntimeError("EngineCore died\nunexpectedly")
                yield group

    config = configuration(folder, "dying")
    with pytest.raises(
        EnvSchedError, match=r"failed \(RuntimeError: EngineCore died\); what was finished is kept, the traceback stands in"
    ):
        play_rounds(config, Dying, given="", progress=Silent())
    there = folder / "runs" / "dying"
    assert "RuntimeError: EngineCore died\nunexpectedly" in (there / "error.txt").read_text()
    assert len(ledger_rows(there)["groups"]) == 3 * 4 + 2
    finished = seconds_of(there)
    played(config)
    assert_same(there, folder / "runs" / "whole")
    assert seconds_of(there).items() >= finished.items()


def test_a_full_disk_at_a_checkpoint_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, original = configuration(folder, "full"), checkpoint.write_atomic

    def full(path: Path, content: bytes) -> None:
        if path.name == "step-000004.pt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(path, content)

    monkeypatch.setattr(checkpoint, "write_atomic", full)
    with pytest.raises(CheckpointError, match=r"after round 4 cannot be written \(No space left on device\).*Free disk space, then give"):
        played(config)
    monkeypatch.undo()
    there = folder / "runs" / "full"
    finished = seconds_of(there)
    assert len(finished) == 4 * 4 * 3
    played(config)
    assert_same(there, folder / "runs" / "whole")
    assert seconds_of(there).items() >= finished.items()


def test_a_folder_belongs_to_one_command(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds a run of `envsched train`; this is `envsched run`\. Choose another run\.name"):
        run(configuration(folder, "whole"))
    shutil.copytree(folder / "pool", tmp_path / "pool")
    run(configuration(tmp_path, "r", steps=1))
    with pytest.raises(ConfigError, match="holds a run of `envsched run`; this is `envsched train`"):
        played(configuration(tmp_path, "r", steps=1))


def test_a_damaged_line_of_an_evaluation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"step": 0}\nx\n{"st')
    with pytest.raises(HistoryError, match=r"evaluations\.jsonl, line 2: not an evaluation"):
        read_evaluations(path)


def test_the_held_out_tasks_are_the_same_in_every_run() -> None:
    pool = shared_out(tiny_pool(environments=4))
    half = held_out(pool, 4)
    assert (len(half.tasks), len(half.environments)) == (2, 2)
    everything = held_out(pool, 100)
    assert {pool.keys[row] for row in everything.tasks} == {"s0/t3", "s1/t3", "s2/t3"}
    assert {pool.keys[row] for row in everything.environments} == {"s3/t0", "s3/t1", "s3/t2", "s3/t3"}
    assert everything.tasks[:2] == half.tasks
    backwards = Pool(environments=pool.environments, tasks=pool.tasks[::-1], source="tiny")
    assert [backwards.keys[row] for row in held_out(backwards, 100).tasks] == [pool.keys[row] for row in everything.tasks]
    assert held_out(pool, 0) == held_out(tiny_pool(), 10)
    few = held_out(pool, 6)
    assert (len(few.tasks), len(few.environments)) == (3, 3)


def test_when_an_evaluation_is_due(tmp_path: Path) -> None:
    pool = shared_out(tiny_pool(environments=4))
    every = Evaluations(tmp_path / "e.jsonl", pool, EvaluateConfig(every=4, tasks=2), 10)
    assert [done for done in range(11) if every.due(done)] == [0, 4, 8, 10]
    last = Evaluations(tmp_path / "e.jsonl", pool, EvaluateConfig(every=0, tasks=2), 10)
    assert [done for done in range(11) if last.due(done)] == [10]
    never = Evaluations(tmp_path / "e.jsonl", pool, EvaluateConfig(every=1, tasks=0), 10)
    assert not any(never.due(done) for done in range(11))


def test_figures_of_an_evaluation() -> None:
    pool = tiny_pool()
    ranged = Pool(environments=pool.environments, tasks=(replace(pool.tasks[0], reward_range=(-1.0, 1.0)), *pool.tasks[1:]))
    assert summary(ranged, [0, 1, 2], [[1.0, 0.0], [1.0, None], [None, None]]) == {
        "tasks": 3,
        "reward": (0.75 + 1.0) / 2,
        "solved": (0.5 + 1.0) / 2,
        "failed": 3,
    }
