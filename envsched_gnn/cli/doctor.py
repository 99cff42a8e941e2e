"""`envsched doctor`: whether this machine can run what the package needs, or one configuration's training.

Knows: what to try, and the cure of each failure; how a memory plan is shown.
Does not know: how workers are built, how memory is added up.
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
from typing import TYPE_CHECKING, Annotated

import typer

from envsched_gnn.cli.console import USER_ERROR, Json, Settings, cured, show, show_json
from envsched_gnn.errors import EnvSchedError

if TYPE_CHECKING:
    from envsched_gnn.train.memory.plan import Plan

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


Configuration = Annotated[
    Path | None, typer.Option("-c", "--config", metavar="CONFIG.toml", help="Show what training with it takes of each device instead.")
]
MemoryGb = Annotated[float | None, typer.Option("--memory-gb", metavar="N", help="Plan for devices of N GiB in place of those here.")]
Devices = Annotated[int | None, typer.Option("--devices", metavar="N", help="Plan for N devices, a process on each.")]


@cured
def doctor(
    config: Configuration = None, memory_gb: MemoryGb = None, devices: Devices = None, settings: Settings = None, json: Json = False
) -> None:
    """Check versions, devices, optional packages, worker processes and their limits, and write access.

    With -c: what training with that configuration takes of each device, and whether it fits; exit code 1 if not.
    """
    if config is not None:
        fits = _plan(config, settings or [], memory_gb, devices, json)
    elif memory_gb is not None or devices is not None or settings:
        raise typer.BadParameter("--memory-gb, --devices and -s need -c CONFIG.toml.")
    else:
        fits = _examine(json)
    if not fits:
        raise typer.Exit(USER_ERROR)


def _plan(path: Path, settings: list[str], memory_gb: float | None, devices: int | None, json: bool) -> bool:
    from envsched_gnn.config import load_config
    from envsched_gnn.pool.load import load_pool
    from envsched_gnn.train.memory.plan import plan_for

    config = load_config(path, settings)
    plan = plan_for(config, load_pool(config.pool), devices=devices, memory_gb=memory_gb)
    if json:
        numbers = {"fits": plan.fits, "rollout": plan.rollout, "update": plan.update, "sequences": plan.sequences}
        show_json(numbers | asdict(plan))
    else:
        _show_plan(plan)
    return plan.fits


def _show_plan(plan: Plan) -> None:
    gib, machine = 1 << 30, plan.machine
    show(f"{plan.model}: {plan.parameters / 1e6:,.1f} million parameters, {plan.trained / 1e6:,.1f} trained ({plan.source})")
    show(f"{machine.devices} x {machine.kind} of {machine.memory / gib:.1f} GiB, {machine.free / gib:.1f} free; sequences of at most")
    show(f"{plan.sequence_tokens:,} tokens, {plan.prompt_tokens:,} of them prompt" + _at_a_time(plan))
    show(f"\n{'GiB of each device':24}{'rollouts':>10}{'update':>10}")
    for part in plan.parts:
        show(f"{part.name:24}{part.rollout / gib:10.2f}{part.update / gib:10.2f}  {part.note}")
    show(f"{'together':24}{plan.rollout / gib:10.2f}{plan.update / gib:10.2f}\n")
    show("It fits." if plan.fits else f"It does not fit: {'; '.join(plan.problems)}. {plan.cure}")


def _at_a_time(plan: Plan) -> str:
    return "" if not plan.sequences else f"; vLLM generates {plan.sequences} of the longest at a time, and more of shorter ones"


def _examine(json: bool) -> bool:
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
    return not failed


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
