"""ToolWorld: impossible and trivial tasks are what they are, as many and as clustered as asked for, and nothing shows them."""

import json
import random
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score

from envsched_gnn.config import ToolWorldConfig
from envsched_gnn.pool.episode import Episode
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.toolworld import generate, labels
from envsched_gnn.pool.toolworld.cast import cast, needs_staff
from envsched_gnn.pool.toolworld.outline import Outline, outlines, worlds
from envsched_gnn.pool.toolworld.task import task_stream
from tests.pool.toolworld_solver import candidates, reference, solve

IMPOSSIBLE = ToolWorldConfig(environments=32, tasks=12, impossible=1.0, trivial=0.0)
TRIVIAL = ToolWorldConfig(environments=16, tasks=10, impossible=0.0, trivial=1.0)
UNCLUSTERED = ToolWorldConfig(environments=24, cluster_environment=0.0, cluster_pattern=0.0)


def spread_over(plans: list[Outline], group: Callable[[Outline], str]) -> float:
    """Variance of the impossible share between groups over what independent draws would give: about 1 without clustering."""
    groups = defaultdict(list)
    for plan in plans:
        groups[group(plan)].append(plan.label == "impossible")
    p = statistics.mean(plan.label == "impossible" for plan in plans)
    return sum(len(found) * (statistics.mean(found) - p) ** 2 for found in groups.values()) / ((len(groups) - 1) * p * (1 - p))


def environment(plan: Outline) -> str:
    return plan.env_id


def pattern(plan: Outline) -> str:
    return plan.units[0].pattern.name


@pytest.mark.parametrize("cluster", [(0.0, 0.0), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize(("impossible", "trivial"), [(0.2, 0.1), (0.5, 0.2), (0.0, 0.0)])
def test_shares_are_as_configured(cluster: tuple[float, float], impossible: float, trivial: float) -> None:
    config = ToolWorldConfig(cluster_environment=cluster[0], cluster_pattern=cluster[1], impossible=impossible, trivial=trivial)
    found = list(labels(config).values())
    assert found.count("impossible") / 2400 == pytest.approx(impossible, abs=0.03)
    assert found.count("trivial") / 2400 == pytest.approx(trivial, abs=0.03)


def test_without_clustering_labels_are_independent_draws() -> None:
    """Averages of three seeds; one seed's spread over 48 environments has a standard deviation of 0.2."""
    plans = [outlines(replace(UNCLUSTERED, environments=48, seed=seed)) for seed in range(3)]
    assert statistics.mean(spread_over(each, environment) for each in plans) == pytest.approx(1.0, abs=0.35)
    assert statistics.mean(spread_over(each, pattern) for each in plans) == pytest.approx(1.0, abs=0.5)


def test_clustering_by_environment_grows_and_ends_in_whole_environments() -> None:
    by_strength = [outlines(replace(UNCLUSTERED, environments=48, cluster_environment=strength)) for strength in (0.0, 0.4, 0.7, 1.0)]
    spreads = [spread_over(plans, environment) for plans in by_strength]
    assert spreads == sorted(spreads)
    assert spreads[1] > 3
    assert spreads[3] == pytest.approx(50, abs=2)  # tasks an environment: every environment is all or nothing
    assert all(spread_over(plans, pattern) < 4 for plans in by_strength)


def test_clustering_by_pattern_grows_and_leaves_environments_alone() -> None:
    by_strength = [outlines(replace(UNCLUSTERED, environments=48, cluster_pattern=strength)) for strength in (0.0, 0.4, 0.7, 1.0)]
    spreads = [spread_over(plans, pattern) for plans in by_strength]
    assert spreads == sorted(spreads)
    assert spreads[1] > 5
    assert spreads[3] > 60
    assert all(spread_over(plans, environment) < 2.5 for plans in by_strength)


def test_both_clusterings_at_once() -> None:
    plans = outlines(ToolWorldConfig(cluster_environment=0.5, cluster_pattern=0.5))
    assert spread_over(plans, environment) > 4
    assert spread_over(plans, pattern) > 8


@pytest.fixture(scope="module")
def impossible() -> Pool:
    return generate(IMPOSSIBLE)


def test_what_would_solve_an_impossible_task_changes_nothing_of_its_reward(impossible: Pool) -> None:
    by_id = {each.env_id: each for each in impossible.environments}
    by_world = {world.env_id: world for world in worlds(IMPOSSIBLE)}
    for task, plan in zip(impossible.tasks, outlines(IMPOSSIBLE), strict=True):
        assert task.ground_truth is None
        episode = Episode(by_id[task.env_id], task)
        before = episode.passed()
        for call in reference(IMPOSSIBLE.seed, by_world[task.env_id], plan):
            episode.call(call["name"], call["arguments"])
        assert episode.passed() == before, task.key


def test_reckless_policies_earn_nothing_on_impossible_tasks(impossible: Pool) -> None:
    """Eighty changes with real arguments, in random order: every reward stays what it was at reset."""
    by_id = {each.env_id: each for each in impossible.environments}
    changed = 0
    for task in impossible.tasks:
        episode = Episode(by_id[task.env_id], task)
        before = episode.passed()
        calls = list(candidates(by_id[task.env_id], task, episode.state()))
        changed += sum(episode.call(call["name"], call["arguments"])["success"] for call in random.Random(task.key).sample(calls, 80))
        assert episode.passed() == before, task.key
    assert changed / len(impossible.tasks) > 5


def test_the_solver_solves_no_impossible_task(impossible: Pool) -> None:
    by_id = {each.env_id: each for each in impossible.environments}
    for task in impossible.tasks[::16]:
        found = solve(by_id[task.env_id], task, budget=150)
        assert found.score == Episode(by_id[task.env_id], task).score(), (task.key, found.trajectory)


def test_the_solver_solves_possible_tasks() -> None:
    """It is no straw man; and the instruction alone says what is wanted."""
    config = ToolWorldConfig(environments=16, tasks=2, impossible=0.0, trivial=0.0, max_operations=3)
    pool = generate(config)
    by_id = {each.env_id: each for each in pool.environments}
    solved = [solve(by_id[task.env_id], task, budget=1500).score == 1.0 for task in pool.tasks]
    assert sum(solved) >= 30


def test_impossible_tasks_are_blocked_in_every_way_there_is() -> None:
    """Each unit's first operation is blocked by a record that is absent, over for good or too small, or by the lack of an approver."""
    ways = defaultdict(int)
    by_world = {world.env_id: world for world in worlds(IMPOSSIBLE)}
    for plan in outlines(IMPOSSIBLE):
        world = by_world[plan.env_id]
        scene = cast(world, plan, task_stream(IMPOSSIBLE.seed, plan))
        for case in scene.cases:
            blocks = [(part.table, part.trait) for part in case.parts.values() if part.trait != "live"]
            unapproved = not scene.approver and needs_staff(world, case.unit.pattern.operations[0])
            assert len(blocks) == (0 if unapproved else 1)
            ways[blocks[0] if blocks else "no approver"] += 1
    assert set(ways) == {(table, trait) for table in "orpb" for trait in ("absent", "frozen")} | {
        ("o", "tight"),
        ("r", "tight"),
        ("b", "tight"),
        "no approver",
    }
    assert min(ways.values()) >= 5


def test_a_trivial_task_is_solved_by_any_look_up() -> None:
    pool = generate(TRIVIAL)
    by_id = {each.env_id: each for each in pool.environments}
    for task in pool.tasks:
        environment = by_id[task.env_id]
        queries = {operation["name"] for operation in environment.operations if operation["type"] == "query"}
        assert Episode(environment, task).score() < 1
        assert len(task.ground_truth) >= 5
        assert {call["name"] for call in task.ground_truth} <= queries
        for tool in environment.tools:
            if tool["function"]["name"] in queries:
                episode = Episode(environment, task)
                episode.call(tool["function"]["name"], dict.fromkeys(tool["function"]["parameters"]["properties"], "nonsense"))
                assert episode.score() == 1.0, (task.key, tool["function"]["name"])


def test_doing_again_what_a_trivial_task_asks_for_does_no_harm() -> None:
    """A policy that does not notice that all is done is refused, and keeps the full reward."""
    pool = generate(TRIVIAL)
    by_id = {each.env_id: each for each in pool.environments}
    by_world = {world.env_id: world for world in worlds(TRIVIAL)}
    kept = []
    for task, plan in zip(pool.tasks, outlines(TRIVIAL), strict=True):
        episode = Episode(by_id[task.env_id], task)
        for call in reference(TRIVIAL.seed, by_world[task.env_id], plan):
            episode.call(call["name"], call["arguments"])
        kept.append(episode.score() == 1.0)
    assert all(kept)


@pytest.mark.parametrize("shares", [{"impossible": 0.5, "trivial": 0.0}, {"impossible": 0.0, "trivial": 0.5}])
def test_nothing_visible_marks_a_label(shares: dict[str, float]) -> None:
    """Classifiers on words and sizes stay at chance. Of 1,200 tasks the standard error of an area under the curve is 0.017."""
    config = replace(UNCLUSTERED, **shares)
    pool = generate(config)
    truth = labels(config)
    marked = np.array([truth[key] != "possible" for key in pool.keys])
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    views = (
        [task.prompt for task in pool.tasks],
        [" ".join(check.description + check.code for check in task.verifier.checks) for task in pool.tasks],
        [json.dumps(task.initial_state) for task in pool.tasks],
    )
    for texts in views:
        words = TfidfVectorizer(sublinear_tf=True, min_df=5, token_pattern=r"\w+").fit_transform(texts)
        area = cross_val_score(LogisticRegression(max_iter=300), words, marked, cv=folds, scoring="roc_auc").mean()
        assert area == pytest.approx(0.5, abs=0.06)
    area = cross_val_score(HistGradientBoostingClassifier(max_iter=40), sizes(pool), marked, cv=folds, scoring="roc_auc").mean()
    assert area == pytest.approx(0.5, abs=0.06)


def sizes(pool: Pool) -> np.ndarray:
    """Counts and lengths of everything that a task holds, but its ground truth."""
    rows = []
    for task in pool.tasks:
        tables = [len(value) for value in task.initial_state.values() if isinstance(value, dict)][:5]
        code = sum(len(check.code) for check in task.verifier.checks)
        state = [len(json.dumps(task.initial_state)), len(task.initial_state["scheduled"]), task.initial_state["today"]]
        rows.append([len(task.prompt), len(task.prompt.split()), len(task.verifier.checks), code, len(task.info), *state, *tables])
    return np.array(rows, dtype=float)


def test_the_mix_of_records_does_not_depend_on_the_label() -> None:
    """The same plan has as many closed, retired, shut and finished records whichever label it gets."""
    config = replace(UNCLUSTERED, environments=16, tasks=10)
    for world, plan in zip([world for world in worlds(config) for _ in range(10)], outlines(config), strict=True):
        mixes = []
        for label in ("possible", "impossible", "trivial"):
            relabelled = replace(plan, label=label)
            scene = cast(world, relabelled, random.Random(0))
            mixes.append(sorted((part.table, part.trait) for part in scene.parts if part.trait != "absent"))
        counts = [{table: sum(kind[0] == table for kind in mix) for table in "orpb"} for mix in mixes]
        assert counts[0] == counts[2]
        assert all(abs(counts[0][table] - counts[1][table]) <= 1 for table in "orpb")  # random extras of the two draws
        frozen = [sum(kind[1] == "frozen" for kind in mix) for mix in mixes]
        assert frozen[0] == frozen[1] == frozen[2]
