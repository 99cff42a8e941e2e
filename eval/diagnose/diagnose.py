"""Whether a relation is worth trusting in a pool: every test, its correction for being one of many, and a verdict.

Knows: the labels of a task, which tests there are, when there is too little to tell, what a verdict says.
Does not know: how a test is made, how a similarity is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from envsched_gnn.errors import HistoryError, message
from envsched_gnn.eval.diagnose import permutation
from envsched_gnn.eval.diagnose.permutation import Tested
from envsched_gnn.eval.diagnose.similarity import MIN_MEMBERS, Similarity, neighbourhood, of_graph, of_views
from envsched_gnn.eval.replay.judge import TARGETS
from envsched_gnn.eval.replay.recorded import Recorded
from envsched_gnn.files import without_nan
from envsched_gnn.graph.neighbors import RELATIONS, Relation
from envsched_gnn.history import informative

LEVEL = 0.05
"""A corrected p-value up to which a relation is said to help."""
SEEN = 0.3
"""A test that would have missed a correlation of this size says nothing by finding none (ours)."""
MIN_TASKS = 20
"""Observed tasks below which nothing is tested (ours)."""
MIN_ENVIRONMENTS = 8
"""Environments below which signs have too few arrangements, 2^(M-1), to tell anything across them (ours)."""
MAX_TASKS = 10_000
"""Observed tasks that are compared, all pairs of them; of more, so many are drawn (ours)."""
ALL_VIEWS = "all"
"""Name of the test of a relation as the scheduler uses it."""

Tie = Literal["within", "cross", "environment"]
TIES: tuple[Tie, ...] = ("within", "cross", "environment")
Verdict = Literal["helps", "no evidence", "too few observations", "nothing to explain", "absent"]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Mean statistics of the observed tasks over a ledger."""

    tasks: np.ndarray
    """Row in the graph [n]."""
    env: np.ndarray
    """Environment that each counts for, numbered from 0 without gaps [n]."""
    values: np.ndarray
    """Mean variance, and share of groups with variance, of the task's own groups [n, targets]."""
    groups: np.ndarray
    """Observed groups of each [n]."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One test of one relation, under one similarity, for one target."""

    relation: Tie
    view: str
    target: str
    test: Tested | None
    mantel: float
    tasks: int
    """Tasks that have a neighbour, or that the environments hold."""
    environments: int
    verdict: Verdict
    reason: str
    """Why there is no test, or how much more it takes."""


def diagnose(recorded: Recorded, *, permutations: int = 999, seed: int = 0) -> dict[str, Any]:
    """All tests of a ledger, plain and without NaN; None where a figure does not exist.

    Raises:
        HistoryError: fewer than MIN_TASKS tasks were observed.
    """
    labels = labels_of(recorded, seed)
    relations = _rows(list(_relations(recorded, labels, permutations, seed)))
    views = _rows(list(_views(recorded, labels, permutations, seed)))
    result = {
        "ledger": recorded.name,
        "path": str(recorded.path),
        "kind": recorded.kind,
        "policy": recorded.policy,
        "uniform": recorded.uniform,
        "pool_hash": recorded.graph.pool_hash,
        "groups": len(recorded.steps),
        "observed_tasks": len(torch.unique(recorded.tasks)),
        "tested_tasks": len(labels.tasks),
        "environments": int(labels.env.max()) + 1,
        "groups_per_task": float(np.median(labels.groups)),
        "wasted": _wasted(recorded),
        "permutations": permutations,
        "seed": seed,
        "relations": relations,
        "views": views,
        "verdicts": {tie: _verdict(tie, relations) for tie in TIES},
    }
    plain: dict[str, Any] = without_nan(result)
    return plain


def _wasted(recorded: Recorded) -> float:
    """Share of groups without variance: of a uniform ledger, what a scheduler could save at most."""
    return 1 - float(informative(recorded.statistics.variance, recorded.config.predict.v_floor).double().mean())


def labels_of(recorded: Recorded, seed: int) -> Labels:
    """The statistics of each observed task: means over its own groups, whatever their step."""
    tasks, at = (part.numpy() for part in torch.unique(recorded.tasks, return_inverse=True))
    if len(tasks) < MIN_TASKS:
        cure = "Let the run go on: a uniform one observes as many new tasks a step as its batch holds, until it has seen all."
        raise HistoryError(message(str(recorded.path), f"{len(tasks)} observed tasks", f"at least {MIN_TASKS}", cure))
    variance = recorded.statistics.variance
    outcome = (variance.numpy(), informative(variance, recorded.config.predict.v_floor).double().numpy())
    groups = np.bincount(at)
    values = np.stack([np.bincount(at, weights=y) / groups for y in outcome], axis=1)
    kept = np.arange(len(tasks))
    if len(tasks) > MAX_TASKS:
        kept = np.sort(np.random.default_rng(seed).choice(len(tasks), MAX_TASKS, replace=False))
    env = np.unique(recorded.graph["task"].env_index.numpy()[tasks[kept]], return_inverse=True)[1]
    return Labels(tasks=tasks[kept], env=env, values=values[kept], groups=groups[kept])


def _relations(recorded: Recorded, labels: Labels, permutations: int, seed: int) -> Iterator[Finding]:
    """Both relations as the scheduler uses them, and the environment."""
    for relation in RELATIONS:
        yield from _compared(relation, ALL_VIEWS, of_graph(recorded.graph, labels.tasks), recorded, labels, permutations, seed)
    environments, size = len(np.unique(labels.env)), np.bincount(labels.env)
    reason = "needs two environments, one of them with two observed tasks" if environments < 2 or size.max() < 2 else ""
    for target, y in zip(TARGETS, labels.values.T, strict=True):
        statistic = partial(permutation.intraclass_correlation, labels.env)
        test = _test(statistic, y, permutation.exchanged(y, permutations, seed), reason)
        yield _finding("environment", "", target, test, math.nan, len(y), environments, reason, y)


def _views(recorded: Recorded, labels: Labels, permutations: int, seed: int) -> Iterator[Finding]:
    """Each view alone; none without a pool. A graph whose records were given has other cross views than the pool's code says: left out."""
    if recorded.pool is None:
        return
    given = recorded.graph.feature_config.get("records") == "given"
    for relation, view, similarity in of_views(recorded.pool, labels.tasks):
        if relation == "cross" and given:
            continue
        if similarity is None:
            for target in TARGETS:
                yield Finding(
                    relation=relation, view=view, target=target, test=None, mantel=math.nan, tasks=0, environments=0,
                    verdict="absent", reason="the pool has no such text",
                )  # fmt: skip
            continue
        yield from _compared(relation, view, similarity, recorded, labels, permutations, seed)


def _compared(
    relation: Relation, view: str, similarity: Similarity, recorded: Recorded, labels: Labels, permutations: int, seed: int
) -> Iterator[Finding]:
    """A relation under one similarity, for each target."""
    k = recorded.graph.within_k if relation == "within" else recorded.graph.cross_k
    priority = np.random.default_rng(seed).permutation(len(labels.env))
    near = neighbourhood(relation, similarity, labels.env, labels.values, k, priority)
    has = near.weights.getnnz(axis=1) > 0
    environments = len(np.unique(labels.env[has]))
    reason = _too_few(relation, labels.env, has)
    for target, y, mantel in zip(TARGETS, labels.values.T, near.mantel, strict=True):
        match relation:
            case "within":
                used = permutation.less_environment(y, labels.env)
                draws = permutation.exchanged_inside(used, labels.env, permutations, seed)
            case "cross":
                used = y - y.mean()
                draws = permutation.flipped(used, labels.env, permutations, seed)
        statistic = partial(permutation.neighbour_correlation, relation, near.weights, labels.env)
        test = _test(statistic, used, draws, reason, has)
        yield _finding(relation, view, target, test, mantel, int(has.sum()), environments, reason, used[has])


def _too_few(relation: Relation, env: np.ndarray, has: np.ndarray) -> str:
    """What a test of a relation lacks before anything is computed."""
    size, seen = np.bincount(env), len(np.unique(env))
    if relation == "cross" and seen < MIN_ENVIRONMENTS:
        return f"needs observed tasks in at least {MIN_ENVIRONMENTS} environments; there are {seen}"
    if relation == "within" and size.max() < MIN_MEMBERS:
        return f"needs environments with at least {MIN_MEMBERS} observed tasks; the largest has {size.max()}"
    if has.sum() < MIN_TASKS:
        return f"needs at least {MIN_TASKS} observed tasks that are similar to another one; there are {has.sum()}"
    return ""


def _test(statistic: Any, labels: np.ndarray, draws: permutation.Draws, reason: str, has: np.ndarray | None = None) -> Tested | None:
    """The test, unless it lacks tasks, or no label differs."""
    tested = labels if has is None else labels[has]
    return None if reason or _constant(tested) else permutation.against_chance(statistic, labels, draws)


def _constant(labels: np.ndarray) -> bool:
    return len(labels) == 0 or float(np.ptp(labels)) < permutation.CLOSE


def _finding(
    relation: Tie, view: str, target: str, test: Tested | None, mantel: float, tasks: int, environments: int, reason: str, used: np.ndarray
) -> Finding:
    """A finding without its verdict's correction: that takes all tests together."""
    verdict: Verdict = "no evidence"
    if reason:
        verdict = "too few observations"
    elif test is None:
        verdict, reason = "nothing to explain", "no two of the tasks differ"
    elif test.detectable > SEEN:
        needed = math.ceil(tasks * (test.detectable / SEEN) ** 2)
        verdict, reason = "too few observations", f"needs about {needed:,} such tasks to see a correlation of {SEEN}; there are {tasks:,}"
    return Finding(
        relation=relation, view=view, target=target, test=test, mantel=mantel, tasks=tasks, environments=environments, verdict=verdict,
        reason=reason,
    )  # fmt: skip


def _rows(findings: list[Finding]) -> list[dict[str, Any]]:
    """The findings of one family, with Holm's correction over all of them that are tests."""
    tests = [finding.test for finding in findings if finding.test is not None]
    corrected = iter(permutation.holm(np.array([test.p for test in tests])).tolist())
    return [_row(finding, next(corrected) if finding.test is not None else math.nan) for finding in findings]


def _row(finding: Finding, p_holm: float) -> dict[str, Any]:
    test = finding.test
    helps = p_holm <= LEVEL
    return {
        "relation": finding.relation,
        "view": finding.view,
        "target": finding.target,
        "tasks": finding.tasks,
        "environments": finding.environments,
        "effect": math.nan if test is None else test.effect,
        "chance": math.nan if test is None else test.chance,
        "p": math.nan if test is None else test.p,
        "p_holm": p_holm,
        "detectable": math.nan if test is None else test.detectable,
        "mantel": finding.mantel,
        "verdict": "helps" if helps else finding.verdict,
        "reason": "" if helps else finding.reason,
    }


def _verdict(tie: Tie, rows: list[dict[str, Any]]) -> Verdict:
    """One a relation: it helps if it does for either target, and is noise only if both tests could have told."""
    found = {row["verdict"] for row in rows if row["relation"] == tie}
    order: tuple[Verdict, ...] = ("helps", "too few observations", "no evidence", "nothing to explain")
    return next(verdict for verdict in order if verdict in found)
