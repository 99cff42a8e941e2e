"""A file is replaced whole or not at all."""

import math
import os
from pathlib import Path

import pytest

from envsched_gnn.files import cache_folder, replacing, without_nan, write_atomic


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", b"old")
    write_atomic(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", b"old")

    def stopped() -> None:
        with replacing(tmp_path / "f") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("f")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "none" / "f", b"x")


def test_json_lacks_nan_and_infinity() -> None:
    assert without_nan({"a": [1.5, math.nan, (math.inf, 2)], "b": "x"}) == {"a": [1.5, None, [None, 2]], "b": "x"}


def test_the_cache_is_where_the_desktop_standard_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "envsched_gnn"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache" / "envsched_gnn"
