"""Fixtures for all tests: devices, shared data, and run-time checks of tensor shapes."""

import os
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

from tests import typecheck

GREEDY = ("coverage", "exposure", "greedy", "keys", "quotas", "redundancy")
SHAPED = ("ops", "history", "graph.similarity", "graph.neighbors", "predict", *(f"schedule.{part}" for part in GREEDY))
install_import_hook([f"envsched_gnn.{part}" for part in SHAPED], f"{typecheck.__name__}.typecheck")
torch.set_num_threads(1)


@pytest.fixture
def data_dir() -> Path:
    """Folder of the shared real environments; the test is skipped where it is absent."""
    folder = Path(os.environ.get("ENVSCHED_DATA", Path(__file__).parent.parent / ".." / "shared" / "data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set ENVSCHED_DATA")
    return folder


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device there is."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device(request.param)
