"""The devices that a run is planned for: this machine's, or assumed ones.

Knows: how many devices there are and how much memory each has.
Does not know: what a run takes of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from envsched_gnn.errors import ConfigError, require

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Devices of one kind."""

    kind: Literal["cuda", "cpu"]
    devices: int
    """Training processes, one on each device; on CPUs they share the memory."""
    memory: int
    """Bytes of a device."""
    free: int
    """Of them not in use."""


def machine_of(device: str, *, devices: int | None = None, memory_gb: float | None = None) -> Machine:
    """This machine's devices as `run.device` names them, or an assumed machine of `memory_gb` GiB a device.

    Raises:
        ConfigError: CUDA is named, no memory is assumed, and there is none here; a number is not positive.
    """
    import psutil
    import torch

    require(devices is None or devices >= 1, "--devices", devices, "at least 1")
    if memory_gb is not None:
        require(memory_gb > 0, "--memory-gb", memory_gb, "the memory of a device in GiB, above 0")
        size = int(memory_gb * GIB)
        return Machine(kind="cpu" if device == "cpu" else "cuda", devices=devices or 1, memory=size, free=size)
    processes = devices or int(os.environ.get("WORLD_SIZE", "0"))
    if device != "cpu" and torch.cuda.is_available():
        free, memory = torch.cuda.mem_get_info()
        return Machine(kind="cuda", devices=processes or torch.cuda.device_count(), memory=memory, free=free)
    if device.startswith("cuda"):
        raise ConfigError(
            f"run.device = {device!r}: there is no GPU here. Plan for another machine with --memory-gb 24, or set cpu or auto."
        )
    found = psutil.virtual_memory()
    processes = processes or 1
    return Machine(kind="cpu", devices=processes, memory=found.total // processes, free=found.available // processes)
