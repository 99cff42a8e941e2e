"""A history file: rollouts that someone else ran, read and replayed into a scheduler round by round.

Knows: the JSONL form of a history, and that its lines count as the scheduler's own selections.
Does not know: how a scheduler learns or picks.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from envsched_gnn.errors import HistoryError, message
from envsched_gnn.records import Rollout, RolloutGroup, Status, group_id_of

if TYPE_CHECKING:
    from envsched_gnn.schedule.envsched import EnvSched

EXAMPLE = '{"step": 3, "env_id": "shop", "task_id": "t1", "rewards": [0.5, null, 1.0]}'


def read_history(path: str | Path) -> list[RolloutGroup]:
    """Read a JSONL history: one group a line, in any order; sorted by step, lines of a step as they stand.

    `null` and NaN are masked rollouts. `status` and `seconds` hold one value for the group or one a rollout. Blank lines are skipped,
    other keys ignored.

    Raises:
        HistoryError: the file is missing, or a line is malformed: names the file, the line, what was expected and the cure.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise HistoryError(f"{path}: cannot be read ({error.strerror}). Give a JSONL file with lines like {EXAMPLE}.") from None
    if lines[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise HistoryError(message(str(path), "UTF-16 text", "UTF-8 text", "Save the file as UTF-8, for example with iconv."))
    groups = [_group(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    return sorted(groups, key=lambda group: group.step)


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """What a replay left out."""

    replayed: int
    """Groups that the scheduler was given."""
    unknown: int
    """Groups of tasks that are not in the graph."""
    example: str
    """One such task."""
    repeated: int
    """Groups that stood in the history before: with the same id, step and task."""
    shared: int
    """Groups whose id stood in the history before, at another step or for another task; replayed as groups of their own."""
    shared_example: str
    """One such id."""


def next_step(groups: Sequence[RolloutGroup]) -> int:
    """The step after the last one of a history; 0 for an empty one."""
    return max((group.step for group in groups), default=-1) + 1


def replay(scheduler: EnvSched, groups: Sequence[RolloutGroup], before: int) -> ReplayReport:
    """Give a new scheduler the groups of every step below `before` as its own selections, round by round: predicted, then observed.

    Groups of tasks that it does not know, and groups that stood before, are left out and counted.
    """
    used = [group for group in groups if group.step < before]
    ours = [group for group in used if group.key in scheduler.book.row_of]
    unique = list({(group.group_id, group.step, group.key): group for group in reversed(ours)}.values())[::-1]
    for step, members in groupby(sorted(unique, key=lambda group: group.step), key=lambda group: group.step):
        _round(scheduler, step, list(members))
    owner = {group.group_id: (group.step, group.key) for group in reversed(unique)}
    shared = [group.group_id for group in unique if owner[group.group_id] != (group.step, group.key)]
    foreign = [group.key for group in used if group.key not in scheduler.book.row_of]
    return ReplayReport(
        replayed=len(unique),
        unknown=len(foreign),
        example=foreign[0] if foreign else "",
        repeated=len(ours) - len(unique),
        shared=len(shared),
        shared_example=shared[0] if shared else "",
    )


def _round(scheduler: EnvSched, step: int, groups: Sequence[RolloutGroup]) -> None:
    """A second group of a task at the same step is an observation and a selection more, under its own id."""
    selection = scheduler.shadow(step, list(dict.fromkeys(group.key for group in groups)))
    ids = {pick.key: pick.group_id for pick in selection.picks}
    scheduler.observe([replace(group, group_id=ids.pop(group.key, f"again:{step}:{group.key}:{group.group_id}")) for group in groups])


def _group(line: bytes, where: str) -> RolloutGroup:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise HistoryError(message(where, f"not JSON ({error})", f"an object like {EXAMPLE}", "Correct or delete the line.")) from None
    if not isinstance(record, dict):
        raise HistoryError(message(where, f"a {type(record).__name__}", f"an object like {EXAMPLE}", "Correct or delete the line."))
    step = _whole(record, "step", where)
    env_id, task_id = (_text(record, key, where) for key in ("env_id", "task_id"))
    group_id = _text(record, "group_id", where) if record.get("group_id") is not None else group_id_of(step, env_id, task_id)
    return RolloutGroup(group_id=group_id, env_id=env_id, task_id=task_id, step=step, rollouts=_rollouts(record, where))


def _rollouts(record: dict[str, Any], where: str) -> tuple[Rollout, ...]:
    rewards = record.get("rewards")
    if not isinstance(rewards, list) or not all(r is None or _is_number(r) for r in rewards):
        raise HistoryError(
            message(where, f"rewards = {_short(rewards)}", "a list of numbers and nulls", "Write null for a masked rollout.")
        )
    version = _whole(record, "policy_version", where) if record.get("policy_version") is not None else 0
    statuses = _each(record, "status", len(rewards), where)
    seconds = _each(record, "seconds", len(rewards), where)
    return tuple(
        _rollout(reward, status, second, version, where) for reward, status, second in zip(rewards, statuses, seconds, strict=True)
    )


def _rollout(reward: float | None, status: Any, seconds: Any, version: int, where: str) -> Rollout:
    value = None if reward is None or math.isnan(reward) else float(reward)
    if status is not None and status not in get_args(Status):
        raise HistoryError(
            message(where, f"status {_short(status)}", f"one of {', '.join(get_args(Status))}", "Correct it or leave it out.")
        )
    if seconds is not None and not (_is_number(seconds) and seconds >= 0):
        raise HistoryError(message(where, f"seconds {_short(seconds)}", "a number from 0", "Correct it or leave it out."))
    try:
        return Rollout(reward=value, status=status or "ok", seconds=float(seconds or 0), policy_version=version)
    except ValueError as error:
        raise HistoryError(message(where, str(error), "null as its reward", "Write null, or correct the status.")) from None


def _each(record: dict[str, Any], key: str, count: int, where: str) -> Sequence[Any]:
    """One value a rollout: the list that stands there, or its one value for all."""
    value = record.get(key)
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise HistoryError(message(where, f"{len(value)} values of {key}", f"one, or {count} as of rewards", "Complete the list."))
    return value


def _whole(record: dict[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 2**53:
        raise HistoryError(message(where, f"{key} = {_short(value)}", "a whole number from 0", f"Correct {key}."))
    return value


def _text(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise HistoryError(message(where, f"{key} = {_short(value)}", "a text", f"Give the task's {key} as in the pool."))
    return value


def _is_number(value: object) -> bool:
    """Whether it is a number that a float can hold; JSON's true is none, and an integer of 400 digits is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 2**1023


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
