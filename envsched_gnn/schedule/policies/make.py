"""From the name of a policy to the policy.

Knows: what each needs.
Does not know: how any chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from envsched_gnn.config import PredictConfig, SelectConfig
from envsched_gnn.config_scheduling import Preset
from envsched_gnn.errors import ConfigError
from envsched_gnn.policy_facts import unknown
from envsched_gnn.pool.shuffle import shown_rows
from envsched_gnn.schedule.envsched import EnvSched, MakePredictor
from envsched_gnn.schedule.policies.bots import Bots
from envsched_gnn.schedule.policies.dapo import Dapo
from envsched_gnn.schedule.policies.dots import Dots
from envsched_gnn.schedule.policies.dps import Dps
from envsched_gnn.schedule.policies.dump import Dump
from envsched_gnn.schedule.policies.graph_potts import GraphPotts
from envsched_gnn.schedule.policies.greso import Greso
from envsched_gnn.schedule.policies.leeps import Leeps
from envsched_gnn.schedule.policies.mopps import Mopps
from envsched_gnn.schedule.policies.pcl import Pcl
from envsched_gnn.schedule.policies.peer import Peer
from envsched_gnn.schedule.policies.pilot_commit import PilotCommit
from envsched_gnn.schedule.policies.prompts import prompt_embedding
from envsched_gnn.schedule.policies.rule import Rule
from envsched_gnn.schedule.policies.sec import Sec
from envsched_gnn.schedule.uniform import Uniform

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from envsched_gnn.pool.pool import Pool

AnyPolicy = EnvSched | Uniform | Peer
"""Whoever chooses tasks here."""
EMBEDDED = ("leeps", "dots", "graph_potts", "pcl")
"""Policies that read prompt vectors."""


def policy_of(
    name: str,
    pool: Pool | None,
    graph: HeteroData,
    *,
    batch_size: int = 64,
    seed: int = 0,
    num_rollouts: int = 8,
    embedding: Float[Tensor, "tasks d"] | None = None,
    select: SelectConfig | None = None,
    predict: PredictConfig | None = None,
    predictor: MakePredictor | None = None,
) -> AnyPolicy:
    """A policy that has seen nothing.

    Args:
        pool: checked against the graph; its prompts are embedded where `embedding` is not given and the policy reads it.
        num_rollouts: K, rollouts of a training group.
        embedding: a vector a task, in the order of the graph, of any length.
        select, predict: of `envsched` and `paper` alone; `batch_size` and the preset override them.
        predictor: what makes the predictor that `predict.predictor` names; not needed for `heuristic`.

    Raises:
        ConfigError: no such policy; or vectors are needed and there is no pool; or `oracle`, which needs an engine.
        GraphError: the graph was built from another pool, or holds an empty reward range.
    """

    def scheduler(preset: Preset) -> EnvSched:
        return EnvSched(pool, graph, batch_size=batch_size, seed=seed, preset=preset, select=select, predict=predict, predictor=predictor)

    match name:
        case "uniform":
            return Uniform(pool, graph, batch_size=batch_size, seed=seed)
        case "envsched":
            return scheduler("default")
        case "paper":
            return scheduler("paper")
        case "oracle":
            raise ConfigError("policy 'oracle': expected one that needs no engine. Take it in envsched compare, which plays for it.")
        case _:
            rule = rule_of(name, pool, graph, num_rollouts, embedding)
            return Peer(pool, graph, rule, name=name, batch_size=batch_size, seed=seed)


def rule_of(name: str, pool: Pool | None, graph: HeteroData, num_rollouts: int, embedding: Float[Tensor, "tasks d"] | None) -> Rule:
    """The rule of a peer; see `policy_of`."""
    store = graph["task"]
    tasks, env_index, environments = store.env_index.numel(), store.env_index.cpu(), len(graph.env_ids)
    match name:
        case "dps":
            return Dps(tasks)
        case "leeps":
            return Leeps(_vectors(name, pool, tasks, embedding), num_rollouts)
        case "dots":
            return Dots(_vectors(name, pool, tasks, embedding))
        case "pilot_commit":
            return PilotCommit(tasks, num_rollouts)
        case "mopps":
            return Mopps(tasks)
        case "sec":
            return Sec(env_index, environments)
        case "dump":
            return Dump(env_index, environments)
        case "graph_potts":
            return GraphPotts(_vectors(name, pool, tasks, embedding), store.identity.cpu())
        case "pcl":
            return Pcl(_vectors(name, pool, tasks, embedding))
        case "greso":
            return Greso(tasks)
        case "bots":
            return Bots(graph, num_rollouts)
        case "dapo":
            return Dapo(tasks)
        case _:
            raise unknown(name)


def _vectors(name: str, pool: Pool | None, tasks: int, embedding: Tensor | None) -> Tensor:
    if embedding is None and pool is None:
        raise ConfigError(f"policy {name!r}: neither a pool nor vectors of its prompts. Give one of them.")
    vectors = shown_prompts(pool) if embedding is None and pool is not None else embedding
    assert vectors is not None
    if vectors.dim() != 2 or len(vectors) != tasks or not vectors.shape[1]:
        raise ConfigError(f"policy {name!r}: vectors of shape {tuple(vectors.shape)}; expected a row a task, {tasks} of them.")
    return vectors.detach().cpu()


def shown_prompts(pool: Pool) -> Tensor:
    """Vectors of the prompts that a scheduler sees: in a shuffled pool those of other tasks."""
    return prompt_embedding([pool.tasks[row].prompt for row in shown_rows(pool)])
