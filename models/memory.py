"""What a learned predictor trains on: groups that reported, with the inputs of before their rollouts.

Knows: how inputs are kept with a prediction, and how many groups are remembered.
Does not know: weights, how a minibatch is used. Nothing here names a task, so that a changed pool does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.graph.neighbors import RELATIONS, Neighbors, Relation
from envsched_gnn.models.features import SOURCE, source_inputs
from envsched_gnn.models.network import NODE, OUTPUTS, Neighborhood
from envsched_gnn.records import Evidence

CAPACITY = 4096
"""Groups remembered, the latest to report: 64 rounds of the paper's size (ours)."""
KEPT = ("nodes", "neighbors", "similarity", "base")
"""Names of what is kept with a prediction, as its parts `learned_...`, tasks last."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Inputs and outcomes of some groups."""

    nodes: Float[Tensor, "n node"]
    """A task's own inputs."""
    neighbors: Float[Tensor, "n k source"]
    """SOURCE columns of its observed neighbours, within first; 0 is padding."""
    similarity: Float[Tensor, "n k"]
    """Of these neighbours; 0 is padding."""
    base: Float[Tensor, "n outputs"]
    """Log-odds that the heuristic gave, clipped."""
    outcome: Float[Tensor, "n outcomes"]
    """z, v, m of the group."""

    def at(self, which: Int[Tensor, " m"] | slice) -> Groups:
        """Some of them."""
        return Groups(**{name: tensor[which] for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """By field."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def neighborhood(self, within_k: int) -> Neighborhood:
        """A bipartite graph of its own, in which no two tasks share a list; the first `within_k` neighbours are those within."""
        n, k, _ = self.neighbors.shape
        edges: dict[Relation, Tensor] = {}
        similarity: dict[Relation, Tensor] = {}
        for relation, columns in zip(RELATIONS, (slice(0, within_k), slice(within_k, k)), strict=True):
            s = self.similarity[:, columns]
            task, column = s.nonzero(as_tuple=True)
            edges[relation] = torch.stack([task * k + column + (columns.start or 0), task])
            similarity[relation] = s[task, column]
        row = torch.arange(n, device=self.nodes.device)
        return Neighborhood(
            source=self.neighbors.flatten(0, 1),
            edge_index=edges,
            similarity=similarity,
            lists=dict.fromkeys(RELATIONS, n),
            row=dict.fromkeys(RELATIONS, row),
        )


class Memory:
    """The latest groups in order of their report."""

    def __init__(self, neighbors: int, capacity: int = CAPACITY) -> None:
        """`neighbors` = k_within + k_cross."""
        self.capacity = capacity
        sizes = {
            "nodes": (NODE,),
            "neighbors": (neighbors, len(SOURCE)),
            "similarity": (neighbors,),
            "base": (len(OUTPUTS),),
            "outcome": (3,),
        }
        self.groups = Groups(**{name: torch.zeros(0, *size) for name, size in sizes.items()})

    def __len__(self) -> int:
        return len(self.groups.nodes)

    def add(self, groups: Groups) -> None:
        """The oldest make room."""
        old = self.groups.tensors()
        self.groups = Groups(**{name: torch.cat([old[name], new])[-self.capacity :] for name, new in groups.tensors().items()})

    def to(self, device: torch.device) -> None:
        """Move all."""
        self.groups = Groups(**{name: tensor.to(device) for name, tensor in self.groups.tensors().items()})

    def state_dict(self) -> dict[str, Tensor]:
        """Copies on the CPU."""
        return {name: tensor.cpu().clone() for name, tensor in self.groups.tensors().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace all; the order is kept.

        Raises:
            ValueError: groups of another shape.
        """
        mine = self.groups.tensors()
        for name, tensor in mine.items():
            if state[name].shape[1:] != tensor.shape[1:]:
                raise ValueError(f"learned memory: {name} of shape {tuple(state[name].shape[1:])}; expected {tuple(tensor.shape[1:])}")
        self.groups = Groups(**{name: state[name].to(tensor.device, tensor.dtype) for name, tensor in mine.items()})


def kept(nodes: Tensor, base: Tensor, evidence: Evidence, neighbors: Neighbors, tasks: Int[Tensor, " n"]) -> dict[str, Tensor]:
    """Parts `learned_...` of some tasks, tasks last: what a group of them will be learned from once it reports."""
    sources, similarities = [], []
    for relation in RELATIONS:
        lists = neighbors.lists(relation)
        row = lists.row[tasks]
        similarity, slot = lists.similarity[row], lists.slot_index[row].long()
        n, k = slot.shape
        x = similarity.new_zeros(n, k, len(SOURCE))
        if len(neighbors.observed):
            x = source_inputs(evidence, neighbors.observed[slot.flatten()]).view(n, k, len(SOURCE)) * (similarity > 0)[:, :, None]
        sources.append(x)
        similarities.append(similarity)
    values = (nodes[tasks], torch.cat(sources, 1), torch.cat(similarities, 1), base[tasks])
    return {f"learned_{name}": value.movedim(0, -1).contiguous() for name, value in zip(KEPT, values, strict=True)}


def groups_of(parts: Mapping[str, Tensor], z: Tensor, v: Tensor, m: Tensor) -> Groups:
    """The kept parts of tasks whose groups came out so; float32."""
    device = parts["learned_nodes"].device
    outcome = torch.stack([z.double(), v, m], 1).to(device, torch.float32)
    inputs = {name: parts[f"learned_{name}"].movedim(-1, 0).to(torch.float32).contiguous() for name in KEPT}
    return Groups(**inputs, outcome=outcome)
