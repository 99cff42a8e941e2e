"""What the book keeps of a proposal until it reports, and what it makes of a report.

Knows: the fields, and which groups were proposed together.
Does not know: identities, which groups are legal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from envsched_gnn.history import GroupStatistics
from envsched_gnn.records import Prediction, Use


@dataclass(frozen=True, kw_only=True)
class Open:
    """A group that was proposed and has not reported."""

    step: int
    task: int
    predicted_variance: float
    p_informative: float
    batch: Prediction | None
    """What was predicted for the picks of its request; None if nothing was."""
    position: int
    """Its place in them."""
    cancelled: bool = False
    """It will not report, says the trainer; if it does, it counts."""
    use: Use = "train"


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The new groups of one report, in order of arrival."""

    tasks: list[int]
    steps: list[int]
    """Steps of the selections."""
    expected: list[Open | None]
    """None: the group was not proposed by this scheduler."""
    failed: list[bool | None]
    rewards: list[list[float | None]]
    """As they came, one entry a rollout."""
    statistics: GroupStatistics

    def by_request(self) -> Iterator[tuple[int, GroupStatistics, Prediction]]:
        """(step, statistics, what was predicted) of the observed groups that were proposed, request by request, steps ascending."""
        requests: dict[tuple[int, int], list[int]] = {}
        for k, (entry, observed) in enumerate(zip(self.expected, self.statistics.observed.tolist(), strict=True)):
            if observed and entry is not None and entry.batch is not None:
                requests.setdefault((entry.step, id(entry.batch)), []).append(k)
        for (step, _), members in sorted(requests.items(), key=lambda item: item[0][0]):
            entries = [entry for k in members if (entry := self.expected[k]) is not None]
            batch = entries[0].batch
            assert batch is not None
            at = torch.tensor([entry.position for entry in entries], device=batch.informativeness.device)
            yield step, self.statistics.at(torch.tensor(members)), batch.at(at)


@dataclass(kw_only=True)
class Latest:
    """The observed groups of the latest round that reported."""

    step: int = -1
    variance: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    """Predicted variance, of the groups that were proposed."""
    realised: list[float] = field(default_factory=list)
    """Their variance."""
