"""The cache of vectors: what is kept comes back, what is damaged is computed again, nobody's work is lost."""

import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from envsched_gnn.features.vectors import VectorFile

VECTORS = np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]], dtype=np.float32)


def read(path: Path, *texts: str) -> dict[str, list[float]]:
    with VectorFile(path) as kept:
        return {text: vector.tolist() for text, vector in kept.read(texts).items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the vectors of a and b."""
    with VectorFile(tmp_path / "deep" / "v.sqlite") as kept:
        kept.write(["a", "b"], VECTORS[:2])
    return tmp_path / "deep" / "v.sqlite"


def test_what_is_kept_comes_back(path: Path) -> None:
    assert read(path, "b", "unknown", "a") == {"a": VECTORS[0].tolist(), "b": [1.0, 0.0]}
    with VectorFile(path) as kept:
        kept.write(["c", "a"], VECTORS[[2, 2]])
    assert read(path, "a", "c") == {"a": [0.0, 1.0], "c": [0.0, 1.0]}
    assert [entry.name for entry in path.parent.iterdir()] == ["v.sqlite"]


@pytest.mark.parametrize("content", [b"no database at all" * 300, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_begun_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with VectorFile(path) as kept:
        assert kept.read(["a"]) == {}
        kept.write(["a"], VECTORS[1:2])
    assert read(path, "a", "b") == {"a": [1.0, 0.0]}


def test_pages_that_are_damaged_cost_what_they_hold_at_most(path: Path) -> None:
    with VectorFile(path) as kept:
        kept.write([f"t{n}" for n in range(2000)], np.tile(VECTORS[:1], (2000, 1)))
    whole = bytearray(path.read_bytes())
    whole[8192:] = bytes(len(whole) - 8192)
    path.write_bytes(whole)
    with VectorFile(path) as kept:
        assert len(kept.read([f"t{n}" for n in range(2000)])) < 2000
        kept.write(["t7"], VECTORS[2:])
        assert kept.read(["t7"])["t7"].tolist() == [0.0, 1.0]


def test_a_damaged_vector_is_not_found(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE vectors_1 SET vector = ? WHERE vector = ?", (VECTORS[2].tobytes(), VECTORS[1].tobytes()))
    database.close()
    assert read(path, "a", "b") == {"a": VECTORS[0].tolist()}


def test_a_cache_that_cannot_be_used_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for impossible in (tmp_path / "file" / "v.sqlite", tmp_path):
        with VectorFile(impossible) as kept:
            kept.write(["a"], VECTORS[:1])
            assert kept.read(["a"]) == {}


def test_writers_at_the_same_time_keep_what_each_wrote(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        with VectorFile(tmp_path / "v.sqlite") as kept:
            for part in range(10):
                kept.write([f"{writer} {part} {n}" for n in range(20)], np.full((20, 2), writer, dtype=np.float32))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with VectorFile(tmp_path / "v.sqlite") as kept:
        found = kept.read([f"{writer} {part} {n}" for writer in range(4) for part in range(10) for n in range(20)])
    assert len(found) == 800
    assert all(vector.tolist() == [float(text[0])] * 2 for text, vector in found.items())
