"""DOTS (arXiv 2506.05316): difficulty predicted by attention to a few reference tasks that are rolled out anew every other step.

Knows: references, the attention, how its maps are trained, the draw toward 1/2.
Does not know: environments; whether rewards within a group differ. The source trains three-layer adapters on other models' rollouts; here
(ours) they are one linear map each, start as the identity, and learn online from this run. Its replay of older rollouts is the trainer's
business and left out.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.prompts import unit
from envsched_gnn.schedule.policies.rule import Ask, Memory, Plan

EVERY = 2
"""Steps between two sets of references (the source)."""
REFERENCES = 0.5
"""References, in batches (the source: 256 for batches of 512)."""
TEMPERATURE = 1e-3
"""tau of the draw (the source)."""
RATE, UPDATES = 1e-3, 4
"""Learning rate (the source) and updates a round (ours) of the maps."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam."""
CLIP = 1e-3
"""A prediction is kept this far from 0 and 1 before its logarithm is taken (ours)."""


def attention(
    x: Float[Tensor, "n d"], z: Float[Tensor, "references d"], label: Float[Tensor, " references"], maps: Float[Tensor, "2 d d"]
) -> Float[Tensor, " n"]:
    """sum_r softmax_r(q . k_r / sqrt(d)) label_r, with q = x Q and k = z R."""
    return torch.softmax(x @ (maps[0] @ (z @ maps[1]).T) / x.shape[1] ** 0.5, 1) @ label


class Dots:
    """Picks by softmax(-|p - 1/2| / tau), without replacement."""

    def __init__(self, embedding: Float[Tensor, "tasks d"]) -> None:
        """Vectors are scaled to length sqrt(d): their attention then is sqrt(d) cos."""
        self._x = unit(embedding) * embedding.shape[1] ** 0.5
        self.memory = self.start()

    def start(self) -> Memory:
        """`reference`, `label` [tasks] of the latest references; `maps` (Q, R), and Adam's two moments and its number of updates."""
        tasks, d = self._x.shape
        maps = torch.eye(d, dtype=torch.float64).repeat(2, 1, 1)
        return Memory(
            tasks={"reference": torch.zeros(tasks, dtype=torch.bool), "label": torch.zeros(tasks, dtype=torch.float64)},
            shared={"maps": maps, "first": torch.zeros_like(maps), "second": torch.zeros_like(maps), "updates": torch.tensor(0)},
        )

    def _references(self) -> Int[Tensor, " references"]:
        return self.memory.tasks["reference"].nonzero().flatten()

    def predicted(self, rows: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """p = intercept + slope attention, in [0, 1]: the least-squares line from the references' attention to their labels.

        1/2 without references; the attention itself where it is the same for all references.
        """
        references, maps = self._references(), self.memory.shared["maps"]
        if not len(references):
            return torch.full((len(rows),), 0.5, dtype=torch.float64)
        z, label = self._x[references], self.memory.tasks["label"][references]
        raw = attention(self._x[torch.cat([references, rows])], z, label, maps)
        known, asked = raw[: len(references)], raw[len(references) :]
        centred = known - known.mean()
        spread = centred.square().sum()
        if spread <= 1e-12:
            return asked.clamp(0, 1)
        return (label.mean() + (centred * label).sum() / spread * (asked - known.mean())).clamp(0, 1)

    def choose(self, ask: Ask) -> Plan:
        """References where they are due, then a batch; a task may be both."""
        due = ask.step % EVERY == 0 or not len(self._references())
        wanted = min(max(round(REFERENCES * ask.count), 1), ask.count)
        if ask.trip == 0 and due and wanted and len(ask.rows):
            at = ask.candidates(wanted)
            return Plan(rows=ask.rows[at], score=torch.zeros(len(at)), phase="uniform", use="reference", more=True)
        if len(ask.looked):
            self._set_references(ask.looked)
        closeness = -(self.predicted(ask.rows) - 0.5).abs() / TEMPERATURE
        return ask.best(closeness + chance.gumbel(ask.draws(chance.GUMBEL)))

    def _set_references(self, looked: Groups) -> None:
        tables = self.memory.tasks
        tables["reference"] = torch.zeros_like(tables["reference"])
        tables["reference"][looked.rows] = True
        tables["label"][looked.rows] = looked.mean

    def learn(self, step: int, groups: Groups) -> None:
        """UPDATES steps of Adam on both maps: cross-entropy between the attention and the mean of the groups that are no references."""
        references = self._references()
        rows = torch.isin(groups.rows, references, invert=True).nonzero().flatten()
        if not len(references) or not len(rows):
            return
        x, z, label = self._x[groups.rows[rows]], self._x[references], self.memory.tasks["label"][references]
        for _ in range(UPDATES):
            maps = self.memory.shared["maps"].clone().requires_grad_()
            with torch.enable_grad():
                p = attention(x, z, label, maps).clamp(CLIP, 1 - CLIP)
                loss = torch.nn.functional.binary_cross_entropy(p, groups.mean[rows])
                (gradient,) = torch.autograd.grad(loss, maps)
            self._update(gradient)

    def _update(self, gradient: Float[Tensor, "2 d d"]) -> None:
        """One step of Adam."""
        shared = self.memory.shared
        shared["updates"] = shared["updates"] + 1
        t = int(shared["updates"])
        shared["first"] = BETAS[0] * shared["first"] + (1 - BETAS[0]) * gradient
        shared["second"] = BETAS[1] * shared["second"] + (1 - BETAS[1]) * gradient.square()
        scaled = (shared["second"] / (1 - BETAS[1] ** t)).sqrt() + EPSILON
        shared["maps"] = shared["maps"] - RATE * shared["first"] / (1 - BETAS[0] ** t) / scaled

    def restore(self, memory: Memory, same_pool: bool) -> None:
        """The maps of another pool's vectors start anew: the default ones have other axes."""
        self.memory = memory if same_pool else Memory(tasks=memory.tasks, shared=self.start().shared)

    def metrics(self) -> dict[str, float]:
        """Number of references, and their mean."""
        references = self._references()
        mean = float(self.memory.tasks["label"][references].mean()) if len(references) else 0.5
        return {"references": float(len(references)), "reference_mean": mean}
