"""`envsched doctor`: whether this machine can run what the package needs.

Knows: what to try, and the cure of each failure.
Does not know: how workers are built.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import typer

from envsched_gnn.cli.console import USER_ERROR, Json, cured, show, show_json
from envsched_gnn.errors import EnvSchedError

REQUIRED = {"torch": (2, 11), "torch-geometric": (2, 8), "numpy": (2, 0), "scipy": (1, 13), "scikit-learn": (1, 5), "pyarrow": (17, 0)}
OPTIONAL = {
    "torch-scatter": "faster propagation",
    "bfcl-eval": "the pool bfcl",
    "sentence-transformers": "dense features",
    "transformers": "training a language model",
    "trl": "training a language model",
    "vllm": "fast rollouts of a language model",
}
MEMORY_MB = 512
"""Limit that the probe of memory limits runs under."""


EXPECTED = ("ok", "timeout", "out_of_memory")
"""How the three probes of the worker processes end where limits hold."""
PROBE = """
class Probe:
    def act(self, what):
        if what == "hang":
            while True:
                pass
        if what == "eat":
            self.eaten = bytearray(64 << 30)
        self.done = True
        return {"success": True}
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was tried."""

    name: str
    state: str
    """ok, missing (optional, and not there) or failed."""
    found: str
    cure: str = ""


@cured
def doctor(json: Json = False) -> None:
    """Check versions, devices, optional packages, worker processes and their limits, and write access."""
    findings = [
        Finding(name="python", state="ok", found=platform.python_version()),
        *map(_required, REQUIRED),
        _devices(),
        *map(_optional, OPTIONAL),
        _tried("workers", _workers),
        _tried("writing", _writing),
    ]
    failed = any(finding.state == "failed" for finding in findings)
    if json:
        show_json({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            show(f"{finding.state:8}{finding.name:24}{finding.found}" + (f"  {finding.cure}" if finding.cure else ""))
    if failed:
        raise typer.Exit(USER_ERROR)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def _required(name: str) -> Finding:
    least = ".".join(map(str, REQUIRED[name]))
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name=name, state="failed", found="not installed", cure=f"pip install '{name}>={least}'")
    if _numbers(version) < REQUIRED[name]:
        return Finding(name=name, state="failed", found=version, cure=f"pip install '{name}>={least}'")
    return Finding(name=name, state="ok", found=version)


def _optional(name: str) -> Finding:
    try:
        return Finding(name=name, state="ok", found=metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name=name, state="missing", found=f"optional: {OPTIONAL[name]}")


def _devices() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(name="devices", state="failed", found="torch is not installed", cure="pip install torch")
    import torch

    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return Finding(name="devices", state="ok", found=", ".join([f"cpu ({os.cpu_count()} cores)", *cuda]))


def _tried(name: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(name=name, state="ok", found=probe())
    except Exception as error:
        return Finding(name=name, state="failed", found=str(error) or type(error).__name__, cure="See the limits in the README.")


def _writing() -> str:
    with tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".envsched-"):
        return "the working directory can be written"


def _workers() -> str:
    """Run three episodes in a worker process: one that works, one that hangs, one that takes all memory."""
    from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier
    from envsched_gnn.train.environments import play
    from envsched_gnn.train.workers import Job, WorkerPool

    function = {"name": "act", "description": "", "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}}
    environment = Environment(
        env_id="probe", name="Probe", source=PROBE, tools=({"type": "function", "function": function},), timeouts=Timeouts(step=1.0)
    )
    verifier = Verifier(checks=(Check(code="def check_func(final_state):\n    return final_state['done']"),))
    task = Task(env_id="probe", task_id="probe", prompt="", initial_state={"done": False}, verifier=verifier)
    requests = [play([[{"name": "act", "arguments": {"what": what}}]], 4)[0] for what in ("work", "hang", "eat")]
    with WorkerPool(1, MEMORY_MB) as workers:
        outcomes = {request: outcome for _, request, outcome in workers.run([Job(environment=environment, task=task, requests=requests)])}
    found = tuple(outcomes[request].status for request in range(3))
    if found != EXPECTED or outcomes[0].reply["reward"] != 1.0:
        raise EnvSchedError(
            f"three probes ended as {', '.join(found)}; expected {', '.join(EXPECTED)} ({outcomes[0].detail or 'no detail'})"
        )
    return f"start; time and memory limits hold ({MEMORY_MB} MiB)"
