"""The ledger: every selection and every finished rollout of a run, in one SQLite file that survives `kill -9`.

Knows: the tables, what has been selected, which groups have finished.
Does not know: how picks are made, how rollouts are run, what a reward means.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsched_gnn.errors import HistoryError
from envsched_gnn.records import Pick, Relaxation, Rollout, RolloutGroup, Selection

VERSION = 1
"""Of the tables; kept in the file's `user_version`."""

APPLICATION = 0x656E7673
"""`envs`, in the file's `application_id`: tells a ledger from any other SQLite file."""

TABLES = """
CREATE TABLE IF NOT EXISTS selections(
  run TEXT NOT NULL, step INTEGER NOT NULL, rank INTEGER NOT NULL, group_id TEXT NOT NULL UNIQUE, env_id TEXT NOT NULL,
  task_id TEXT NOT NULL, phase TEXT NOT NULL, score REAL, predicted_variance REAL, p_informative REAL, PRIMARY KEY(run, step, rank));
CREATE TABLE IF NOT EXISTS rollouts(
  group_id TEXT NOT NULL, k INTEGER NOT NULL, reward REAL, status TEXT NOT NULL, seconds REAL NOT NULL, tokens INTEGER NOT NULL,
  policy_version INTEGER NOT NULL, PRIMARY KEY(group_id, k));
CREATE TABLE IF NOT EXISTS details(group_id TEXT NOT NULL, k INTEGER NOT NULL, detail TEXT NOT NULL, PRIMARY KEY(group_id, k));
CREATE TABLE IF NOT EXISTS groups(group_id TEXT PRIMARY KEY, rollouts INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS relaxations(
  run TEXT NOT NULL, step INTEGER NOT NULL, position INTEGER NOT NULL, quota TEXT NOT NULL, env_id TEXT NOT NULL, task_id TEXT NOT NULL,
  PRIMARY KEY(run, step, position));
CREATE TABLE IF NOT EXISTS rounds(run TEXT NOT NULL, step INTEGER NOT NULL, picks INTEGER NOT NULL, PRIMARY KEY(run, step));
"""

Statement = tuple[str, Iterable[tuple[object, ...]]]
"""SQL, and the rows to execute it with."""


@dataclass(frozen=True, kw_only=True)
class SelectionRow:
    """A pick as the ledger keeps it: by identity, without a row number."""

    step: int
    rank: int
    group_id: str
    env_id: str
    task_id: str
    phase: str
    score: float
    predicted_variance: float
    p_informative: float


class Ledger:
    """An open ledger. Every write is one transaction and idempotent by its primary key.

    Args:
        durable: whether what was written survives a failing machine. Without, it still survives a killed process, and a write takes a
            hundredth of the time: for runs that can be had again for nothing.

    Raises:
        HistoryError: the file is damaged, no SQLite file, or not a ledger of this version.
    """

    def __init__(self, path: str | Path, run: str = "run", *, read_only: bool = False, durable: bool = True) -> None:
        self.path, self.run, self._durable = Path(path), run, durable
        if read_only and not self.path.is_file():
            raise HistoryError(f"{self.path}: no such ledger. Give the folder of a run that has started.")
        try:
            # A reader opens `rw` too: a killed writer may have left a journal to roll back.
            target = f"{self.path.resolve().as_uri()}?mode={'rw' if read_only else 'rwc'}"
            self._db = sqlite3.connect(target, uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        try:
            self._open(read_only)
        except sqlite3.Error as error:
            self._db.close()
            raise self._damaged(error) from None
        except HistoryError:
            self._db.close()
            raise

    def _open(self, read_only: bool) -> None:
        application, version = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        fresh = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and not application
        if not fresh and application != APPLICATION:
            raise HistoryError(f"{self.path}: an SQLite file of another program; expected a ledger. Choose another run folder.")
        if not fresh and version != VERSION:
            raise HistoryError(f"{self.path}: a ledger of version {version}; expected {VERSION}. Read it with the version that wrote it.")
        if fresh and read_only:
            raise HistoryError(f"{self.path}: an empty file; expected a ledger of envsched_gnn. The run has not started.")
        if read_only:
            return
        self._db.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'OFF'}")
        if fresh:
            pragmas = f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION};"
            self._db.executescript(f"BEGIN IMMEDIATE; {TABLES} {pragmas} COMMIT;")

    def _damaged(self, error: sqlite3.Error) -> HistoryError:
        return HistoryError(
            f"{self.path}: the ledger cannot be used ({error}); expected an SQLite file written by envsched run. "
            "Free disk space if it is full; else restore it from a copy, or move it away and start a new run."
        )

    def _unwritable(self, error: UnicodeEncodeError) -> HistoryError:
        return HistoryError(
            f"{self.path}: {error.object!a} holds half a surrogate pair; expected Unicode text. "
            "Rename this environment or task in the pool."
        )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, statements: Iterable[Statement]) -> None:
        """All statements or none. Ctrl-C may come at any moment, also when the commit is done."""
        try:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for sql, rows in statements:
                    self._db.executemany(sql, rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        except UnicodeEncodeError as error:
            raise self._unwritable(error) from None

    def _read(self, sql: str, *values: object) -> list[tuple]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        except UnicodeEncodeError as error:
            raise self._unwritable(error) from None

    def write_selection(self, selection: Selection) -> None:
        """Keep a selection before its rollouts start. Several of one step are kept one after the other: their ranks run on.

        Raises:
            HistoryError: this step was selected before with other picks, so the run would not be the same run.
        """
        step, size = selection.step, len(selection.picks)
        earlier = selection.picks[0].rank - 1 if size else 0
        there = self._read("SELECT picks FROM rounds WHERE run=? AND step=?", self.run, step)
        if not there or earlier == there[0][0] > 0:
            self._write(self._selection_rows(selection))
            return
        known = [row[0] for row in self._read("SELECT group_id FROM selections WHERE run=? AND step=? ORDER BY rank", self.run, step)]
        if known[earlier : earlier + size] != list(selection.group_ids) or (known and not size):
            first = known[earlier] if earlier < len(known) else "none"
            raise HistoryError(
                f"{self.path}: step {step} holds other picks than those selected now, first {first!r} "
                f"against {selection.group_ids[:1]}. The ledger belongs to another run or version; start a new run folder."
            )

    def _selection_rows(self, selection: Selection) -> Sequence[Statement]:
        step = selection.step
        return (
            (
                "INSERT INTO rounds VALUES(?,?,?) ON CONFLICT(run, step) DO UPDATE SET picks = picks + excluded.picks",
                [(self.run, step, len(selection.picks))],
            ),
            ("INSERT INTO selections VALUES(?,?,?,?,?,?,?,?,?,?)", [(self.run, *_pick_row(step, pick)) for pick in selection.picks]),
            (
                "INSERT INTO relaxations SELECT ?1, ?2, (SELECT count(*) FROM relaxations WHERE run=?1 AND step=?2), ?3, ?4, ?5",
                [(self.run, step, r.quota, r.env_id, r.task_id) for r in selection.relaxations],
            ),
        )

    def write_group(self, group: RolloutGroup) -> None:
        """Keep a finished group. A group that is there already stays as it was."""
        if self._read("SELECT 1 FROM groups WHERE group_id=?", group.group_id):
            return
        self._write(_group_rows(group))

    def write_round(self, selection: Selection, groups: Iterable[RolloutGroup]) -> None:
        """Keep a round that has finished, in place of all that is there of its step.

        For trainers whose checkpoints are rarer than rounds: after a kill they play rounds again, with other rewards.
        """
        there = "(SELECT group_id FROM selections WHERE run=? AND step=?)"
        here = [(self.run, selection.step)]
        self._write(
            (
                *((f"DELETE FROM {table} WHERE group_id IN {there}", here) for table in ("groups", "rollouts", "details")),
                *((f"DELETE FROM {table} WHERE run=? AND step=?", here) for table in ("rounds", "selections", "relaxations")),
                *self._selection_rows(selection),
                *(statement for group in groups for statement in _group_rows(group)),
            )
        )

    def runs(self) -> list[str]:
        """Names of the runs that have selected something in this file."""
        return [row[0] for row in self._read("SELECT DISTINCT run FROM rounds ORDER BY run")]

    def selections(self) -> list[SelectionRow]:
        """All picks, by step and rank."""
        names = "step, rank, group_id, env_id, task_id, phase, score, predicted_variance, p_informative"
        rows = self._read(f"SELECT {names} FROM selections WHERE run=? ORDER BY step, rank", self.run)
        return [_selection_row(row) for row in rows]

    def relaxations(self) -> list[tuple[int, Relaxation]]:
        """All relaxed quotas with their step."""
        rows = self._read("SELECT step, quota, env_id, task_id FROM relaxations WHERE run=? ORDER BY step, position", self.run)
        return [(step, Relaxation(quota=quota, env_id=env_id, task_id=task_id)) for step, quota, env_id, task_id in rows]

    def groups(self, step: int | None = None) -> list[RolloutGroup]:
        """Finished groups in selection order, of one step or of all."""
        return list(self._groups(step))

    def _groups(self, step: int | None) -> Iterator[RolloutGroup]:
        where, values = ("WHERE s.run=?", (self.run,)) if step is None else ("WHERE s.run=? AND s.step=?", (self.run, step))
        picks = self._read(
            f"SELECT s.group_id, s.env_id, s.task_id, s.step FROM selections s JOIN groups USING(group_id) {where} ORDER BY s.step, s.rank",
            *values,
        )
        rows = self._read(
            "SELECT r.group_id, r.reward, r.status, r.seconds, r.tokens, r.policy_version, coalesce(d.detail, '') "
            "FROM rollouts r "
            "JOIN selections s USING(group_id) "
            f"LEFT JOIN details d ON d.group_id = r.group_id AND d.k = r.k {where} ORDER BY r.group_id, r.k",
            *values,
        )
        rollouts: dict[str, list[Rollout]] = {}
        for group_id, reward, status, seconds, tokens, version, detail in rows:
            rollout = Rollout(reward=reward, status=status, seconds=seconds, tokens=tokens, policy_version=version, detail=detail)
            rollouts.setdefault(group_id, []).append(rollout)
        for group_id, env_id, task_id, at in picks:
            yield RolloutGroup(group_id=group_id, env_id=env_id, task_id=task_id, step=at, rollouts=tuple(rollouts.get(group_id, ())))


def _group_rows(group: RolloutGroup) -> Sequence[Statement]:
    name = group.group_id
    rollouts = [(name, k, _real(r.reward), r.status, r.seconds, r.tokens, r.policy_version) for k, r in enumerate(group.rollouts)]
    return (
        ("INSERT INTO groups VALUES(?,?)", [(name, len(rollouts))]),
        ("INSERT INTO rollouts VALUES(?,?,?,?,?,?,?)", rollouts),
        ("INSERT INTO details VALUES(?,?,?)", [(name, k, _text(r.detail)) for k, r in enumerate(group.rollouts) if r.detail]),
    )


def _selection_row(row: tuple) -> SelectionRow:
    step, rank, group_id, env_id, task_id, phase = row[:6]
    score, variance, p_informative = (math.nan if value is None else value for value in row[6:])
    return SelectionRow(
        step=step,
        rank=rank,
        group_id=group_id,
        env_id=env_id,
        task_id=task_id,
        phase=phase,
        score=score,
        predicted_variance=variance,
        p_informative=p_informative,
    )


def _real(value: float | None) -> float | None:
    """SQLite keeps NaN as NULL; a masked reward is None in both."""
    return None if value is None or math.isnan(value) else float(value)


def _text(value: str) -> str:
    """Text that SQLite can hold: lone surrogates, which an environment's error may contain, become `?`."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _pick_row(step: int, pick: Pick) -> tuple[object, ...]:
    scores = (_real(pick.score), _real(pick.predicted_variance), _real(pick.p_informative))
    return (step, pick.rank, pick.group_id, pick.env_id, pick.task_id, pick.phase, *scores)
