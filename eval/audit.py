"""The audit of a pool: what can be known about its tasks before any training, at the cost of a few episodes each.

Knows: the no-op, the gold trajectory, their repetition, what makes a task dead, a check broken, an environment unusable.
Does not know: policies, schedulers, how episodes are executed.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from envsched_gnn.pool.episode import UNCOMPILED
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Status, Task
from envsched_gnn.train.environments import play
from envsched_gnn.train.policies.references import Turns, gold
from envsched_gnn.train.workers import Job, Outcome, WorkerPool

NAMED = 20
"""Records that the printed report names for each finding; `to_dict` names all."""

LABELS = {name: f"{name.replace('_', ' ')} (mapped to 0..1)" for name in ("noop_mean", "noop_max", "gold_mean")}
"""Of the figures of the printed report whose name does not say enough."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A check that cannot judge."""

    check: int
    """Its number in the task's verifier, from 1."""
    description: str
    fault: str
    """It does not compile, raises, or returns no bool."""
    where: str
    """`reset` or `gold`: the state it was tried on."""


@dataclass(frozen=True, kw_only=True)
class TaskAudit:
    """What the audit found about one task."""

    env_id: str
    task_id: str
    status: Status
    """`ok`, or how the first episode that failed ended."""
    detail: str
    """What failed."""
    reward_range: tuple[float, float]
    """[lo, hi] of its rewards."""
    noop_reward: float | None
    """Reward of doing nothing, in the task's range; None if it failed."""
    gold_reward: float | None
    """Reward of the gold trajectory; None if there is none or it failed."""
    flaky: bool
    """Whether the same calls gave different rewards or different checks."""
    checks: int
    checks_true_at_reset: int
    faults: tuple[Fault, ...]
    solved_at_reset: bool
    """Whether doing nothing earns the highest reward."""
    gold_falls_short: bool
    """Whether the gold trajectory earns less than the highest reward."""
    dead: str
    """Why every policy gets the same reward; empty if nothing says so."""
    setup_seconds: float
    """Median over the episodes that went well, as the next two."""
    step_seconds: float
    """Of one call of the gold trajectory; 0 without one."""
    score_seconds: float

    @property
    def key(self) -> str:
        """Identity of the task, `env_id/task_id`."""
        return f"{self.env_id}/{self.task_id}"


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What the audit found about a pool; prints as a table of findings."""

    rows: tuple[TaskAudit, ...]
    """One a task, in pool order."""
    empty_environments: tuple[str, ...]
    """Environments without tasks."""
    failing_environments: dict[str, str]
    """Environments none of whose tasks (an empty one: whose class) can be set up, and why."""
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The figures of the whole pool; rewards mapped to [0, 1] by their tasks' ranges, None where there are none."""
        rows = self.rows
        noop = [_mapped(row.noop_reward, row.reward_range) for row in rows if row.noop_reward is not None]
        reached = [_mapped(row.gold_reward, row.reward_range) for row in rows if row.gold_reward is not None]
        checks = sum(row.checks for row in rows if row.noop_reward is not None)
        true = sum(row.checks_true_at_reset for row in rows)
        return {
            "tasks": len(rows),
            "noop_mean": round(statistics.fmean(noop), 4) if noop else None,
            "noop_max": max(noop, default=None),
            "gold_tasks": len(reached),
            "gold_mean": round(statistics.fmean(reached), 4) if reached else None,
            "checks": checks,
            "checks_true_at_reset": true,
            "share_true_at_reset": round(true / checks, 4) if checks else None,
            "solved_at_reset": sum(row.solved_at_reset for row in rows),
            "gold_falls_short": sum(row.gold_falls_short for row in rows),
            "dead": sum(bool(row.dead) for row in rows),
            "flaky": sum(row.flaky for row in rows),
            "failed": sum(row.status != "ok" for row in rows),
            "broken_checks": sum(len({fault.check for fault in row.faults}) for row in rows),
            "tasks_with_broken_checks": sum(bool(row.faults) for row in rows),
            "empty_environments": len(self.empty_environments),
            "failing_environments": len(self.failing_environments),
            "setup_ms": _milliseconds([row.setup_seconds for row in rows if row.noop_reward is not None]),
            "step_ms": _milliseconds([row.step_seconds for row in rows if row.step_seconds > 0]),
            "score_ms": _milliseconds([row.score_seconds for row in rows if row.noop_reward is not None]),
            "seconds": round(self.seconds, 2),
        }

    def findings(self) -> list[tuple[str, str, str]]:
        """(kind, record, what) of everything a user should look at, worst first."""
        found = [("environment fails", env_id, why) for env_id, why in self.failing_environments.items()]
        found += [("environment without tasks", env_id, "never chosen") for env_id in self.empty_environments]
        found += [("task fails", row.key, f"{row.status}: {row.detail}") for row in self.rows if row.status != "ok"]
        found += [("dead task", row.key, row.dead) for row in self.rows if row.dead]
        found += [("solved at reset", row.key, f"doing nothing earns {row.noop_reward:g}") for row in self.rows if row.solved_at_reset]
        found += [("gold falls short", row.key, f"it earns {row.gold_reward:g}") for row in self.rows if row.gold_falls_short]
        found += [("flaky", row.key, "the same calls gave different rewards or checks") for row in self.rows if row.flaky]
        found += [
            ("broken check", f"{row.key} check {fault.check}", f"{fault.fault} (at {fault.where}): {fault.description}")
            for row in self.rows
            for fault in row.faults
        ]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Summary, rows and findings as plain values."""
        return {
            "summary": self.summary(),
            "failing_environments": dict(self.failing_environments),
            "empty_environments": list(self.empty_environments),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        figures = {name: "-" if value is None else value for name, value in self.summary().items()}
        lines = [f"{LABELS.get(name, name.replace('_', ' ')):27}{value}" for name, value in figures.items()]
        findings = self.findings()
        for kind, count in Counter(kind for kind, _, _ in findings).items():
            lines += ["", f"{kind}: {count}"]
            shown = [(record, what) for other, record, what in findings if other == kind][:NAMED]
            lines += [f"  {record}: {' '.join(what.split())[:160]}" for record, what in shown]
            lines += [f"  and {count - NAMED} more (all of them with --json)"] if count > NAMED else []
        return "\n".join(lines)


def audit(
    pool: Pool,
    *,
    repeats: int = 2,
    workers: int = 2,
    memory_mb: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Play the no-op and, where a task ships one, its gold trajectory, `repeats` times each, and judge.

    Args:
        repeats: at least 2 shows flakiness.
        workers: processes.
        memory_mb: address-space limit of each, MiB.
        progress: told (episodes done, episodes in all).

    Raises:
        PoolError: a ground truth is no trajectory.
        EnvSchedError: worker processes do not start.
    """
    began = time.monotonic()
    trials = [Trial(pool.environment_of[task.env_id], task, repeats) for task in pool.tasks]
    bare = [pool.environment_of[env_id] for env_id in pool.empty_environments if pool.environment_of[env_id].env_type == "python_class"]
    empty = [Job(environment=environment, task=_bare(environment), requests=[{"op": "reset"}]) for environment in bare]
    jobs = [trial.job for trial in trials] + empty
    outcomes: list[dict[int, Outcome]] = [{} for _ in jobs]
    total = sum(len(job.requests) for job in jobs)
    with WorkerPool(workers, memory_mb) as running:
        for done, (job, number, outcome) in enumerate(running.run(jobs), start=1):
            outcomes[job][number] = outcome
            if progress is not None:
                progress(done, total)
    rows = tuple(trial.judge([found[k] for k in sorted(found)]) for trial, found in zip(trials, outcomes, strict=False))
    tried = zip(empty, outcomes[len(trials) :], strict=True)
    failing = {job.environment.env_id: found[0].detail for job, found in tried if found[0].status != "ok"}
    return AuditReport(
        rows=rows,
        empty_environments=pool.empty_environments,
        failing_environments={**_failing(rows), **failing},
        seconds=time.monotonic() - began,
    )


class Trial:
    """The episodes of one task's audit."""

    def __init__(self, environment: Environment, task: Task, repeats: int) -> None:
        self.environment, self.task, self.repeats = environment, task, repeats
        self.low, self.high = task.reward_range_in(environment)
        self.gold = gold(environment, task)
        noop: Turns = [[] for _ in self.gold] if self.gold else [[]]
        limit, tried = environment.max_turns, [noop] if self.gold is None else [noop, self.gold]
        requests = [play(turns, limit, inspect=True)[0] for turns in tried for _ in range(repeats)]
        self.job = Job(environment=environment, task=task, requests=requests)

    def judge(self, outcomes: Sequence[Outcome]) -> TaskAudit:
        """From the outcomes of `job`, in order."""
        noop, reached = list(outcomes[: self.repeats]), list(outcomes[self.repeats :])
        failed = next((outcome for outcome in outcomes if outcome.status != "ok"), None)
        true = [check for check in _checks(noop) if check.get("passed") is True]
        noop_reward, gold_reward = _reward(noop), _reward(reached)
        top = self.high - 1e-9 * (self.high - self.low)
        well = [outcome.reply for outcome in outcomes if outcome.status == "ok"]
        steps = [reply["seconds"]["step"] / reply["calls"] for reply in well if reply["calls"]]
        return TaskAudit(
            env_id=self.task.env_id,
            task_id=self.task.task_id,
            status="ok" if failed is None else failed.status,
            detail="" if failed is None else failed.detail,
            reward_range=(self.low, self.high),
            noop_reward=noop_reward,
            gold_reward=gold_reward,
            flaky=_differs(noop) or _differs(reached),
            checks=len(self.task.verifier.checks),
            checks_true_at_reset=len(true),
            faults=tuple(self._faults(noop, reached)),
            solved_at_reset=noop_reward is not None and noop_reward >= top,
            gold_falls_short=gold_reward is not None and gold_reward < top,
            dead=self._dead(noop, noop_reward, gold_reward),
            setup_seconds=_median([reply["seconds"]["setup"] for reply in well]),
            step_seconds=_median(steps),
            score_seconds=_median([reply["seconds"]["score"] for reply in well]),
        )

    def _faults(self, noop: Sequence[Outcome], reached: Sequence[Outcome]) -> Iterator[Fault]:
        """A check that only raises where its object does not exist yet is sound: where there is a gold state, that one decides."""
        where, checks = ("gold", _checks(reached)) if _checks(reached) else ("reset", _checks(noop))
        for number, (check, found) in enumerate(zip(self.task.verifier.checks, checks, strict=False), start=1):
            if found.get("fault"):
                yield Fault(check=number, description=check.description, fault=str(found["fault"]), where=where)

    def _dead(self, noop: Sequence[Outcome], noop_reward: float | None, gold_reward: float | None) -> str:
        checks = self.task.verifier.checks
        if self.task.verifier.kind == "checks" and not sum(check.weight for check in checks) > 0:
            return "no check has a positive weight: no state can be scored"
        found = _checks(noop)
        if checks and all(str(check.get("fault", "")).startswith(UNCOMPILED) for check in found) and found:
            return "no check compiles"
        if found and all(check.get("passed") is True for check in found):
            return "every check is true at reset"
        if noop_reward is not None and noop_reward == gold_reward:
            return f"the gold trajectory earns no more than doing nothing ({noop_reward:g})"
        return ""


def _checks(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Checks as the first episode that went well found them."""
    found: list[Any] = next((outcome.reply["checks"] for outcome in outcomes if outcome.status == "ok"), [])
    return [check for check in found if isinstance(check, dict)]


def _reward(outcomes: Sequence[Outcome]) -> float | None:
    """Reward of the first episode that went well."""
    return next((float(outcome.reply["reward"]) for outcome in outcomes if outcome.status == "ok"), None)


def _mapped(reward: float, span: tuple[float, float]) -> float:
    """The reward mapped to [0, 1]; an empty range has only its highest reward."""
    low, high = span
    return (reward - low) / (high - low) if high > low else 1.0


def _differs(outcomes: Sequence[Outcome]) -> bool:
    results = [(o.status, o.reply.get("reward"), [check.get("passed") for check in o.reply.get("checks", ())]) for o in outcomes]
    return any(result != results[0] for result in results)


def _failing(rows: Sequence[TaskAudit]) -> dict[str, str]:
    """Environments of which no task gave a no-op reward."""
    by_environment: dict[str, list[TaskAudit]] = defaultdict(list)
    for row in rows:
        by_environment[row.env_id].append(row)
    return {env_id: of[0].detail for env_id, of in by_environment.items() if all(row.noop_reward is None for row in of)}


def _bare(environment: Environment) -> Task:
    """A task that only sets an environment up."""
    return Task(env_id=environment.env_id, task_id="(none)", prompt="", initial_state={})


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _milliseconds(seconds: Sequence[float]) -> float | None:
    return round(1000 * statistics.median(seconds), 3) if seconds else None
