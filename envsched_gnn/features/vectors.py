"""Vectors of texts that were computed before: one SQLite file a model, shared by processes.

Knows: texts by their hash, vectors with a checksum; that a cache which cannot be used costs time and nothing else.
Does not know: models, what a text is.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

WAIT = 60.0
"""Seconds that a write waits for one of another process."""
TABLE = "CREATE TABLE IF NOT EXISTS vectors_1 (text BLOB PRIMARY KEY, vector BLOB, checksum INTEGER) WITHOUT ROWID"


class VectorFile:
    """Unit vectors, float32, by text; a context manager.

    A damaged file is begun anew, a damaged row is not found; a file that cannot be made or written holds nothing. Each write is one
    transaction: a kill loses none before it, and processes that write at once keep what either wrote.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = self._opened()

    def __enter__(self) -> VectorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._database is not None:
            self._database.close()

    def _opened(self) -> sqlite3.Connection | None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return self._connected()
            except sqlite3.OperationalError:  # locked, or not to be written
                return None
            except sqlite3.DatabaseError:
                self._remove()
                return self._connected()
        except (OSError, sqlite3.Error):
            return None

    def _connected(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=WAIT)
        try:
            with database:
                database.execute(TABLE)
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _remove(self) -> None:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def _given_up(self, error: sqlite3.Error) -> None:
        """Go on without the cache; one that is damaged goes, so that the next process has a whole one."""
        assert self._database is not None
        self._database.close()
        self._database = None
        if not isinstance(error, sqlite3.OperationalError):
            with contextlib.suppress(OSError):
                self._remove()
            self._database = self._opened()

    def read(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The vectors of those texts that are there, [e] float32 each."""
        if self._database is None:
            return {}
        text_of = {_key(text): text for text in texts}
        query = f"SELECT text, vector, checksum FROM vectors_1 WHERE text IN ({','.join('?' * len(text_of))})"
        try:
            rows = self._database.execute(query, list(text_of)).fetchall()
        except sqlite3.Error as error:
            self._given_up(error)
            return {}
        return {text_of[key]: np.frombuffer(vector, np.float32) for key, vector, checksum in rows if _checksum(key, vector) == checksum}

    def write(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Keep vectors [texts, e] float32."""
        if self._database is None:
            return
        rows = [(key := _key(text), blob := vector.tobytes(), _checksum(key, blob)) for text, vector in zip(texts, vectors, strict=True)]
        try:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO vectors_1 VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            self._given_up(error)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _checksum(key: bytes, vector: bytes) -> int:
    return zlib.crc32(vector, zlib.crc32(key))
