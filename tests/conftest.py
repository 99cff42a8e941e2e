"""Fixtures for all tests: devices, shared data, and run-time checks of tensor shapes."""

import contextlib
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

from envsched_gnn.files import cache_folder
from tests import typecheck

GREEDY = ("coverage", "exposure", "greedy", "keys", "quotas", "redundancy")
SHAPED = ("ops", "history", "graph.similarity", "graph.neighbors", "predict", *(f"schedule.{part}" for part in GREEDY))
install_import_hook([f"envsched_gnn.{part}" for part in SHAPED], f"{typecheck.__name__}.typecheck")
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a shell's background job; children would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of the tests' own, for all processes of a test run; but SmolLM2, half a gigabyte, is read where the user has it."""
    base = tmp_path_factory.getbasetemp()
    own = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    (own / "envsched_gnn").mkdir(parents=True, exist_ok=True)
    for folder in cache_folder().glob("smollm2-*"):
        with contextlib.suppress(FileExistsError):
            (own / "envsched_gnn" / folder.name).symlink_to(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(own))
        yield


@pytest.fixture
def data_dir() -> Path:
    """Folder of the shared real environments; the test is skipped where it is absent."""
    folder = Path(os.environ.get("ENVSCHED_DATA", Path(__file__).parent.parent / ".." / "shared" / "data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set ENVSCHED_DATA")
    return folder


FAR = bool(os.environ.get("ENVSCHED_FAR"))
"""Whether there is a second device on the CPU, see `tests/far_device.py`; what registers it does so for the whole process."""
if FAR:
    importlib.import_module("tests.far_device")


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda), *([pytest.param("far", marks=pytest.mark.far)] if FAR else [])]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device there is."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device(request.param)
