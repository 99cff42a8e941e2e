"""The audit finds what is wrong with a pool, and names the record."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from envsched_gnn.eval.audit import AuditReport, Fault, audit
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier

SOURCE = """
import uuid, time, os
class Box:
    def __init__(self, config):
        self.n = 0
        self.made = ""
    def put(self, n):
        self.n = n
    def stamp(self):
        self.made = uuid.uuid4().hex
    def leave(self):
        os._exit(2)
"""
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("put", "stamp", "leave"))
THREE = "def check_func(s):\n    return s['n'] == 3"
TRUE = "def check_func(s):\n    return True"


def put(n: int) -> list[dict[str, Any]]:
    return [{"name": "put", "arguments": {"n": n}}]


def task(task_id: str, *codes: str, env_id: str = "box", gold: Any = None, **more: Any) -> Task:
    checks = tuple(Check(code=code, description=f"check {number}") for number, code in enumerate(codes, start=1))
    return Task(
        env_id=env_id, task_id=task_id, prompt="p", initial_state={"n": 0}, verifier=Verifier(checks=checks), ground_truth=gold, **more
    )


BROKEN = (
    "def check_func(s) return True",
    "def check_func(s):\n    return s['missing']",
    "def check_func(s):\n    return 1",
    "x = 1",
    "def check_func(s):\n    raise SystemExit",
    THREE,
)
TASKS = (
    task("sound", THREE, TRUE, gold=put(3)),
    task("solved", TRUE, TRUE, gold=put(3)),
    task("useless_gold", THREE, gold=put(2)),
    task("short_gold", THREE, TRUE, "def check_func(s):\n    return s['n'] == 4", gold=put(3)),
    task("no_checks"),
    task("broken", *BROKEN),
    task("raises_until_made", "def check_func(s):\n    return [None, None, None, 'x'][s['n']] + '' == 'x'", gold=put(3)),
    task("nothing_compiles", BROKEN[0]),
    task("flaky", "def check_func(s):\n    import os\n    return int.from_bytes(os.urandom(8), 'big') % 2 == 0", THREE),
    task("crash", THREE, gold=[{"name": "leave", "arguments": {}}]),
    task("scaled", THREE, gold=put(3), reward_range=(-1.0, 1.0)),
    task("unset", THREE, env_id="unsettable"),
)
ENVIRONMENTS = (
    Environment(env_id="box", name="Box", source=SOURCE, tools=TOOLS, timeouts=Timeouts(step=2.0)),
    Environment(env_id="unsettable", name="Box", source="raise ValueError('no database')"),
    Environment(env_id="empty", name="Box", source=SOURCE),
    Environment(env_id="empty_and_broken", name="Nothing", source=SOURCE),
)


@pytest.fixture(scope="module")
def report() -> AuditReport:
    calls: list[tuple[int, int]] = []
    pool = Pool(environments=ENVIRONMENTS, tasks=TASKS, source="boxes")
    found = audit(pool, repeats=24, progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == (1, len(calls))
    assert calls[-1] == (len(calls), len(calls))
    return found


def test_rewards_of_doing_nothing_and_of_gold(report: AuditReport) -> None:
    rewards = {row.task_id: (row.noop_reward, row.gold_reward) for row in report.rows if row.task_id != "flaky"}
    assert rewards == {
        "sound": (0.5, 1.0),
        "solved": (1.0, 1.0),
        "useless_gold": (0.0, 0.0),
        "short_gold": (0.3333, 0.6667),
        "no_checks": (None, None),
        "broken": (0.0, None),
        "raises_until_made": (0.0, 1.0),
        "nothing_compiles": (0.0, None),
        "crash": (0.0, None),
        "scaled": (-1.0, 1.0),
        "unset": (None, None),
    }


def test_findings_name_the_record(report: AuditReport) -> None:
    rows = {row.task_id: row for row in report.rows}
    assert [row.task_id for row in report.rows if row.solved_at_reset] == ["solved"]
    assert [row.task_id for row in report.rows if row.gold_falls_short] == ["useless_gold", "short_gold"]
    assert {row.task_id: row.dead for row in report.rows if row.dead} == {
        "solved": "every check is true at reset",
        "useless_gold": "the gold trajectory earns no more than doing nothing (0)",
        "no_checks": "no check has a positive weight: no state can be scored",
        "nothing_compiles": "no check compiles",
    }
    assert [row.task_id for row in report.rows if row.flaky] == ["flaky"]
    failed = {row.task_id: (row.status, row.detail) for row in report.rows if row.status != "ok"}
    assert set(failed) == {"no_checks", "crash", "unset"}
    assert failed["crash"] == ("crashed", "the process ended with exit code 2 during step")
    assert report.empty_environments == ("empty", "empty_and_broken")
    assert report.failing_environments == {
        "unsettable": "unsettable: the source does not run (ValueError: no database).",
        "empty_and_broken": "empty_and_broken: the source defines no class 'Nothing'. Correct its name.",
    }
    assert rows["sound"].checks_true_at_reset == 1


def test_broken_checks(report: AuditReport) -> None:
    faults = {row.task_id: row.faults for row in report.rows if row.faults}
    assert set(faults) == {"broken", "nothing_compiles"}
    assert [fault.check for fault in faults["broken"]] == [1, 2, 3, 4, 5]
    assert faults["broken"][1] == Fault(check=2, description="check 2", fault="raises KeyError: 'missing'", where="reset")
    assert [fault.fault.split(":")[0] for fault in faults["broken"]] == [
        "does not compile",
        "raises KeyError",
        "returns int, not bool",
        "raises KeyError",
        "raises SystemExit",
    ]


def test_the_report_prints_and_is_json(report: AuditReport) -> None:
    text = str(report)
    assert "dead task: 4\n" in text
    assert "\n  box/broken check 2: raises KeyError: 'missing' (at reset): check 2\n" in text
    table = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert len(table["rows"]) == 12
    summary = report.summary()
    assert (summary["tasks"], summary["gold_tasks"], summary["dead"], summary["failed"], summary["flaky"]) == (12, 6, 4, 3, 1)
    assert (summary["broken_checks"], summary["tasks_with_broken_checks"]) == (6, 2)
    assert 0 < summary["score_ms"] < 1000


def test_the_summary_maps_rewards_and_the_rows_keep_them(report: AuditReport) -> None:
    rows = tuple(row for row in report.rows if row.task_id in ("sound", "scaled"))
    two = dataclasses.replace(report, rows=rows)
    assert [(row.reward_range, row.noop_reward) for row in rows] == [((0.0, 1.0), 0.5), ((-1.0, 1.0), -1.0)]
    assert [two.summary()[name] for name in ("noop_mean", "noop_max", "gold_mean")] == [0.25, 0.5, 1.0]
    assert str(two).splitlines()[1] == "noop mean (mapped to 0..1) 0.25"


def test_a_figure_that_there_is_not_prints_as_a_dash(report: AuditReport) -> None:
    lines = str(dataclasses.replace(report, rows=())).splitlines()
    assert [line.split()[-1] for line in lines if line.startswith(("noop mean", "gold mean", "step ms"))] == ["-", "-", "-"]


@pytest.mark.data
def test_the_real_pool(data_dir: Path) -> None:
    report = audit(Pool.load(data_dir / "envscaler"))
    summary = report.summary()
    assert summary["tasks"] == 87
    assert summary["noop_mean"] == pytest.approx(0.117, abs=5e-4)
    assert summary["noop_max"] == 0.9888
    assert sum(row.noop_reward == 0 for row in report.rows) == 33
    assert (summary["checks"], summary["checks_true_at_reset"]) == (1794, 565)
    assert (summary["failed"], summary["broken_checks"], summary["dead"], summary["flaky"]) == (0, 0, 0, 0)
    assert report.empty_environments == ("env_150_rl", "env_152_rl", "env_167_rl", "env_171_rl", "env_190_rl")
    assert report.seconds < 60
