"""One warm-started policy for all tests of a run."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests keep warm-started policies."""
    return tmp_path_factory.mktemp("pocket")
