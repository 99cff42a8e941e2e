"""From a batch that a trainer has scored to groups of raw rewards, and the exact masking of rollouts that failed.

Knows: TRL's layout (K rows a group, groups in slot order, ranks one after another), statuses, what of a batch reaches a loss.
Does not know: schedulers, how rewards were computed, which rank it runs on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envsched_gnn.errors import EnvSchedError
from envsched_gnn.records import REWARDED, Rollout, RolloutGroup, Selection, Status

DIGITS = 7
"""Decimal digits that a float32, the trainers' type of a reward, holds; what stands behind them is rounding, and would leave [0, 1]."""

HARMLESS = {"old_logps": 0.0, "old_per_token_logps": 0.0, "ref_per_token_logps": -1e4, "importance_sampling_ratio": 1.0}
"""Log-probabilities of a masked row under which no ratio overflows: a mask of 0 turns no infinity into 0. Ratios are exp(new - old) and
exp(ref - new), and `new` is at most 0."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rank knows of one of its rollouts besides the rewards."""

    task_key: str
    status: Status
    """The environment's; `ok` where there is none."""
    tokens: int
    """Length of the completion, tool answers included."""
    cut: bool = False
    """Whether the completion reached the length limit before it ended."""
    detail: str = ""


def reports_of(
    rows: Sequence[dict[str, Any]],
    environments: Sequence[Any] | None,
    completions: Sequence[Sequence[int]],
    limit: int,
    ends: Sequence[int],
) -> list[Report]:
    """One report a row.

    The status is the row's `envsched_status` (a `rollout_func` may return a list of that name), else the `status` of the row's
    environment, with its `detail`.

    Args:
        rows: this rank's rows of the data set.
        environments: instance of each row, where the trainer has any.
        completions: token ids.
        limit: longest completion.
        ends: token ids that end one.
    """
    return [
        Report(
            task_key=row["task_id"],
            status=row.get("envsched_status", getattr(environment, "status", "ok")),
            tokens=len(ids),
            cut=len(ids) >= limit and ids[-1] not in ends,
            detail=str(getattr(environment, "detail", "")),
        )
        for row, environment, ids in zip(rows, environments or [None] * len(rows), completions, strict=True)
    ]


def combined(rewards: Tensor, weights: Tensor) -> list[float]:
    """Raw reward of each row: sum over functions of weight * reward, functions that gave none left out; NaN where none gave any.

    Args:
        rewards: [rows, functions], NaN where a function gave none.
        weights: [functions].
    """
    total = (rewards.double() * weights.to(rewards.device).double()).nansum(1)
    total[torch.isnan(rewards).all(1)] = math.nan
    return [float(f"{value:.{DIGITS}g}") for value in total.tolist()]


def rollout_of(reward: float, report: Report, version: int) -> Rollout:
    """What became of an episode. One that nobody calls failed has crashed if it has no reward, and is truncated if it was cut."""
    status, detail = report.status, report.detail
    if status == "ok" and math.isnan(reward):
        status, detail = "crashed", detail or "no reward function gave a reward"
    elif status == "ok" and report.cut:
        status = "truncated"
    kept = reward if status in REWARDED and not math.isnan(reward) else None
    return Rollout(reward=kept, status=status, tokens=report.tokens, policy_version=version, detail=detail)


def masked(rollouts: Sequence[Rollout]) -> Tensor:
    """[rows] bool: rollouts that may not train, because they have no reward, or an infinite one."""
    return torch.tensor([rollout.reward is None or not math.isfinite(rollout.reward) for rollout in rollouts], dtype=torch.bool)


def groups_of(selection: Selection, slots: Sequence[str], rollouts: Sequence[Rollout]) -> tuple[RolloutGroup, ...]:
    """One group a pick, in rank order; a task that fills several slots has all their rollouts in one group."""
    size = len(rollouts) // len(slots)
    of: dict[str, list[Rollout]] = {}
    for slot, key in enumerate(slots):
        of.setdefault(key, []).extend(rollouts[slot * size : (slot + 1) * size])
    return tuple(
        RolloutGroup(group_id=p.group_id, env_id=p.env_id, task_id=p.task_id, step=selection.step, rollouts=tuple(of[p.key]))
        for p in selection.picks
    )


def check_layout(slots: Sequence[str], reports: Sequence[Report], size: int) -> None:
    """All ranks together trained the tasks of the selection, `size` rows each, in this order.

    Raises:
        EnvSchedError: names the first row that is another task's.
    """
    expected = [key for key in slots for _ in range(size)]
    found = [report.task_key for report in reports]
    if found == expected:
        return
    at = next((row for row, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), min(len(found), len(expected)))
    got, wanted = ((names[at] if at < len(names) else "nothing") for names in (found, expected))
    raise EnvSchedError(
        f"row {at} of the generation batch of {len(found)} rows is of task {got!r}, selected was {wanted!r} ({len(expected)} rows). "
        "The ranks do not train the same selection: give every process the same data set, and leave the rows' order and task_id alone."
    )


def mask_rows(batch: dict[str, Any], rows: Tensor, gather: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Take rollouts out of a scored batch: advantage 0, completion mask 0, and out of the token count that losses divide by.

    Rows that stay keep their advantage: TRL leaves rows without reward out of means and deviations, so masking begins at the rewards.

    Args:
        batch: what `_generate_and_score_completions` returned; changed in place.
        rows: [rows of this rank] bool.
        gather: concatenates a tensor over all ranks.
    """
    rows = rows.to(batch["completion_mask"].device)
    for name, value in {"advantages": 0.0, "completion_mask": 0, **HARMLESS}.items():
        if batch.get(name) is not None:
            tensor = batch[name]
            batch[name] = tensor.masked_fill(rows.view(-1, *[1] * (tensor.dim() - 1)), value)
    if batch.get("num_items_in_batch") is not None:
        loss_mask = batch["completion_mask"] * batch.get("tool_mask", 1)
        batch["num_items_in_batch"] = gather(loss_mask.sum()).sum()
    return batch
