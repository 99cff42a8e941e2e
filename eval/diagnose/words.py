"""The result of a diagnosis for a terminal: tables, what to conclude, what to set.

Knows: columns, the settings that a verdict speaks of.
Does not know: how a figure was computed.
"""

from __future__ import annotations

from typing import Any

from envsched_gnn.eval.replay.words import number

HEAD = ("relation", "view", "target", "tasks", "R", "by chance", "p", "p, Holm", "would see", "Mantel r", "verdict")
METHOD = (
    "R: correlation of a task's mean with what its neighbours' mean has beyond all that could be neighbours; environment: correlation of "
    "two tasks of one environment. p: share of permutations that reach R, (1 + those) / (1 + all); Holm's correction over the relations, "
    "and apart from them over the views. Would see: an R that far beyond chance would have been found in 80 % of cases. Mantel r: "
    "correlation of similarity with minus the difference of two tasks' means, over all pairs; it is no test. "
    "A task with few groups has a noisy mean: that weakens a test and biases none."
)
BIASED = (
    "warning: the picks of policy {policy} followed predictions, so what was observed, and when, depends on similarity. "
    "These tests are exact for a uniform ledger: envsched run -c CONFIG.toml -s run.policy=uniform."
)
MOST = ": what a scheduler could spend better, at most"


def head(result: dict[str, Any]) -> list[str]:
    """What was tested, in sentences."""
    lines = [
        f"ledger {result['ledger']} ({result['kind']}), policy {result['policy']}",
        f"observed: {result['groups']:,} groups of {result['observed_tasks']:,} tasks in {result['environments']:,} environments, "
        f"median {number(result['groups_per_task'], 1)} groups a task",
        f"without variance: {result['wasted']:.0%} of the groups" + (MOST if result["uniform"] else ""),
    ]
    if result["tested_tasks"] < result["observed_tasks"]:
        lines.append(f"tested: {result['tested_tasks']:,} of these tasks, drawn by the seed")
    if all(row["verdict"] == "nothing to explain" for row in result["relations"]):
        lines.append("no two tasks differ: every group has the same variance. There is nothing that a relation could predict.")
    return lines


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One test."""
    figures = (number(row["effect"]), number(row["chance"]), number(row["p"]), number(row["p_holm"]), number(row["detectable"]))
    verdict = row["verdict"] + (f": {row['reason']}" if row["reason"] else "")
    return row["relation"], row["view"] or "-", row["target"], f"{row['tasks']:,}", *figures, number(row["mantel"]), verdict


def conclusions(result: dict[str, Any]) -> list[str]:
    """A sentence a relation, and what to set where one is noise."""
    return [_conclusion(relation, verdict) for relation, verdict in result["verdicts"].items()]


def _conclusion(relation: str, verdict: str) -> str:
    match relation, verdict:
        case "environment", "helps":
            return "environment: tasks of one environment are alike in this pool; knowing the environment helps."
        case "environment", "no evidence":
            return "environment: tasks of one environment are no more alike than others; knowing the environment does not help here."
        case _, "helps":
            return f"{relation}: similar tasks are alike in this pool; the relation helps."
        case _, "no evidence":
            return (
                f"{relation}: similar tasks are no more alike than others; it is noise here. run.policy = 'envsched' (preset default) "
                "weighs each relation by how well it predicted; run.policy = 'paper' always averages both: "
                f"graph.{relation}_neighbors = 0 takes this one out."
            )
        case _, "too few observations":
            return f"{relation}: too few observations to tell; see what is needed in the table, and let a uniform run go on."
        case _:
            return f"{relation}: nothing to explain, no two tasks differ."
