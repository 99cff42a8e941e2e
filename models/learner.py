"""Learning: a bounded number of optimiser steps on remembered groups, and what is uncertain after them.

Knows: the optimiser, minibatches, the gate that grows with what was learned from, the belief about the last layer.
Does not know: when it is called, which run the groups are of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envsched_gnn.models.memory import CAPACITY, Groups, Memory
from envsched_gnn.models.network import Propagation, loss

MIN_GROUPS = 50
"""Groups before which nothing is learned, and the heuristic stands alone (ours)."""
TRUST = 200
"""n0: after so many groups half of the correction counts (ours)."""
STEPS = 20
"""Of the optimiser, each time it learns (ours)."""
BATCH = 128
"""Groups a step (ours)."""
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
MAX_NORM = 1.0
"""Gradients are clipped to it."""


class Learner:
    """A network, its optimiser, and the groups that it learns from."""

    def __init__(self, within_k: int, cross_k: int, *, seed: int = 0, capacity: int = CAPACITY) -> None:
        """Untrained; the initial weights depend on `seed` alone."""
        self.seed, self.within_k = seed, within_k
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = Propagation()
        self.optimizer = _optimizer_of(self.network)
        self.memory = Memory(within_k + cross_k, capacity=capacity)
        self.precision = torch.eye(self.network.head.in_features)
        """Of the belief about the last layer's weights for p: `1 + sum_i p_i (1 - p_i) phi_i phi_i^T` over what is remembered (Laplace)."""
        self._root = self.precision
        self.trained = 0
        """n: groups that the weights have been learned from."""
        self.fresh = 0
        """Groups remembered since it last learned."""
        self.updates = 0
        """Steps of the optimiser so far; with the seed, they choose the minibatches."""

    @property
    def gate(self) -> float:
        """`n / (n + n0)`, 0 below MIN_GROUPS: how much of the correction counts."""
        return self.trained / (self.trained + TRUST) if self.trained >= MIN_GROUPS else 0.0

    def add(self, groups: Groups) -> None:
        """Remember groups."""
        self.memory.add(groups)
        self.fresh += len(groups.nodes)

    def learn(self, steps: int = STEPS) -> None:
        """Take some steps on random minibatches of what is remembered; nothing before there are MIN_GROUPS.

        What is minimised is the mean loss of a group, and what the prior N(0, 1) of every weight of the last layer costs: |w|^2 / 2n.
        """
        if self.trained + self.fresh < MIN_GROUPS or len(self.memory) == 0:
            return
        with torch.enable_grad():
            for _ in range(steps):
                self._step()
        self.trained, self.fresh = self.trained + self.fresh, 0
        self._settle()

    def _step(self) -> None:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.updates)
        size = len(self.memory)
        batch = self.memory.groups.at(torch.randint(size, (min(BATCH, size),), generator=generator).to(self.precision.device))
        self.optimizer.zero_grad()
        r = self.network(batch.nodes, batch.neighborhood(self.within_k))
        prior = self.network.head.weight.square().sum() / (2 * size)
        (loss(r, batch.base, *batch.outcome.unbind(1)) + prior).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)
        self.optimizer.step()
        self.updates += 1

    @torch.no_grad()
    def _settle(self) -> None:
        """The belief after learning."""
        groups = self.memory.groups
        phi = self.network.representation(groups.nodes, groups.neighborhood(self.within_k))
        p = torch.sigmoid(groups.base[:, 0] + self.network.head(phi)[:, 0])
        weighted = phi * (p * (1 - p))[:, None]
        self._believe(torch.eye(phi.shape[1], device=phi.device) + phi.T @ weighted)

    def doubt(self, phi: Float[Tensor, "n width"]) -> Float[Tensor, " n"]:
        """Variance of the correction of p: `phi^T precision^-1 phi`."""
        return (phi @ self._root).square_().sum(1)

    def _believe(self, precision: Float[Tensor, "width width"]) -> None:
        """Take over a precision, and a root of its inverse: `root root^T = precision^-1`."""
        self.precision = precision.to(self.precision.device).clone()
        self._root = torch.linalg.inv(torch.linalg.cholesky(self.precision.double())).T.to(self.precision.dtype).contiguous()

    def to(self, device: torch.device) -> None:
        """Move everything, where it is not there yet."""
        if self.precision.device == device:
            return
        state = self.optimizer.state_dict()
        self.optimizer = _optimizer_of(self.network.to(device))  # on some devices a move makes new parameters
        self.optimizer.load_state_dict(state)
        self.memory.to(device)
        self.precision, self._root = self.precision.to(device), self._root.to(device)

    def weights(self) -> dict[str, Any]:
        """What has been learned, without what it was learned from; on the CPU."""
        network = {name: tensor.cpu().clone() for name, tensor in self.network.state_dict().items()}
        return {"network": network, "precision": self.precision.cpu().clone(), "trained": self.trained}

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Start from weights; the optimiser starts anew."""
        self.network.load_state_dict(state["network"])
        self._believe(state["precision"])
        self.trained = int(state["trained"])

    def state_dict(self) -> dict[str, Any]:
        """All that learning goes on from: tensors and plain numbers."""
        return {
            **self.weights(),
            "optimizer": _on_cpu(self.optimizer.state_dict()),
            "memory": self.memory.state_dict(),
            "fresh": self.fresh,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it: later predictions and steps are the same, bit for bit."""
        self.load_weights(state)
        self.optimizer.load_state_dict(_on_cpu(state["optimizer"]))
        self.memory.load_state_dict(state["memory"])
        self.fresh, self.updates = int(state["fresh"]), int(state["updates"])


def _optimizer_of(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def _on_cpu(value: Any) -> Any:
    """Nested tables and lists with their tensors copied to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _on_cpu(entry) for key, entry in value.items()}
    return [_on_cpu(entry) for entry in value] if isinstance(value, list) else value
