"""The report of a run: one self-contained HTML file.

Knows: what the figures of a run say in words, and the order of the page.
Does not know: how figures are drawn, how a run is made.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from envsched_gnn.eval import figures
from envsched_gnn.eval.figures import BLUE, GREEN, ORANGE, RED, VIOLET
from envsched_gnn.eval.learning import (
    change_of_evaluations,
    correlation_by_step,
    evaluated,
    learning_curve,
    model,
    seconds_by_stage,
    simulated,
    stages,
)
from envsched_gnn.eval.metrics import RunRecord, bins, first_and_last, mean_of, read_run, spearman
from envsched_gnn.eval.simulate import CAUTION
from envsched_gnn.eval.words import Section, number, trend
from envsched_gnn.files import without_nan, write_atomic
from envsched_gnn.history import ZERO_VARIANCE, informative

TEMPLATES = Path(__file__).parent / "templates"
POLICIES = {
    "envsched": "EnvSched, preset default,",
    "paper": "EnvSched, preset paper,",
    "uniform": "Uniform selection",
    "oracle": "The oracle",
}
"""Those without a name here are peers. They and uniform selection predict nothing of single groups, and have no quotas."""
MAX_TROUBLED = 25
"""Rows of the table of dead or failing tasks."""
DEAD_AFTER = 2
"""Groups without any variance, and without one that had some, after which a task is listed as dead."""
MAX_ROWS = 120
"""Environments that the heat map shows at most."""


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into a run folder, from its finished rounds, and return its path.

    Raises:
        HistoryError: no run folder, a damaged file, or no finished round.
    """
    run = read_run(folder)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    steps = np.array([r["step"] for r in run.rounds])
    html = environment.get_template("report.html").render(
        name=run.config["run"]["name"],
        lead=_lead(run),
        cards=_cards(run),
        figures=[
            *learning_curve(run),
            _variance(run, steps),
            _reward(run, steps),
            _reach(run, steps),
            seconds_by_stage(run, steps),
            _map(run, steps),
            *_predictions(run),
            *correlation_by_step(run, steps),
            *_relaxed(run, steps),
        ],
        troubled=_troubled(run),
        reproduce=_reproduce(run),
        version=run.versions["envsched_gnn"],
    )
    path = run.folder / "report.html"
    write_atomic(path, html.encode("utf-8", "replace"))
    return path


def summary(folder: str | Path) -> dict[str, Any]:
    """The figures of a run as plain values: means over the first and the last fifth of its rounds, and what it reached.

    Raises:
        HistoryError: no run folder, a damaged file, or no finished round.
    """
    run = read_run(folder)
    names = ("variance_mean", "variance_median", "reward_mean", "reward_median", "zero_variance_share", "environments", "tools")
    ends = {name: first_and_last(run.column(name)) for name in names}
    seconds = {stage: mean_of(run.column(f"seconds_{stage}")) for stage in stages(run)}
    ranges = {name: {"mean": mean_of(run.column(name)), "first": first, "last": last} for name, (first, last, _) in ends.items()}
    reached = {
        "name": run.config["run"]["name"],
        "policy": run.config["run"]["policy"],
        "pool": run.pool["source"],
        "rounds": len(run.rounds),
        "rollouts": int(np.nansum(run.column("rollouts"))),
        "environments_selected": len({env for _, env, _ in run.selected}),
        "tasks_selected": len({(env, task) for _, env, task in run.selected}),
        "rank_correlation": spearman(*_judged(run)),
        "relaxations": len(run.relaxed),
        "failed_rollouts": int(run.groups.failures.sum()),
        "figures": ranges,
        "seconds_a_round": seconds,
        "evaluations": evaluated(run),
    }
    return without_nan(reached)


def _lead(run: RunRecord) -> str:
    config, pool = run.config, run.pool
    planned = config["run"]["steps"]
    rounds = f"{len(run.rounds)} round{'s' * (planned > 1)}" if len(run.rounds) == planned else f"{len(run.rounds)} of {planned} rounds"
    return (
        f"{_who(config['run']['policy'])} chose {config['select']['batch_size']} tasks a round for {rounds}{model(run)} "
        f"from {pool['source']}: {pool['tasks']:,} tasks in {len(pool['environments']):,} environments, "
        f"{config['rollout']['num_rollouts']} rollouts a task, seed {config['run']['seed']}." + (f" {CAUTION}" if simulated(run) else "")
    )


def _cards(run: RunRecord) -> list[dict[str, str]]:
    zero, reward = (first_and_last(run.column(name)) for name in ("zero_variance_share", "reward_median"))
    seen = {(env, task) for _, env, task in run.selected}
    rho = spearman(*_judged(run))
    span = f"first {zero[2]} rounds → last {zero[2]}" if len(run.rounds) > 1 else "only round"
    return [
        {"value": _change(zero, run), "label": f"share of groups without variance, {span}"},
        {"value": _change(reward, run), "label": f"median reward, {span}"},
        {"value": f"{len({env for env, _ in seen}):,}", "label": f"of {len(run.selectable):,} environments selected"},
        {"value": f"{len(seen):,}", "label": f"of {sum(run.selectable.values()):,} tasks selected"},
        {"value": f"{int(np.nansum(run.column('rollouts'))):,}", "label": "rollouts"},
        {"value": number(rho), "label": "rank correlation, predicted and realised variance"},
        *change_of_evaluations(run),
    ]


def _change(ends: tuple[float, float, int], run: RunRecord) -> str:
    return f"{number(ends[0])} → {number(ends[1])}" if len(run.rounds) > 1 else number(ends[1])


def _variance(run: RunRecord, steps: np.ndarray) -> Section:
    mean, median = run.column("variance_mean"), run.column("variance_median")
    lines = (("mean", mean, BLUE), ("median", median, ORANGE))
    return Section(
        title="Realised variance of a group's rewards",
        caption=trend(mean, "The mean variance", 3) + " Higher is more to learn from; 0.25 is the most there can be.",
        svgs=(figures.by_step("variance", steps, lines, label="realised variance"),),
    )


def _reward(run: RunRecord, steps: np.ndarray) -> Section:
    zero, reward = run.column("zero_variance_share"), run.column("reward_median")
    lines = (("share of groups without variance", zero, RED), ("median reward", reward, GREEN))
    caption = trend(zero, "The share of groups that taught nothing") + " " + trend(reward, "Median reward")
    return Section(
        title="Wasted groups and reward",
        caption=caption,
        svgs=(figures.by_step("reward", steps, lines, label="share, reward", share=True),),
    )


def _reach(run: RunRecord, steps: np.ndarray) -> Section:
    environments, tools = run.column("environments"), run.column("tools")
    lines = (("environments", environments, BLUE), ("tools they offer", tools, VIOLET))
    svgs = tuple(figures.by_step(f"reach-{n}", steps, (line,), label=f"{line[0]} in the batch") for n, line in enumerate(lines))
    held, offered = (number(mean_of(column), 1) for column in (environments, tools))
    caption = f"A batch held {held} of {len(run.selectable):,} environments on average, offering {offered} tools."
    return Section(title="Environments and tools in a batch", caption=caption, svgs=svgs, wide=True)


def _map(run: RunRecord, steps: np.ndarray) -> Section:
    names = list(run.selectable)
    picks = Counter((env, step) for step, env, _ in run.selected)
    total: Counter[str] = Counter(env for _, env, _ in run.selected)
    shown = names
    note = "Every environment that is trained on has a row, in pool order."
    if len(names) > MAX_ROWS:
        shown = sorted(names, key=lambda name: -total[name])[:MAX_ROWS]
        note = f"Only the {MAX_ROWS} most selected of {len(names):,} environments are shown, most selected first."
    counts = np.array([[picks[name, step] for step in steps.tolist()] for name in shown])
    never = sum(1 for name in names if not total[name])
    top, most = max(((total[name], name) for name in names), default=(0, ""))
    share = 100 * top / max(sum(total.values()), 1)
    caption = f"{note} {never:,} were never selected; the most selected, {most}, got {share:.1f} % of the picks."
    return Section(title="Where the rollouts went", caption=caption, svgs=(figures.heat_map("map", counts, shown, steps),), wide=True)


def _judged(run: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    """Predicted and realised variance of the groups predicted from evidence: not the cold batch, none of uniform selection or a peer."""
    warm = _warm(run)
    return run.groups.predicted_variance[warm], run.groups.variance[warm]


def _who(policy: str) -> str:
    return POLICIES.get(policy, f"The peer {policy}")


def _warm(run: RunRecord) -> np.ndarray:
    return ~np.isin(run.groups.phase, ("cold", "uniform")) & _is_envsched(run)


def _is_envsched(run: RunRecord) -> bool:
    return run.config["run"]["policy"] in ("envsched", "paper", "oracle")


def _predictions(run: RunRecord) -> list[Section]:
    predicted, realised = _judged(run)
    both = np.isfinite(predicted) & np.isfinite(realised)
    if not both.any():
        who = _who(run.config["run"]["policy"])
        why = "the first batch is drawn without evidence" if _is_envsched(run) else f"{who[0].lower()}{who[1:]} predicts nothing"
        return [Section(title="Predicted against realised variance", caption=f"No group was predicted: {why}.", svgs=(), wide=True)]
    rho = spearman(predicted, realised)
    judged = f"Spearman rank correlation {number(rho)} over {int(both.sum()):,} groups" + (
        " (constant: none is defined)." if math.isnan(rho) else "."
    )
    p, was_informative = run.groups.p_informative[_warm(run)], _was_informative(run, realised)
    usable = np.isfinite(p) & np.isfinite(was_informative)
    brier = float(np.mean((p[usable] - was_informative[usable]) ** 2)) if usable.any() else math.nan
    caption = (
        f"Left: variance. {judged} Right: the probability that a group has any variance, against how often it had; "
        f"on the dashed line it is calibrated. Mean squared error {number(brier, 3)}; always saying the average would give "
        f"{number(float(np.var(was_informative[usable])) if usable.any() else math.nan, 3)}. Only selected tasks are judged."
    )
    svgs = (
        figures.predicted_against_realised("predicted", predicted, realised, bins(predicted, realised)),
        figures.reliability("calibration", bins(p, was_informative)),
    )
    return [Section(title="Predicted against realised variance", caption=caption, svgs=svgs, wide=True)]


def _was_informative(run: RunRecord, realised: np.ndarray) -> np.ndarray:
    """1 where a group's variance exceeds the run's v_floor, 0 where not, NaN where there is none."""
    z = informative(torch.from_numpy(realised), run.config["predict"]["v_floor"]).numpy()
    return np.where(np.isfinite(realised), z, np.nan)


def _relaxed(run: RunRecord, steps: np.ndarray) -> list[Section]:
    title = "Quota relaxations"
    if not run.relaxed:
        why = "every pick was within its quotas." if _is_envsched(run) else "this policy has no quotas."
        return [Section(title=title, caption=f"None: {why}", svgs=(), wide=True)]
    counts = Counter((quota, step) for step, quota in run.relaxed)
    colours = (("consecutive", BLUE), ("rolling", ORANGE), ("per_round", RED))
    parts = [(quota, np.array([counts[quota, step] for step in steps.tolist()], dtype=float), colour) for quota, colour in colours]
    caption = f"{len(run.relaxed):,} times a pick broke a quota because no eligible task was left within it: " + ", ".join(
        f"{quota} {int(values.sum()):,}" for quota, values, _ in parts if values.any()
    )
    return [
        Section(
            title=title, caption=f"{caption}.", svgs=(figures.stacked("relaxed", steps, parts, label="relaxations", width=9.6),), wide=True
        )
    ]


def _troubled(run: RunRecord) -> dict[str, Any]:
    groups: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(run.groups.keys):
        groups[key].append(index)
    rows = [row for key, at in groups.items() if (row := _trouble(run, key, np.array(at)))]
    rows.sort(key=lambda row: (-row["failures"], -row["groups"], row["key"]))
    caption = (
        f"{sum(1 for row in rows if row['failures']):,} tasks had rollouts that ended without a score; "
        f"{sum(1 for row in rows if row['dead']):,} gave the same reward every time in {DEAD_AFTER} groups or more."
    )
    if quarantined := run.rounds[-1].get("envsched/quarantined"):
        caption += f" At the end {quarantined:.0f} were quarantined for failing."
    if len(rows) > MAX_TROUBLED:
        caption += f" The first {MAX_TROUBLED} of {len(rows):,} are listed; the ledger holds all."
    return {"caption": caption, "rows": rows[:MAX_TROUBLED]}


def _trouble(run: RunRecord, key: str, at: np.ndarray) -> dict[str, Any] | None:
    """A row of the table for the task whose groups stand at `at`, or None if there is nothing to tell."""
    variance, mean, failures = run.groups.variance[at], run.groups.mean[at], int(run.groups.failures[at].sum())
    known = np.isfinite(variance)
    dead = int(known.sum()) >= DEAD_AFTER and float(np.ptp(mean[known])) <= ZERO_VARIANCE and bool((variance[known] <= ZERO_VARIANCE).all())
    if not dead and not failures:
        return None
    what = ["reward always " + number(float(mean[known][0])) if dead else "", "failing" if failures else ""]
    return {
        "key": key,
        "what": ", ".join(filter(None, what)),
        "dead": dead,
        "groups": len(at),
        "failures": failures,
        "detail": run.failure_details.get(key, "")[:300],
    }


def _reproduce(run: RunRecord) -> dict[str, str]:
    commit = run.versions.get("commit") or ""
    verb = "simulate" if simulated(run) else "run" if run.evaluations is None else "train"
    lines = [f"git checkout {commit.removesuffix('+changes')}"] if commit else []
    config = Path(run.config["run"]["folder"]) / run.folder.name / "resolved.toml"
    lines += [f"envsched {verb} -c {shlex.quote(str(config))} -s run.name={shlex.quote(run.config['run']['name'] + '-again')}"]
    return {
        "text": "Start where this run was started. The same settings, seed and versions give the same picks and rewards.",
        "commands": "\n".join(lines),
        "config": (run.folder / "resolved.toml").read_text(encoding="utf-8"),
        "versions": json.dumps(run.versions, indent=2),
    }
