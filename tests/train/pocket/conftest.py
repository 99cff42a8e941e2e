"""One warm-started policy for all tests of a run."""

from pathlib import Path

import pytest

from envsched_gnn.files import cache_folder


@pytest.fixture(scope="session")
def cache(cache_home: None) -> Path:
    """Where the tests keep warm-started policies."""
    return cache_folder() / "pocket"
