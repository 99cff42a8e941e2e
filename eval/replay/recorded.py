"""A ledger, read, with the pool and the graph it belongs to.

Knows: run folders and lone ledger files, which policy made the picks, which pool a ledger is of.
Does not know: predictors, similarities, what is made of the groups.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from envsched_gnn.config import Config, load_config
from envsched_gnn.errors import GraphError, HistoryError, message
from envsched_gnn.eval.simulate import SOURCE as SIMULATED
from envsched_gnn.graph.configured import configured_graph, is_configured
from envsched_gnn.graph.io import load_graph
from envsched_gnn.history import GroupStatistics, group_statistics
from envsched_gnn.ledger import Ledger
from envsched_gnn.pool.load import load_pool
from envsched_gnn.records import RolloutGroup

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from envsched_gnn.pool.pool import Pool

UNIFORM = "uniform"
"""The phase of picks that no prediction made."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The observed groups of one run, by step, then by rank."""

    name: str
    """Of the run."""
    path: Path
    """The ledger's file."""
    config: Config
    """The run's settings; of a lone ledger the defaults, but for those given."""
    kind: str
    """`simulated` if `envsched simulate` made it, else `real`."""
    policy: str
    """Who picked: `run.policy` of the run, or the phases of a lone ledger."""
    uniform: bool
    """Whether every pick was uniform."""
    pool: Pool | None
    """None where the graph was enough, and for a simulated ledger, whose tasks hold no text to compare."""
    graph: HeteroData
    selected: int
    """Groups that were selected, observed or not."""
    tasks: Int[Tensor, " groups"]
    """Row in the graph."""
    steps: Int[Tensor, " groups"]
    """Step of the selection."""
    statistics: GroupStatistics
    """Of these groups; all are observed."""


def read_recorded(
    ledger: str | Path, *, pool: str | None = None, graph: Path | None = None, settings: Sequence[str] = (), with_pool: bool = False
) -> Recorded:
    """Read a run folder, or a ledger file with `pool` or `graph` beside it.

    A run folder says itself which pool it is of; `pool` and `settings` (as `pool.path=...`) replace what it says.

    Raises:
        HistoryError: no ledger, several runs in it, or it is of another pool than the one given.
        ConfigError, PoolError, GraphError: the settings, the pool or the graph cannot be read.
    """
    file, folder = _file(Path(ledger))
    given = [*settings, f"pool.path={json.dumps(pool)}"] if pool is not None else list(settings)
    if folder is None and not given and graph is None:
        raise HistoryError(f"{file}: a ledger alone does not say which pool it is of. Give --pool or --graph, or the run's folder.")
    config = load_config(folder / "resolved.toml" if folder else None, given)
    described: dict[str, Any] = _described(folder)
    name, phases, groups = _read(file, config.run.name if folder else None)
    kind = SIMULATED if described.get("source") == SIMULATED else "real"
    loaded = load_graph(graph) if graph is not None else _own_graph(folder, None if kind == SIMULATED else config)
    records = load_pool(config.pool) if given or loaded is None or (with_pool and kind != SIMULATED) else None
    if loaded is None:
        assert records is not None
        loaded = configured_graph(records, config)
    _check_hashes(file, described, records, loaded)
    rows = _rows(file, groups, loaded, records)
    store = loaded["task"]
    statistics = group_statistics([group.rewards for group in groups], store.reward_low[rows], store.reward_high[rows])
    seen = statistics.observed
    return Recorded(
        name=name,
        path=file,
        config=config,
        kind=kind,
        policy=config.run.policy if folder else " + ".join(sorted(phases)),
        uniform=set(phases) == {UNIFORM},
        pool=records,
        graph=loaded,
        selected=sum(phases.values()),
        tasks=rows[seen],
        steps=torch.tensor([group.step for group in groups], dtype=torch.int64)[seen],
        statistics=statistics.at(seen),
    )


def _file(path: Path) -> tuple[Path, Path | None]:
    """The ledger's file, and its run folder if it lies in one."""
    file = path / "ledger.sqlite" if path.is_dir() else path
    if not file.is_file():
        found = "no ledger.sqlite in it" if path.is_dir() else "no such file or folder"
        raise HistoryError(message(str(path), found, "a run folder, or a ledger", "Give the folder that envsched run wrote."))
    return file, file.parent if (file.parent / "resolved.toml").is_file() else None


def _own_graph(folder: Path | None, config: Config | None) -> HeteroData | None:
    """The graph that a run keeps in its folder; None where it has to be built: not there, damaged, or not what `config` asks for."""
    try:
        graph = load_graph(folder / "graph.pt") if folder is not None else None
    except GraphError:
        return None
    return graph if graph is not None and (config is None or is_configured(graph, config)) else None


def _described(folder: Path | None) -> dict[str, Any]:
    """`pool.json` of a run folder; empty where there is none."""
    if folder is None or not (folder / "pool.json").is_file():
        return {}
    path = folder / "pool.json"
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HistoryError(f"{path}: not JSON ({error}); expected what envsched run wrote. Resume the run to rewrite it.") from None
    return table if isinstance(table, dict) else {}


def _read(file: Path, run: str | None) -> tuple[str, dict[str, int], list[RolloutGroup]]:
    """Name of the run, picks by phase, finished groups."""
    if run is None:
        with Ledger(file, read_only=True) as ledger:
            names = ledger.runs()
        if len(names) != 1:
            found = f"holds {len(names)} runs{': ' if names else ''}{', '.join(names[:5])}"
            raise HistoryError(message(str(file), found, "one run", "Give the folder of the run that is meant."))
        run = names[0]
    with Ledger(file, run, read_only=True) as ledger:
        picks = [row.phase for row in ledger.selections()]
        return run, {phase: picks.count(phase) for phase in dict.fromkeys(picks)}, ledger.groups()


def _check_hashes(file: Path, described: dict[str, Any], pool: Pool | None, graph: HeteroData) -> None:
    """Refuse a pool or a graph that is not the one of the run."""
    there = described.get("content_hash") or graph.pool_hash
    found = [(f"graph of pool {graph.pool_hash[:12]}", graph.pool_hash)] if graph.pool_hash else []
    found += [(f"pool {pool.source!r} is {pool.content_hash[:12]}", pool.content_hash)] if pool is not None else []
    for words, content_hash in found:
        if there and content_hash != there:
            origin = f"{described['source']!r} of hash" if "source" in described else "hash"
            raise HistoryError(f"{file}: a ledger of pool {origin} {there[:12]}, but {words}. Give the pool that the run was made with.")


def _rows(file: Path, groups: Sequence[RolloutGroup], graph: HeteroData, pool: Pool | None) -> Int[Tensor, " groups"]:
    """Row of each group's task; refuses a ledger that holds tasks of another pool."""
    ids = zip(graph["task"].home_index.tolist(), graph.task_ids, strict=True)
    row_of = {f"{graph.env_ids[env]}/{task}": row for row, (env, task) in enumerate(ids)}
    strange = sorted({group.key for group in groups} - row_of.keys())
    if strange:
        what = f"pool {pool.source!r} ({graph.pool_hash[:12]})" if pool is not None else f"the graph of pool {graph.pool_hash[:12]}"
        raise HistoryError(
            f"{file}: a ledger of another pool: {len(strange):,} of its tasks, first {strange[0]!r}, are not in {what}. "
            "Give the pool that the run was made with."
        )
    return torch.tensor([row_of[group.key] for group in groups], dtype=torch.int64)
