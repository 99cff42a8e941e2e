"""The ledger keeps what it was told, once, and refuses what is not a ledger."""

import math
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envsched_gnn.errors import HistoryError
from envsched_gnn.ledger import Ledger
from envsched_gnn.records import Pick, Relaxation, Rollout, RolloutGroup, Selection


def pick(rank: int, task: str, step: int = 0) -> Pick:
    return Pick(
        rank=rank, env_id="e", task_id=task, task_index=rank, group_id=f"{step}:e/{task}", phase="coverage",
        score=0.1 * rank, predicted_variance=0.05, p_informative=math.nan,
    )  # fmt: skip


def selection(step: int = 0, tasks: str = "ab") -> Selection:
    relaxed = (Relaxation(quota="rolling", env_id="e", task_id="a"), Relaxation(quota="per_round", env_id="e", task_id="a"))
    return Selection(step=step, picks=tuple(pick(n + 1, task, step) for n, task in enumerate(tasks)), relaxations=relaxed)


def group(task: str, *rewards: float | None, step: int = 0) -> RolloutGroup:
    rollouts = tuple(
        Rollout(
            reward=r, status="ok" if r is not None else "crashed", detail="" if r is not None else "bad \ud800 text", seconds=0.5, tokens=7
        )
        for r in rewards
    )
    return RolloutGroup(group_id=f"{step}:e/{task}", env_id="e", task_id=task, step=step, rollouts=rollouts)


def test_groups_come_back_in_selection_order(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite", "r") as ledger:
        ledger.write_selection(selection())
        ledger.write_group(group("b", 0.25, None))
        ledger.write_group(group("a", 1.0, 0.1 + 0.2))
    with Ledger(tmp_path / "l.sqlite", "r", read_only=True) as ledger:
        groups = ledger.groups(0)
        assert [g.task_id for g in groups] == ["a", "b"]
        assert groups[0] == group("a", 1.0, 0.1 + 0.2)
        assert groups[1].rewards == (0.25, None)
        assert groups[1].rollouts[1].detail == "bad ? text"
        assert [(row.rank, row.group_id, row.score) for row in ledger.selections()] == [(1, "0:e/a", 0.1), (2, "0:e/b", 0.2)]
        assert math.isnan(ledger.selections()[0].p_informative)
        assert [(step, r.quota) for step, r in ledger.relaxations()] == [(0, "rolling"), (0, "per_round")]


def test_writing_twice_changes_nothing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        for _ in range(2):
            ledger.write_selection(selection())
            ledger.write_group(group("a", 1.0, 0.0))
        ledger.write_group(group("a", 0.5, 0.5, 0.5))
        assert ledger.groups() == [group("a", 1.0, 0.0)]
        assert len(ledger.relaxations()) == 2


def test_masked_and_empty_groups(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.write_selection(selection())
        ledger.write_group(group("a"))
        ledger.write_group(group("b", math.nan, None))
        assert [g.rewards for g in ledger.groups()] == [(), (None, None)]
        assert ledger.groups(1) == []


def test_other_picks_at_the_same_step_are_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.write_selection(selection())
        with pytest.raises(HistoryError, match="step 0 holds other picks"):
            ledger.write_selection(selection(tasks="ba"))
        with pytest.raises(HistoryError, match="ledger cannot be used"):
            ledger.write_selection(Selection(step=1, picks=(pick(1, "a", 1), pick(1, "b", 1))))
        assert [row.step for row in ledger.selections()] == [0, 0], "a refused selection leaves nothing behind"


def test_several_selections_of_a_step_are_kept_one_after_the_other(tmp_path: Path) -> None:
    first, second = selection(tasks="ab"), selection(tasks="cd")
    second = replace(second, picks=tuple(replace(pick, rank=pick.rank + 2) for pick in second.picks))
    with Ledger(tmp_path / "l.sqlite") as ledger:
        for _ in range(2):
            for part in (first, second):
                ledger.write_selection(part)
                for pick in part.picks:
                    ledger.write_group(group(pick.task_id, 1.0))
        assert [(row.rank, row.task_id) for row in ledger.selections()] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
        assert [g.task_id for g in ledger.groups(0)] == ["a", "b", "c", "d"]
        assert [r.quota for _, r in ledger.relaxations()] == ["rolling", "per_round"] * 2
        for other in (selection(tasks="cd"), replace(second, picks=second.picks[::-1]), selection(tasks="abd"), selection(tasks="")):
            with pytest.raises(HistoryError, match="step 0 holds other picks"):
                ledger.write_selection(other)
        assert len(ledger.selections()) == 4


def test_the_documented_columns(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.sqlite").close()
    with sqlite3.connect(tmp_path / "l.sqlite") as db:
        columns = {table: [row[1] for row in db.execute(f"PRAGMA table_info({table})")] for table in ("selections", "rollouts")}
    db.close()
    assert " ".join(columns["selections"]) == "run step rank group_id env_id task_id phase score predicted_variance p_informative"
    assert " ".join(columns["rollouts"]) == "group_id k reward status seconds tokens policy_version"


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to look at" * 20, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "l.sqlite").write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(HistoryError, match=r"l\.sqlite"):
            Ledger(tmp_path / "l.sqlite", read_only=read_only)
    assert (tmp_path / "l.sqlite").read_bytes() == content


def test_a_foreign_database_is_an_error(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "l.sqlite")
    db.execute("CREATE TABLE selections(x)")
    db.commit()
    db.close()
    with pytest.raises(HistoryError, match="another program"):
        Ledger(tmp_path / "l.sqlite")


def test_a_missing_ledger_is_an_error_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no such ledger"):
        Ledger(tmp_path / "l.sqlite", read_only=True)
    (tmp_path / "l.sqlite").touch()
    with pytest.raises(HistoryError, match="not started"):
        Ledger(tmp_path / "l.sqlite", read_only=True)


def test_survives_a_kill_between_transactions(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom tests.test_ledger import *\n"
        "ledger = Ledger(sys.argv[1])\nledger.write_selection(selection())\nledger.write_group(group('a', 1.0))\n"
        "ledger._db.execute('BEGIN IMMEDIATE')\nledger._db.execute(\"INSERT INTO groups VALUES('0:e/b', 1)\")\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "l.sqlite")], cwd=Path(__file__).parent.parent, check=False)
    assert done.returncode == -9
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.groups() == [group("a", 1.0)]


def test_a_round_takes_the_place_of_all_that_was_there_of_its_step(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite", "r") as ledger:
        ledger.write_round(selection(0), [group("a", 1.0), group("b", None)])
        ledger.write_round(selection(1), [group("a", 0.5, step=1), group("b", None, step=1)])
        ledger.write_selection(selection(2))
        again = Selection(step=1, picks=(pick(1, "c", 1), pick(2, "a", 1)))
        ledger.write_round(again, [group("c", 0.25, 0.0, step=1), group("a", 0.75, step=1)])
        assert ledger.groups(0) == [group("a", 1.0), ledger.groups(0)[1]]
        assert ledger.groups(1) == [group("c", 0.25, 0.0, step=1), group("a", 0.75, step=1)]
        assert [row.group_id for row in ledger.selections()] == ["0:e/a", "0:e/b", "1:e/c", "1:e/a", "2:e/a", "2:e/b"]
        assert [step for step, _ in ledger.relaxations()] == [0, 0, 2, 2]
        assert ledger._db.execute("SELECT count(*) FROM details").fetchone() == (1,), "the replaced group's failure is gone"
        ledger.write_round(again, [group("c", 0.25, 0.0, step=1), group("a", 0.75, step=1)])
        assert len(ledger.groups()) == 4


def test_a_full_disk_is_told_as_such_and_what_was_written_stays(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.write_selection(selection())
        ledger.write_group(group("a", 1.0))
        ledger._db.execute("PRAGMA max_page_count=18")
        with pytest.raises(HistoryError, match=r"disk is full.*Free disk space"):
            ledger.write_group(group("b", *[None] * 5000))
        assert ledger.groups() == [group("a", 1.0)]


def test_an_identity_that_is_no_unicode_text_is_an_error(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as ledger:
        with pytest.raises(HistoryError, match=r"'0:e/\\ud800' holds half a surrogate pair.*Rename"):
            ledger.write_group(group("\ud800", 1.0))
        with pytest.raises(HistoryError, match="Rename"):
            ledger.write_selection(selection(tasks="a\udfff"))
        assert ledger.selections() == []


def test_an_interrupt_at_any_moment_stays_an_interrupt_and_leaves_a_whole_group_or_none(tmp_path: Path) -> None:
    """An alarm that raises as Ctrl-C does, at moments from before the write to after its commit."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        with Ledger(tmp_path / "l.sqlite") as ledger:
            ledger.write_selection(selection(tasks="".join(map(chr, range(0x100, 0x100 + 120)))))
            for n in range(120):
                task = chr(0x100 + n)
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00005 * (n + 1))
                    ledger.write_group(group(task, 1.0, 0.0))
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
                ledger.write_group(group(task, 1.0, 0.0))
            assert ledger.groups() == [group(chr(0x100 + n), 1.0, 0.0) for n in range(120)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted


def test_the_runs_of_a_file(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite", "b") as ledger:
        assert ledger.runs() == []
        ledger.write_selection(selection())
    with Ledger(tmp_path / "l.sqlite", "a") as ledger:
        ledger.write_selection(selection(1))
        assert ledger.runs() == ["a", "b"]
