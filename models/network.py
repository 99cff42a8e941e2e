"""The network: what the observed neighbours say, passed along both relations, and a correction of the heuristic's forecast.

Knows: messages, gates, the correction of three probabilities, the loss.
Does not know: where its inputs come from (features), when it learns (learner), which graph they are of: it works on any tasks, with any
number of neighbours, also with none, and in environments that were never seen.

What the next group of a task shows is described by a hurdle: with probability 1 - p all its rewards are equal; otherwise their variance is
nu, around a mean m. So P(v > floor) = p and E[v] = p nu, in closed form, for binary and for fractional rewards alike (ours).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.nn import MessagePassing

from envsched_gnn.graph.neighbors import RELATIONS, Relation
from envsched_gnn.models.features import CONTENT, CONTEXT, SOURCE, WEIGHTS
from envsched_gnn.ops import ascending_row_sum

MESSAGE = 16
"""Channels of a relation's message (ours)."""
HEADS = 4
"""Gates of an edge; each lets its own share of the channels pass (ours)."""
GATE = 8
"""Hidden units of a gate (ours)."""
HIDDEN = 32
"""Hidden units beside the linear part (ours)."""
NODE = len(SOURCE) + len(CONTEXT) + CONTENT
"""Inputs of a task itself."""
OUTPUTS = ("p", "nu", "mean")
"""What is corrected, each on the scale of log-odds: P(v > floor), 4 E[v | v > floor], and the mean reward."""
EVIDENCE = (WEIGHTS.index("weight_long"), WEIGHTS.index("weight_informative"))
"""Half-lives whose evidence opens a gate."""


@dataclass(frozen=True, kw_only=True)
class Neighborhood:
    """Observed neighbours of some tasks: the bipartite graph that messages go along."""

    source: Float[Tensor, "slots source"]
    """SOURCE columns of the neighbours."""
    edge_index: Mapping[Relation, Int[Tensor, "2 edges"]]
    """Row 0: slot of the neighbour j; row 1: list i that it stands in, ascending."""
    similarity: Mapping[Relation, Float[Tensor, " edges"]]
    """s_ij."""
    lists: Mapping[Relation, int]
    """Number of lists; tasks that share their neighbours share a list."""
    row: Mapping[Relation, Int[Tensor, " n"]]
    """The list of each task."""


class GatedConv(MessagePassing):
    """`h_i = sum_j g_ij W x_j / (sum_j g_ij + 1)`, `g_ij = sigmoid(MLP(s_ij, a_ij / (a_ij + 1)))`, with evidence `a_ij = s_ij W_j` (ours).

    A gate a head, each with its own channels. Without neighbours h_i = 0.
    """

    def __init__(self) -> None:
        super().__init__(aggr="sum")
        self.value = nn.Linear(len(SOURCE), MESSAGE)
        self.gate = nn.Sequential(nn.Linear(1 + len(EVIDENCE), GATE), nn.SiLU(), nn.Linear(GATE, HEADS))

    def forward(
        self, x: tuple[Tensor, None], edge_index: Tensor, similarity: Tensor, size: tuple[int, int]
    ) -> Float[Tensor, "lists message"]:
        """h [lists, MESSAGE] of every list of neighbours; `x` = (SOURCE columns of the neighbours, None)."""
        weight = torch.expm1(x[0][:, EVIDENCE])
        out = self.propagate(edge_index, size=size, value=(self.value(x[0]), None), weight=(weight, None), similarity=similarity)
        total, gates = out.split([MESSAGE, HEADS], 1)
        return (total.unflatten(1, (HEADS, -1)) / (gates + 1)[:, :, None]).flatten(1)

    def message(self, value_j: Tensor, weight_j: Tensor, similarity: Tensor) -> Float[Tensor, "edges channels"]:
        """(g_ij W x_j, g_ij) of every edge."""
        a = similarity[:, None] * weight_j
        g = torch.sigmoid(self.gate(torch.cat([similarity[:, None], a / (a + 1)], 1)))
        return torch.cat([(value_j.unflatten(1, (HEADS, -1)) * g[:, :, None]).flatten(1), g], 1)

    def aggregate(self, inputs: Tensor, index: Tensor, ptr: Tensor | None = None, dim_size: int | None = None) -> Tensor:
        """A sum that is the same on every run, on a GPU too."""
        assert dim_size is not None
        return ascending_row_sum(inputs, index, dim_size)


class Propagation(nn.Module):
    """Corrections r [n, OUTPUTS] of the heuristic's forecast: `r = A x + B tanh(C x + c) + b`, x = (the task's own inputs, its messages).

    A, B and b start at zero: an untrained network corrects nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        width = NODE + len(RELATIONS) * MESSAGE
        self.messages = nn.ModuleDict({relation: GatedConv() for relation in RELATIONS})
        self.hidden = nn.Linear(width, HIDDEN)
        self.head = nn.Linear(width + HIDDEN, len(OUTPUTS))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def representation(self, nodes: Float[Tensor, "n node"], near: Neighborhood) -> Float[Tensor, "n width"]:
        """What the last layer sees of each task."""
        heard = []
        for relation in RELATIONS:
            size = len(near.source), near.lists[relation]
            message = self.messages[relation]((near.source, None), near.edge_index[relation], near.similarity[relation], size)
            heard.append(message.index_select(0, near.row[relation]))
        x = torch.cat([nodes, *heard], 1)
        return torch.cat([x, torch.tanh(self.hidden(x))], 1)

    def forward(self, nodes: Float[Tensor, "n node"], near: Neighborhood) -> Float[Tensor, "n outputs"]:
        """r of each task."""
        corrections: Tensor = self.head(self.representation(nodes, near))
        return corrections


def corrected(p: Float[Tensor, " n"], r: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """`sigmoid(log(p / (1 - p)) + r) = p e^r / (1 - p + p e^r)`: exactly p where r = 0; 0 and 1 stay."""
    odds = torch.exp(r)
    return p * odds / (1 - p + p * odds)


def loss(r: Float[Tensor, "n outputs"], base: Float[Tensor, "n outputs"], z: Tensor, v: Tensor, m: Tensor) -> Float[Tensor, ""]:
    """Mean negative log-likelihood: Bernoulli of z; of 4 v among the informative groups; of m, at half weight.

    `base` are the heuristic's log-odds of OUTPUTS, that `r` corrects. The last two are quasi-likelihoods, of numbers in [0, 1]: their
    minimum is at the mean. m is learned beside because whoever knows the mean reward knows more of the variance than z alone tells (ours).
    """
    p, nu, mean = (base + r).unbind(1)
    spread = binary_cross_entropy_with_logits(nu, 4 * v, weight=z)
    return binary_cross_entropy_with_logits(p, z) + spread + 0.5 * binary_cross_entropy_with_logits(mean, m)
