"""Figures, paired statistics and result file of the headline experiment, on run folders whose numbers were worked out by hand."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsched_gnn.errors import HistoryError
from envsched_gnn.eval.headline.figures_of_run import (
    Figures,
    area,
    curve,
    figures_of,
    first_crossed,
    first_reached,
    isotonic,
    time_to_best,
)
from envsched_gnn.eval.headline.plot import LINES, write_plot
from envsched_gnn.eval.headline.results import ARMS, figures_by_pool, main, write_results
from envsched_gnn.eval.headline.run_files import collect, read_finished
from envsched_gnn.eval.headline.statistics import (
    bootstrap,
    correlation_within_seeds,
    median,
    median_over_seeds,
    null_band,
    paired_difference,
    quantile,
    share_of_way,
    shares_by_seed,
)
from envsched_gnn.eval.headline.table import markdown, rich_tables

BETWEEN = 2
"""Steps between evaluations in these runs."""


def finished(
    root: Path,
    name: str,
    curve: Sequence[float],
    *,
    wasted: Sequence[float | None] = (0.8,),
    rollouts: Sequence[int] = (512,),
    tokens: Sequence[int] = (5120,),
    spearman: Sequence[float | None] = (None,),
    environments: Sequence[int] = (36,),
    final: tuple[float, float] = (0.5, 0.3),
) -> Path:
    """A finished run at ROOT/POOL/ARM/SEED, evaluated every BETWEEN steps; a figure of one value is the same at every step.

    At each evaluation both sets have 250 tasks, with .1 above and below the curve; the last has 600 tasks at final[0] and 400 at final[1].
    """
    folder = root / name
    folder.mkdir(parents=True)
    count = BETWEEN * (len(curve) - 1)

    def at(values: Sequence[Any], step: int) -> Any:
        return values[step] if len(values) > 1 else values[0]

    steps = [
        {
            "step": step, "zero_variance_share": at(wasted, step), "variance_mean": 0.05, "reward_mean": 0.4, "tools": 90,
            "environments": at(environments, step), "spearman": at(spearman, step), "groups": 64, "rollouts": at(rollouts, step),
            "tokens": at(tokens, step), "seconds_rollout": 1.0,
            "informative": [step % 2, 7],
        }
        for step in range(count)
    ]  # fmt: skip
    lines = [evaluation(BETWEEN * n, name, mean) for n, mean in enumerate(curve) for name, mean in both(mean)]
    lines += [evaluation(count, "tasks", final[0], 600, True), evaluation(count, "environments", final[1], 400, True)]
    write_lines(folder / "steps.jsonl", steps)
    write_lines(folder / "evaluations.jsonl", lines)
    (folder / "done.json").write_text('{"seconds": 1.0}')
    return folder


def both(mean: float) -> tuple[tuple[str, float], ...]:
    return ("tasks", mean + 0.1), ("environments", mean - 0.1)


def evaluation(step: int, name: str, mean: float, count: int = 250, final: bool = False) -> dict[str, Any]:
    return {"step": step, "set": name, "mean": mean, "count": count, "samples": 2, "final": final}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_figures_of_a_run_by_hand(tmp_path: Path) -> None:
    uniform = read_finished(finished(tmp_path, "main/uniform/3", [0.2, 0.3, 0.3, 0.4], tokens=[100]))
    folder = finished(
        tmp_path, "main/default/3", [0.2, 0.3, 0.5, 0.4], wasted=[0.7, 0.5, None, 0.3, 0.3, 0.2], spearman=[None, 0.1, 0.2, 0.3, 0.4, 0.5],
        environments=[30, 32, 34, 36, 38, 40], tokens=[150, 150, 100, 100, 100, 100],
    )  # fmt: skip
    found = figures_of(read_finished(folder), uniform)
    assert (found.arm, found.seed) == ("default", 3)
    assert found.clock.tolist() == [0, 2, 4, 6]
    assert found.curve == pytest.approx([0.2, 0.3, 0.5, 0.4])
    assert found.auc == pytest.approx((0.25 + 0.4 + 0.45) / 3)  # three trapezoids of equal width
    assert found.auc_by_step == found.auc
    assert found.auc_by_rollout == pytest.approx(found.auc)
    # 0, 300, 500 tokens before the first three evaluations, 600 of uniform; at 600 the line from (500, .5) to (700, .4) is at .45
    assert found.auc_by_token == pytest.approx((300 * 0.25 + 200 * 0.4 + 100 * 0.475) / 600)
    assert found.final == pytest.approx(0.6 * 0.5 + 0.4 * 0.3)
    assert (found.final_tasks, found.final_environments) == (0.5, 0.3)
    assert found.zero_variance_share == pytest.approx(2.0 / 5)
    assert found.environments_per_batch == 35
    assert found.tools_per_batch == 90
    assert found.spearman == pytest.approx(0.3)
    assert found.variance == pytest.approx(0.05)
    assert found.informative_tasks == pytest.approx(math.exp(0.5 * math.log(2) + 2 * 0.25 * math.log(4)))  # task 7 half of the groups
    # the fit of default is .2, .3, .45, .45; the best of uniform's is .4: two thirds of the way from step 2 to step 4
    assert found.time_to_uniform_best == 4
    assert found.time_interpolated == pytest.approx(2 + 2 * 2 / 3)


def test_dapo_is_charged_every_rollout(tmp_path: Path) -> None:
    """Each of its steps costs three of uniform's, so its six steps last for eighteen and only the first two are within the budget."""
    uniform = read_finished(finished(tmp_path, "main/uniform/0", [0.2, 0.2, 0.2, 0.3]))
    dapo = read_finished(finished(tmp_path, "main/dapo/0", [0.2, 0.4, 0.6, 0.6], rollouts=[1024, 2048, 1536, 1536, 1536, 1536]))
    found = figures_of(dapo, uniform)
    assert found.clock.tolist() == [0, 6, 12, 18]
    assert found.auc == pytest.approx(0.3)
    assert found.auc_by_rollout == pytest.approx(0.3)
    assert found.auc_by_step == pytest.approx((0.3 + 0.5 + 0.6) / 3)
    assert found.time_to_uniform_best == 6
    assert found.time_interpolated == pytest.approx(3)
    slow = read_finished(finished(tmp_path, "main/dapo/1", [0.2, 0.25, 0.6, 0.6], rollouts=[1536]))
    assert figures_of(slow, uniform).time_to_uniform_best == math.inf


def test_dapo_may_end_before_and_counts_its_groups(tmp_path: Path) -> None:
    """Two steps spend the whole budget; a step with more groups counts for more of the wasted share."""
    uniform = read_finished(finished(tmp_path, "main/uniform/0", [0.2, 0.2, 0.2, 0.3]))
    dapo = read_finished(finished(tmp_path, "main/dapo/0", [0.2, 0.4], rollouts=[1024, 2048], wasted=[0.5, 0.8]))
    found = figures_of(dapo, uniform)
    assert found.clock.tolist() == [0, 6]
    assert found.auc == pytest.approx(0.3)
    assert found.zero_variance_share == pytest.approx(0.7)


def test_the_final_evaluation_stands_in_where_its_step_has_no_other(tmp_path: Path) -> None:
    folder = finished(tmp_path, "main/uniform/0", [0.2, 0.3])
    lines = [line for line in lines_of(folder / "evaluations.jsonl") if line["step"] == 0 or line["final"]]
    write_lines(folder / "evaluations.jsonl", lines)
    steps, values = curve(read_finished(folder))
    assert steps.tolist() == [0, 2]
    assert values == pytest.approx([0.2, 0.42])


def test_a_running_total_is_not_taken_for_the_rollouts_of_a_step(tmp_path: Path) -> None:
    folder = finished(tmp_path, "main/dapo/0", [0.2] * 5, rollouts=range(512, 4608, 512))
    with pytest.raises(HistoryError, match=r"steps.jsonl: rollouts rise at every step, from 512 to 4096; expected the rollouts of each"):
        read_finished(folder)
    folder = finished(tmp_path, "main/dapo/1", [0.2] * 5, rollouts=[512, 1024, 1536, 2048, 2560, 3072, 3584, 3584])
    assert read_finished(folder).column("rollouts").sum() == 17920


def test_area_holds_the_last_value() -> None:
    assert area(np.array([0.0, 2.0]), np.array([0.0, 1.0]), 4) == 0.75
    assert area(np.array([0.0, 2.0]), np.array([0.0, 1.0]), 1) == 0.25
    assert math.isnan(area(np.array([0.0]), np.array([1.0]), 0))


def test_isotonic_fit_and_crossing_by_hand() -> None:
    fit = isotonic(np.array([0.1, 0.5, 0.3, 0.2, 0.6]))
    assert fit == pytest.approx([0.1, 1 / 3, 1 / 3, 1 / 3, 0.6])
    x = np.array([0.0, 10, 20, 30, 40])
    assert first_reached(x, fit, 1 / 3) == 10
    assert first_reached(x, fit, 0.34) == 40
    assert first_crossed(x, fit, 0.5) == pytest.approx(30 + 10 * (0.5 - 1 / 3) / (0.6 - 1 / 3))
    assert first_crossed(x, fit, 0.05) == 0
    assert first_reached(x, fit, 0.7) == first_crossed(x, fit, 0.7) == math.inf


CURVES = st.lists(st.integers(0, 64).map(lambda n: n / 64), min_size=1, max_size=13)
PAIRS = CURVES.flatmap(lambda a: st.lists(st.integers(0, 64).map(lambda n: n / 64), min_size=len(a), max_size=len(a)).map(lambda b: (a, b)))


def slow_isotonic(values: list[float]) -> list[float]:
    """max over starts of min over ends of the means: the textbook form of the same fit."""
    n = len(values)
    return [max(min(sum(values[a : b + 1]) / (b + 1 - a) for b in range(i, n)) for a in range(i + 1)) for i in range(n)]


@given(CURVES)
def test_isotonic_is_the_textbook_fit(values: list[float]) -> None:
    assert isotonic(np.array(values)) == pytest.approx(slow_isotonic(values), abs=1e-12)


@given(PAIRS)
def test_time_to_best_is_the_first_evaluation_of_the_textbook_fit(pair: tuple[list[float], list[float]]) -> None:
    arm, uniform = pair
    x = 10.0 * np.arange(len(arm))
    target, fit = max(slow_isotonic(uniform)), slow_isotonic(arm)
    expected = next((10.0 * n for n, value in enumerate(fit) if value >= target - 1e-9), math.inf)
    first, crossed = time_to_best(x, np.array(arm), np.array(uniform))
    assert first == expected
    if math.isinf(first):
        assert math.isinf(crossed)
    else:
        assert first - 10 < crossed <= first
        assert np.interp(crossed, x, isotonic(np.array(arm))) == pytest.approx(target, abs=1e-8) or crossed == 0


@given(PAIRS, st.integers(0, 12))
def test_a_better_curve_is_never_later(pair: tuple[list[float], list[float]], at: int) -> None:
    arm, uniform = (np.array(values) for values in pair)
    better = arm.copy()
    better[at % len(arm)] += 0.25
    x = np.arange(len(arm), dtype=float)
    assert time_to_best(x, better, uniform)[0] <= time_to_best(x, arm, uniform)[0]
    assert math.isfinite(time_to_best(x, uniform, uniform)[0])


def test_paired_difference_by_hand() -> None:
    found = paired_difference(np.array([0.3, 0.5, math.nan]), np.array([0.2, 0.2, 0.1]))
    assert found.value == pytest.approx(0.2)
    # two seeds: each mean of a resample is .1, .2 or .3, with chances 1/4, 1/2, 1/4
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.3))
    assert found.seeds == 2
    assert found == paired_difference(np.array([0.3, 0.5]), np.array([0.2, 0.2]))
    one = paired_difference(np.array([0.3]), np.array([0.2]))
    assert one.value == pytest.approx(0.1)
    assert math.isnan(one.low)
    assert math.isnan(paired_difference(np.array([]), np.array([])).value)


def test_bootstrap_interval_is_the_exact_one() -> None:
    """Three seeds have 27 equally likely resamples: means 0 (1/27), 1/3 (3/27), ... 1 (1/27) of values 0, 0, 1 are binomial."""
    found = bootstrap(np.array([[0.0], [0.0], [1.0]]), lambda drawn: drawn[:, :, 0].mean(1))
    assert found.value == pytest.approx(1 / 3)
    assert (found.low, found.high) == (0, 1)  # chances 8/27 and 1/27 = 3.7 %, more than 2.5 % and less than 5 %
    mirrored = bootstrap(np.array([[0.0], [0.0], [-1.0]]), lambda drawn: drawn[:, :, 0].mean(1))
    assert (mirrored.low, mirrored.high) == (-1, 0)


def test_quantile_and_median_of_times_that_are_never_reached() -> None:
    times = np.array([40.0, math.inf, 20.0, math.inf])
    assert quantile(times, 0.5) == 40
    assert quantile(times, 0.025) == 20
    assert quantile(times, 0.975) == math.inf
    assert median(times) == math.inf
    assert median(times[:3]) == 40
    assert median(np.array([math.nan, 3.0, 1.0])) == 2
    assert math.isnan(median(np.array([math.nan])))
    found = median_over_seeds(times[[0, 2, 1]])
    assert (found.value, found.low, found.high, found.seeds) == (40, 20, math.inf, 3)


def test_share_of_the_way_by_hand() -> None:
    uniform, arm, oracle = np.array([0.8, 0.7]), np.array([0.5, 0.4]), np.array([0.2, 0.3])
    found = share_of_way(uniform, arm, oracle)
    assert found.value == pytest.approx(0.6)  # (.75 - .45) / (.75 - .25)
    assert shares_by_seed(uniform, arm, oracle) == pytest.approx([0.5, 0.75])
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.75))
    assert share_of_way(uniform, oracle, oracle).value == 1
    assert math.isnan(share_of_way(uniform, arm, uniform).value)
    lacking = share_of_way(uniform, arm, np.array([0.2, math.nan]))
    assert (lacking.value, lacking.seeds) == (pytest.approx(0.5), 1)


def uniform_figures(root: Path, curves: list[list[float]]) -> list[Figures]:
    runs = [read_finished(finished(root, f"main/uniform/{seed}", values)) for seed, values in enumerate(curves)]
    return [figures_of(run, run) for run in runs]


def test_correlation_within_seeds_by_hand() -> None:
    """Within either seed y falls with x, though the seed of larger x has larger y; an unknown figure leaves its run out."""
    x, y = np.array([0.0, 1.0, 10.0, 12.0, 5.0]), np.array([1.0, 0.0, 9.0, 8.0, np.nan])
    found = correlation_within_seeds(x, y, np.array([0, 0, 1, 1, 1]))
    # sums of products -.5 and -1, of squares .5 and 2, .5 and .5
    assert found.value == pytest.approx(-1.5 / math.sqrt(2.5))
    assert found.seeds == 2
    assert (found.low, found.high) == pytest.approx((-1, found.value))
    assert math.isnan(correlation_within_seeds(np.ones(4), np.arange(4.0), np.array([0, 0, 1, 1])).value)
    assert math.isnan(correlation_within_seeds(np.zeros(0), np.zeros(0), np.zeros(0)).value)


def test_null_band_by_hand(tmp_path: Path) -> None:
    """Areas .3, .2 and .25: the six ordered differences are -.1, -.05 twice, .05 twice and .1."""
    band = null_band(uniform_figures(tmp_path, [[0.2, 0.4], [0.1, 0.3], [0.2, 0.3]]))
    assert band is not None
    assert band.pairs == 6
    assert band.auc == (pytest.approx(-0.1), pytest.approx(-0.05), pytest.approx(0.1))
    assert band.reached == 4  # nobody reaches .4 but seed 0 itself
    assert band.time == (2, 2, math.inf)
    assert null_band(uniform_figures(tmp_path / "one", [[0.2, 0.4]])) is None


def experiment(root: Path) -> Path:
    """Two seeds of uniform, default and oracle, one of dapo and of an ablation, on the main pool."""
    for seed in (0, 1):
        lift = 0.1 * seed
        finished(root, f"main/uniform/{seed}", [0.2 + lift, 0.3 + lift, 0.4 + lift], wasted=[0.8])
        finished(root, f"main/default/{seed}", [0.2 + lift, 0.5 + lift, 0.6 + lift], wasted=[0.4], spearman=[0.5], environments=[40])
        finished(root, f"main/oracle/{seed}", [0.2 + lift, 0.6 + lift, 0.7 + lift], wasted=[0.2], final=(0.7, 0.7))
    finished(root, "main/dapo/1", [0.3, 0.35, 0.4], rollouts=[1024])
    finished(root, "main/default_rho0/0", [0.2, 0.2, 0.3], wasted=[0.3])
    return root


def test_result_file_is_as_the_issue_says(tmp_path: Path) -> None:
    out = tmp_path / "results" / "headline.json"
    found = write_results(experiment(tmp_path / "runs"), out, "make headline")
    result = json.loads(out.read_text())
    assert (found.waiting, found.damaged) == ((), ())
    assert result["command"] == "make headline"
    assert {"pools", "commit", "date", "command"} <= set(result)
    assert list(result["pools"]) == ["main"]
    assert set(result["pools"]["main"]) == {"role", "arms"}
    assert result["pools"]["main"]["role"] == "main"
    arms = result["pools"]["main"]["arms"]
    assert list(arms) == ["uniform", "default", "oracle", "dapo"]
    assert arms["default"] == {
        "seeds": [0, 1],
        "auc": [0.45, 0.55],
        "final": [0.42, 0.42],
        "zero_variance_share": [0.4, 0.4],
        "time_to_uniform_best": [2, 2],
        "environments_per_batch": [40.0, 40.0],
        "spearman": [0.5, 0.5],
    }
    assert arms["uniform"]["time_to_uniform_best"] == [4, 4]
    assert arms["uniform"]["spearman"] == [None, None]
    assert arms["dapo"]["seeds"] == [1]
    assert arms["dapo"]["auc"] == [0.325]  # .3 to .35 is what the budget buys
    assert arms["dapo"]["time_to_uniform_best"] == [None]
    assert result["ablations"]["main"]["default_rho0"]["zero_variance_share"] == [0.3]
    default = result["summary"]["main"]["arms"]["default"]
    assert default["minus_uniform"]["auc"] == {"value": 0.15, "low": 0.15, "high": 0.15, "seeds": 2, "better": 2}
    assert default["minus_uniform"]["zero_variance_share"]["better"] == 2
    assert default["share_of_way"]["value"] == pytest.approx(2 / 3, abs=1e-6)
    assert default["time_to_uniform_best"] == {"value": 2, "low": 2, "high": 2, "seeds": 2, "reached": 2}
    assert result["summary"]["main"]["null_band"] == {
        "pairs": 2, "reached": 1, "auc": [-0.1, -0.1, 0.1], "time_to_uniform_best": [2, 2, None],
    }  # fmt: skip


def test_tables_show_every_arm(tmp_path: Path) -> None:
    out = tmp_path / "headline.json"
    write_results(experiment(tmp_path / "runs"), out, "make headline")
    lines = markdown(json.loads(out.read_text())).splitlines()
    assert (
        lines[0]
        == "**pool main; uniform against uniform: area -0.100 to +0.100, uniform's best after 2 steps [2, never], 1/2 pairs reach it**"
    )
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    assert {len(row) for row in cells} == {15}
    assert [row[0] for row in cells[2:]] == ["uniform", "default", "oracle", "dapo", "default_rho0"]
    assert cells[3] == [
        "default", "2", "0.500", "+0.150 [+0.150, +0.150], 2/2", "+0.150 [+0.150, +0.150], 2/2", "0.420", "+0.000 [+0.000, +0.000], 0/2",
        "0.400", "0.67 [0.67, 0.67]", "0.0500", "3", "40.0", "90.0", "0.50", "2 [2, 2], 2/2",
    ]  # fmt: skip
    assert cells[5][-1] == "never, 0/1"
    assert rich_tables(json.loads(out.read_text()))[0].row_count == 5


def test_what_is_not_finished_is_named_and_left_out(tmp_path: Path) -> None:
    runs = experiment(tmp_path / "runs")
    (runs / "main/default/1/done.json").unlink()
    finished(runs, "main/paper/7", [0.2, 0.3, 0.4])
    out = tmp_path / "headline.json"
    found = write_results(runs, out, "make headline")
    assert len(found.waiting) == 2
    assert str(runs / "main/default/1") in found.waiting[0]
    assert "waits for uniform of seed 7" in found.waiting[1]
    assert not found.damaged
    arms = json.loads(out.read_text())["pools"]["main"]["arms"]
    assert arms["default"]["seeds"] == [0]
    assert "paper" not in arms


def cut_last_line(folder: Path) -> None:
    path = folder / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-40])


def drop_step(folder: Path) -> None:
    write_lines(folder / "steps.jsonl", lines_of(folder / "steps.jsonl")[1:])


def change(name: str, line: int, **values: Any) -> Any:
    def apply(folder: Path) -> None:
        lines = lines_of(folder / name)
        lines[line] |= values
        write_lines(folder / name, lines)

    return apply


def repeat_evaluation(folder: Path) -> None:
    lines = lines_of(folder / "evaluations.jsonl")
    write_lines(folder / "evaluations.jsonl", [lines[0], *lines])


def drop_final(folder: Path) -> None:
    write_lines(folder / "evaluations.jsonl", lines_of(folder / "evaluations.jsonl")[:-2])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_last_line, "steps.jsonl, line 4: not JSON"),
        (drop_step, "steps.jsonl, line 1: step 1; expected step 0"),
        (lambda folder: (folder / "steps.jsonl").unlink(), "steps.jsonl: cannot be read"),
        (lambda folder: (folder / "evaluations.jsonl").write_text(""), "evaluations.jsonl: empty"),
        (lambda folder: (folder / "done.json").write_text("{"), "done.json: not JSON"),
        (lambda folder: (folder / "done.json").write_text("[]"), "done.json: '[]'; expected an object"),
        (change("steps.jsonl", 1, tokens="many"), "steps.jsonl, line 2: tokens = 'many'"),
        (change("steps.jsonl", 1, zero_variance_share=math.nan), "line 2: zero_variance_share = nan"),
        (change("steps.jsonl", 1, environments=None), "line 2: environments = None"),
        (change("steps.jsonl", 1, rollouts=0), "line 2: rollouts = 0"),
        (change("evaluations.jsonl", 0, set="test"), "evaluations.jsonl, line 1: set = 'test'"),
        (change("evaluations.jsonl", 0, count=0), "line 1: count = 0"),
        (change("evaluations.jsonl", 0, mean=None), "line 1: mean = None"),
        (change("evaluations.jsonl", 0, step=1), "set tasks of step 0 is there 0 times"),
        (repeat_evaluation, "set tasks of step 0 is there 2 times"),
        (drop_final, "final after []"),
    ],
)
def test_a_damaged_run_is_named_and_does_not_stop_the_others(tmp_path: Path, damage: Any, said: str) -> None:
    runs = experiment(tmp_path / "runs")
    damage(runs / "main/default/1")
    out = tmp_path / "headline.json"
    found = write_results(runs, out, "make headline")
    assert len(found.damaged) == 1
    assert said in found.damaged[0]
    assert str(runs / "main/default/1") in found.damaged[0]
    assert json.loads(out.read_text())["pools"]["main"]["arms"]["default"]["seeds"] == [0]


def test_other_plans_names_and_roles_are_named(tmp_path: Path) -> None:
    runs = experiment(tmp_path / "runs")
    finished(runs, "main/uniform/2", [0.2, 0.3])
    finished(runs, "main/paper/0", [0.2, 0.3])
    finished(runs, "main/paper/first", [0.2, 0.3, 0.4])
    finished(runs, "pilot/uniform/0", [0.2, 0.3, 0.4])
    finished(runs, "hard/uniform/0", [0.2, 0.3, 0.4])
    (runs / "hard/pool.json").write_text('{"role": "control"}')
    finished(runs, ".cache/uniform/0", [0.2, 0.3, 0.4])
    pools, found = figures_by_pool(runs)
    assert list(pools) == ["main", "hard"]
    assert found.roles == {"main": "main", "hard": "control"}
    assert len(found.damaged) == 4
    text = "\n".join(found.damaged)
    assert f"{runs}/main/uniform/2: evaluated after [0, 2] steps; expected the steps of {runs}/main/uniform/0: [0, 2, 4]." in text
    assert f"{runs}/main/paper/0: evaluated after [0, 2] steps" in text
    assert "folder 'first'; expected a seed as its name" in text
    assert "role 'pilot'; expected one of main, control, unclustered" in text


def test_without_runs_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "headline.json"
    out.write_text("old")
    with pytest.raises(HistoryError, match=r"nowhere: no such folder; expected the runs"):
        write_results(tmp_path / "nowhere", out, "x")
    finished(tmp_path / "runs", "main/paper/0", [0.2, 0.3])
    with pytest.raises(HistoryError, match=r"no finished run with the uniform run of its seed.*waits for uniform of seed 0"):
        write_results(tmp_path / "runs", out, "x")
    assert out.read_text() == "old"
    assert not collect(tmp_path / "runs").waiting


def test_plot_has_a_line_for_every_arm(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for arm in ARMS:
        for seed in (0, 1):
            finished(runs, f"main/{arm}/{seed}", [0.2, 0.3, 0.4], rollouts=[1536] if arm == "dapo" else [512])
    finished(runs, "control/uniform/0", [0.2, 0.3, 0.4])
    text = write_plot(runs, tmp_path / "headline.svg").read_text()
    assert set(LINES) == set(ARMS)
    for word in (
        *ARMS,
        "main",
        "control",
        "reward on held-out tasks",
        "groups without variance",
        "realised variance",
        "environments a batch",
    ):
        assert f">{word}</text>" in text
    assert write_plot(runs, tmp_path / "headline.svg").read_text() == text
    assert write_plot(runs, tmp_path / "headline.png").read_bytes().startswith(b"\x89PNG")


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs, out = experiment(tmp_path / "runs"), tmp_path / "headline.json"
    monkeypatch.setattr(sys, "argv", ["results", str(runs), "--out", str(out), "--markdown"])
    assert main() == 0
    assert "| default | 2 | 0.500 |" in capsys.readouterr().out
    assert json.loads(out.read_text())["command"] == f"python -m envsched_gnn.eval.headline.results {runs} --out {out} --markdown"
    cut_last_line(runs / "main/oracle/0")
    monkeypatch.setattr(sys, "argv", ["results", str(runs), "--out", str(out), "--command", "make headline"])
    assert main() == 1
    said = capsys.readouterr()
    assert "main/oracle/0/steps.jsonl, line 4: not JSON" in said.err
    assert "never, 0/1" in " ".join(said.out.split())
    assert json.loads(out.read_text())["command"] == "make headline"
