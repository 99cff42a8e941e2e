"""Every setting, with its one default and its source.

Knows: names, defaults, legal values, TOML files and `key=value` overrides.
Does not know: what any setting does.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from envsched_gnn.config_scheduling import GraphConfig, PredictConfig, SelectConfig
from envsched_gnn.config_simulate import SimulateConfig
from envsched_gnn.config_training import EvaluateConfig, ModelConfig, TrainConfig, VllmConfig
from envsched_gnn.errors import ConfigError, require
from envsched_gnn.policy_facts import NAMES, unknown


@dataclass(frozen=True, kw_only=True)
class ToolWorldConfig:
    """The bundled pool generator (ours)."""

    environments: int = 48
    tasks: int = 50
    """Tasks an environment."""
    seed: int = 0
    impossible: float = 0.2
    """Share of tasks that no trajectory solves."""
    trivial: float = 0.1
    """Share of tasks that one obvious call solves."""
    cluster_environment: float = 0.5
    """How strongly impossible and trivial tasks cluster by environment. 0: independent draws; 1: whole environments. A loading: the latent
    correlation of two tasks of an environment is its square; the formula stands in `pool/toolworld/outline.py`."""
    cluster_pattern: float = 0.5
    """The same, by abstract pattern. If the squares of both add up to more than 1, both are divided by the root of that sum."""
    reward: Literal["fractional", "binary"] = "fractional"
    min_operations: int = 1
    max_operations: int = 8
    depth: Literal["uniform", "shallow", "deep"] = "uniform"
    """Which numbers of operations are common."""
    held_out_tasks: float = 0.0
    """Share of each training environment's tasks that is held out."""
    held_out_environments: float = 0.0
    """Share of environments that is held out whole."""

    def __post_init__(self) -> None:
        require(self.environments >= 1, "pool.toolworld.environments", self.environments, "at least 1")
        require(self.tasks >= 1, "pool.toolworld.tasks", self.tasks, "at least 1")
        for name in ("impossible", "trivial", "cluster_environment", "cluster_pattern", "held_out_tasks"):
            require(0 <= getattr(self, name) <= 1, f"pool.toolworld.{name}", getattr(self, name), "a share from 0 to 1")
        require(0 <= self.held_out_environments < 1, "pool.toolworld.held_out_environments", self.held_out_environments, "0 to below 1")
        require(self.impossible + self.trivial <= 1, "pool.toolworld.impossible + trivial", self.impossible + self.trivial, "at most 1")
        require(
            1 <= self.min_operations <= self.max_operations <= 8,
            "pool.toolworld.min_operations .. max_operations",
            (self.min_operations, self.max_operations),
            "1 <= min <= max <= 8",
        )


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """Which pool."""

    path: str = "toolworld"
    """`toolworld`, `bfcl`, or a directory."""
    toolworld: ToolWorldConfig = field(default_factory=ToolWorldConfig)
    taught_share: float = 0.0
    """Share of each environment's tasks that is neither trained nor evaluated on: their gold trajectories teach the pocket model."""
    bfcl_graded: bool = False
    """BFCL: reward = share of turns right, instead of all or nothing."""
    environment_rule: str = ""
    """Splits environments: `info.scenario` makes `env_id` into `env_id.VALUE` by the value there in each task. Empty: as the pool says."""

    def __post_init__(self) -> None:
        require(0 <= self.taught_share < 1, "pool.taught_share", self.taught_share, "a share from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Execution of environments and the scripted policy."""

    num_rollouts: int = 8
    """K, rollouts a task (paper)."""
    workers: int = 2
    """Worker processes."""
    memory_mb: int = 2048
    """Address-space limit of a worker."""
    seed: int = 0
    skill_start: float = 0.35
    """Chance that the scripted policy makes a call right before any practice (ours)."""
    skill_gain: float = 0.02
    """How fast practice raises the skill (ours)."""

    def __post_init__(self) -> None:
        require(self.num_rollouts >= 2, "rollout.num_rollouts", self.num_rollouts, "at least 2: one rollout has no variance")
        require(self.workers >= 1, "rollout.workers", self.workers, "at least 1")
        require(self.memory_mb >= 256, "rollout.memory_mb", self.memory_mb, "at least 256")
        require(0 <= self.skill_start <= 1, "rollout.skill_start", self.skill_start, "a probability")
        require(0 <= self.skill_gain < math.inf, "rollout.skill_gain", self.skill_gain, "a number from 0")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run of `envsched run` or `envsched train`."""

    name: str = "run"
    """Of the run's own folder."""
    folder: str = "runs"
    """Run folders are `folder/name`."""
    policy: str = "envsched"
    """Which scheduler, of those that `envsched compare --list` names: `envsched` is preset default, `paper` the paper's preset; `oracle`
    knows the future, in a simulation alone."""
    steps: int = 40
    seed: int = 0
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""

    def __post_init__(self) -> None:
        named = self.name.isprintable() and Path(self.name).name == self.name and self.name not in ("", "..")
        require(named, "run.name", self.name, "the name of one folder; its parent is run.folder")
        require(self.steps >= 1, "run.steps", self.steps, "at least 1")
        if self.policy not in NAMES:
            raise unknown(self.policy)


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    pool: PoolConfig = field(default_factory=PoolConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    vllm: VllmConfig = field(default_factory=VllmConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    run: RunConfig = field(default_factory=RunConfig)


def load_config(path: str | Path | None = None, overrides: typing.Sequence[str] = ()) -> Config:
    """Read a TOML file, then apply overrides of the form `select.batch_size=32`.

    Raises:
        ConfigError: the file is missing or no TOML; a key is unknown (the nearest one is named); a value has the wrong type or range.
    """
    table = _read_toml(Path(path)) if path is not None else {}
    for override in overrides:
        _apply_override(table, override)
    return _build(Config, table)


def to_table(config: Any) -> dict[str, Any]:
    """The nested plain table of a config, without None values: what TOML can hold."""
    return _plain(dataclasses.asdict(config))


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None}


def flatten(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"select": {"batch_size": 64}}` as `("select.batch_size", 64)`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_toml(table: dict[str, Any], prefix: str = "") -> str:
    """TOML of nested tables of text, numbers and booleans."""
    values = [f"{key} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    head = [f"[{prefix[:-1]}]"] if prefix and values else []
    tables = [to_toml(value, f"{prefix}{key}.") for key, value in table.items() if isinstance(value, dict)]
    own = "\n".join([*head, *values])
    return "\n".join(filter(None, [own + "\n" if own else "", *tables]))


def _toml_value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string
        case _:
            return repr(value)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. Give the path of a TOML file, for example configs/toolworld.toml.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Give the path of a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file ({error}).") from None


def _apply_override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"-s {override!r}: expected key=value, for example -s select.batch_size=32.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *path, name = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"-s {override!r}: {part} is a value, not a table.")
    table[name] = value


def _build(cls: Any, table: dict[str, Any], prefix: str = "") -> Any:
    """A config dataclass from a plain table; `prefix` names the table in errors."""
    hints = typing.get_type_hints(cls)
    unknown = [key for key in table if key not in hints]
    if unknown:
        near = difflib.get_close_matches(unknown[0], hints, n=1)
        cure = f"Did you mean {prefix}{near[0]}?" if near else f"Known keys: {', '.join(hints)}."
        raise ConfigError(f"unknown key {prefix}{unknown[0]}. {cure}")
    return cls(**{key: _convert(hints[key], value, f"{prefix}{key}") for key, value in table.items()})


def _convert(hint: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        require(isinstance(value, dict), key, value, "a table")
        return _build(hint, value, f"{key}.")
    allowed = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is Literal:
        require(value in allowed, key, value, "one of " + ", ".join(map(repr, allowed)))
        return value
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    require(type(value) in allowed, key, value, " or ".join(kind.__name__ for kind in allowed if kind is not type(None)))
    return value
