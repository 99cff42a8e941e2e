"""envsched_gnn: choose which environments and tasks to spend the next RL batch on, before any rollout.

Names are imported when they are first used, so that importing the package, or `envsched --help`, imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envsched_gnn.config import Config, load_config
    from envsched_gnn.graph.build import build_graph
    from envsched_gnn.pool.pool import Pool
    from envsched_gnn.records import LoadReport, Pick, Prediction, Rollout, RolloutGroup, Selection
    from envsched_gnn.schedule.envsched import EnvSched
    from envsched_gnn.schedule.explain import Explanation
    from envsched_gnn.schedule.uniform import Uniform
    from envsched_gnn.train.engine import ScriptedEngine
    from envsched_gnn.train.trl.mixin import EnvSchedMixin, attach
    from envsched_gnn.train.trl.trainer_state import newest_checkpoint

__all__ = [
    "Config",
    "EnvSched",
    "EnvSchedMixin",
    "Explanation",
    "LoadReport",
    "Pick",
    "Pool",
    "Prediction",
    "Rollout",
    "RolloutGroup",
    "ScriptedEngine",
    "Selection",
    "Uniform",
    "attach",
    "build_graph",
    "load_config",
    "newest_checkpoint",
]

_HOME = {
    "Config": "config",
    "EnvSched": "schedule.envsched",
    "EnvSchedMixin": "train.trl.mixin",
    "Explanation": "schedule.explain",
    "LoadReport": "records",
    "Pick": "records",
    "Pool": "pool.pool",
    "Prediction": "records",
    "Rollout": "records",
    "RolloutGroup": "records",
    "ScriptedEngine": "train.engine",
    "Selection": "records",
    "Uniform": "schedule.uniform",
    "attach": "train.trl.mixin",
    "build_graph": "graph.build",
    "load_config": "config",
    "newest_checkpoint": "train.trl.trainer_state",
}
"""Module of each public name."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
