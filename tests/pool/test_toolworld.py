"""ToolWorld: what the default pool holds, that it runs, and that it is the same everywhere."""

import json
import keyword
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from envsched_gnn.config import ToolWorldConfig
from envsched_gnn.pool.envscaler import read_envscaler, write_envscaler
from envsched_gnn.pool.episode import Episode, run_check
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.toolworld import generate, labels
from envsched_gnn.pool.toolworld.outline import Outline, outlines, worlds
from envsched_gnn.pool.toolworld.patterns import PATTERNS
from envsched_gnn.pool.toolworld.world import DOMAINS
from envsched_gnn.records import Environment, Task

DEFAULT = ToolWorldConfig()
SMALL = ToolWorldConfig(environments=4, tasks=6)


@pytest.fixture(scope="module")
def pool() -> Pool:
    return generate(DEFAULT)


@pytest.fixture(scope="module")
def truth() -> dict[str, str]:
    return labels(DEFAULT)


@pytest.fixture(scope="module")
def plans() -> dict[str, Outline]:
    return {plan.key: plan for plan in outlines(DEFAULT)}


def environment_of(pool: Pool, task: Task) -> Environment:
    return next(environment for environment in pool.environments if environment.env_id == task.env_id)


def replay(environment: Environment, task: Task, calls: list[dict]) -> tuple[float, list[dict]]:
    """The score after all calls, and the calls that were refused."""
    episode = Episode(environment, task)
    refused = [call for call in calls if not episode.call(call["name"], call["arguments"])["success"]]
    return episode.score(), refused


def test_default_size_and_domains(pool: Pool) -> None:
    assert len(pool.environments) == 48
    assert Counter(task.env_id for task in pool.tasks) == {environment.env_id: 50 for environment in pool.environments}
    assert len(DOMAINS) == 16
    assert len({world.domain.name for world in worlds(DEFAULT)}) == 16
    assert len({environment.source for environment in pool.environments}) == 48
    assert len({environment.rules for environment in pool.environments}) == 48
    assert len({tuple(sorted(tool["function"]["name"] for tool in each.tools)) for each in pool.environments}) == 48


def test_gold_scores_one_on_every_possible_and_trivial_task(pool: Pool, truth: dict[str, str]) -> None:
    environments = {environment.env_id: environment for environment in pool.environments}
    played = Counter()
    for task in pool.tasks:
        if truth[task.key] == "impossible":
            assert task.ground_truth is None
            continue
        score, refused = replay(environments[task.env_id], task, task.ground_truth)
        assert score == 1.0, task.key
        assert truth[task.key] == "trivial" or refused == [], task.key
        assert len(task.ground_truth) <= environments[task.env_id].max_turns
        played[truth[task.key]] += 1
    assert played == {"possible": 1726, "trivial": 244}


def test_doing_nothing_earns_almost_nothing(pool: Pool) -> None:
    passed = [[run_check(each.code, task.initial_state, task.initial_state) for each in task.verifier.checks] for task in pool.tasks]
    assert statistics.mean(sum(each) / len(each) for each in passed) == pytest.approx(0.039, abs=0.005)
    assert sum(map(sum, passed)) / sum(map(len, passed)) == pytest.approx(0.030, abs=0.005)
    assert max(sum(each) for each in passed) == 1


def test_operations_and_checks_have_the_range_they_should(pool: Pool, plans: dict[str, Outline]) -> None:
    operations = Counter(plan.operations for plan in plans.values())
    assert sorted(operations) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(count == pytest.approx(300, abs=60) for count in operations.values())
    checks = Counter(len(task.verifier.checks) for task in pool.tasks)
    assert (min(checks), max(checks)) == (2, 16)
    assert statistics.mean(len(task.verifier.checks) for task in pool.tasks) == pytest.approx(8.0, abs=0.5)
    assert {unit.pattern.name for plan in plans.values() for unit in plan.units} == {pattern.name for pattern in PATTERNS}
    reading = sum("initial_state" in check.code for task in pool.tasks for check in task.verifier.checks)
    assert reading / sum(len(task.verifier.checks) for task in pool.tasks) == pytest.approx(0.29, abs=0.05)


def test_a_pattern_recurs_in_most_domains(plans: dict[str, Outline]) -> None:
    domains = defaultdict(set)
    for plan in plans.values():
        domains[plan.units[0].pattern.name].add(plan.env_id.rsplit("_", 1)[0])
    assert min(len(found) for found in domains.values()) >= 12


@pytest.mark.parametrize(("profile", "mean"), [("shallow", 3.2), ("uniform", 4.5), ("deep", 5.8)])
def test_depth_profile(profile: str, mean: float) -> None:
    found = [plan.operations for plan in outlines(replace(DEFAULT, depth=profile))]
    assert statistics.mean(found) == pytest.approx(mean, abs=0.25)


def test_depth_limits() -> None:
    assert {plan.operations for plan in outlines(replace(SMALL, min_operations=3, max_operations=4))} == {3, 4}


def test_depth_differs_between_environments(plans: dict[str, Outline]) -> None:
    depths = defaultdict(list)
    for plan in plans.values():
        depths[plan.env_id].append(plan.operations)
    means = [statistics.mean(found) for found in depths.values()]
    assert min(means) < 2.5
    assert max(means) > 6.5


def test_instructions_hold_names_but_no_identifiers(pool: Pool) -> None:
    for task in pool.tasks:
        assert "$" not in task.prompt
        assert not re.search(r"\b[A-Z]{2,3}-\d+", task.prompt), task.prompt
        assert not any("$" in check.code or "$" in check.description for check in task.verifier.checks)


def test_identifiers_in_the_gold_trajectory_are_supplied_by_its_own_look_ups(pool: Pool, truth: dict[str, str]) -> None:
    """An identifier is used only after some earlier call has returned it."""
    environments = {environment.env_id: environment for environment in pool.environments}
    for task in [task for task in pool.tasks if truth[task.key] == "possible"][::5]:
        episode = Episode(environments[task.env_id], task)
        seen = ""
        for call in task.ground_truth:
            for name, value in call["arguments"].items():
                assert not name.endswith("_id") or repr(value) in seen, (task.key, call)
            seen += repr(episode.call(call["name"], call["arguments"]))


def test_every_environment_follows_the_conventions(pool: Pool) -> None:
    for environment in pool.environments:
        names = [operation["name"] for operation in environment.operations]
        assert names == [tool["function"]["name"] for tool in environment.tools]
        assert {operation["type"] for operation in environment.operations} == {"query", "state_change"}
        assert environment.rules
        assert f"class {environment.name}:" in environment.source
        assert "$" not in environment.source + repr(
            (environment.tools, environment.rules, environment.state_schema, environment.operations)
        )


def test_states_are_consistent(pool: Pool) -> None:
    """Derived counters agree with the records that they count."""
    by_id = {world.env_id: world for world in worlds(DEFAULT)}
    for task in pool.tasks[::7]:
        n, state = by_id[task.env_id].names, task.initial_state
        current = [record for record in state[n["bs"]].values() if record[n["bstate"]] in (n["b0"], n["b1"])]
        for owner_id, record in state[n["os"]].items():
            assert record[n["count"]] == sum(each[n["oid"]] == owner_id for each in current)
            assert record[n["count"]] <= record[n["limit"]]
        for resource_id, record in state[n["rs"]].items():
            assert record[n["used"]] == sum(each[n["units"]] for each in current if each[n["rid"]] == resource_id)
            assert record[n["used"]] <= record[n["capacity"]]
            assert record[n["pid"]] in state[n["ps"]]
        for place_id, record in state[n["ps"]].items():
            assert record[n["pcount"]] == sum(each[n["pid"]] == place_id for each in state[n["rs"]].values())
            assert record[n["pcount"]] < record[n["pcapacity"]]


def test_rewards_are_graded_when_calls_are_dropped(pool: Pool, truth: dict[str, str]) -> None:
    """Without its last change a trajectory of several changes scores between nothing and everything."""
    environments = {environment.env_id: environment for environment in pool.environments}
    several = [task for task in pool.tasks if truth[task.key] == "possible" and len(task.verifier.checks) >= 8][:60]
    scores = [replay(environments[task.env_id], task, task.ground_truth[:-1])[0] for task in several]
    assert all(0 < score < 1 for score in scores)
    assert len(set(scores)) >= 10


def test_in_a_strict_environment_nothing_counts_before_the_first_item(pool: Pool, truth: dict[str, str]) -> None:
    strict = {world.env_id for world in worlds(DEFAULT) if world.strict}
    assert len(strict) / 48 == pytest.approx(1 / 3, abs=0.15)
    lost = defaultdict(list)
    for task in [task for task in pool.tasks if truth[task.key] == "possible"][::8]:
        environment = environment_of(pool, task)
        changing = {operation["name"] for operation in environment.operations if operation["type"] == "state_change"}
        first = next(i for i, call in enumerate(task.ground_truth) if call["name"] in changing)
        score, _ = replay(environment, task, task.ground_truth[:first] + task.ground_truth[first + 1 :])
        lost[task.env_id in strict].append(score <= Episode(environment, task).score())
    assert all(lost[True])
    assert statistics.mean(lost[False]) < 0.7


def test_difficulty_differs_by_environment_and_by_pattern(pool: Pool, truth: dict[str, str], plans: dict[str, Outline]) -> None:
    """How a policy fares that skips every third call depends on how many changes a task needs in a row."""
    environments = {environment.env_id: environment for environment in pool.environments}
    by_environment, by_pattern = defaultdict(list), defaultdict(list)
    for row, task in enumerate(pool.tasks):
        if truth[task.key] == "possible" and row % 3 == 0:
            calls = [call for i, call in enumerate(task.ground_truth) if (i + row) % 3]
            score, _ = replay(environments[task.env_id], task, calls)
            by_environment[task.env_id].append(score)
            by_pattern[plans[task.key].units[0].pattern.name].append(score)
    for groups in (by_environment, by_pattern):
        means = [statistics.mean(scores) for scores in groups.values() if len(scores) >= 8]
        assert len(means) >= 20
        assert max(means) - min(means) > 0.3


def test_the_same_in_another_process() -> None:
    code = "from envsched_gnn.config import ToolWorldConfig as C; from envsched_gnn.pool.toolworld import generate as g; "
    code += "import sys; print(g(C(environments=4, tasks=6)).content_hash); assert 'torch' not in sys.modules"
    environment = {"PYTHONHASHSEED": "7", "PATH": ""}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout.strip()
    assert found == generate(SMALL).content_hash
    assert found != generate(replace(SMALL, seed=1)).content_hash


def test_an_environment_does_not_depend_on_how_many_there_are(pool: Pool) -> None:
    few = generate(replace(DEFAULT, environments=3, tasks=50))
    assert few.environments == pool.environments[:3]
    assert few.tasks == pool.tasks[:150]


def test_a_task_does_not_depend_on_how_many_there_are(pool: Pool) -> None:
    few = generate(replace(DEFAULT, environments=2, tasks=4))
    assert few.tasks == pool.tasks[:4] + pool.tasks[50:54]


def test_held_out_shares() -> None:
    config = ToolWorldConfig(environments=20, tasks=10, held_out_tasks=0.3, held_out_environments=0.25)
    counts = defaultdict(int)
    for task in generate(config).tasks:
        counts[task.env_id] += task.held_out
    assert Counter(counts.values()) == {10: 5, 3: 15}
    assert not any(task.held_out for task in generate(SMALL).tasks)


def test_binary_reward() -> None:
    config = replace(SMALL, reward="binary", impossible=0.0, trivial=0.0)
    pool = generate(config)
    for task in pool.tasks:
        environment = environment_of(pool, task)
        assert task.info["reward"] == "binary"
        assert replay(environment, task, task.ground_truth)[0] == 1.0
        assert replay(environment, task, task.ground_truth[:-1])[0] == 0.0


def test_info_holds_nothing_but_what_is_declared(pool: Pool) -> None:
    assert {json.dumps(dict(task.info)) for task in pool.tasks} == {'{"held_out": false}'}


def test_round_trip_through_envscaler_files(tmp_path) -> None:
    config = replace(SMALL, reward="binary", held_out_tasks=0.5)
    written = generate(config)
    write_envscaler(written, tmp_path)
    read = read_envscaler(tmp_path)
    assert read.content_hash == written.content_hash
    truth = labels(config)
    for before, after in zip(written.tasks, read.tasks, strict=True):
        assert after.initial_state == before.initial_state
        assert after.prompt == before.prompt
        environment = environment_of(read, after)
        if truth[before.key] != "impossible":
            assert replay(environment, after, before.ground_truth)[0] == 1.0
        assert Episode(environment, after).score() == Episode(environment_of(written, before), before).score()


def test_no_two_names_of_an_environment_clash() -> None:
    """Of 480 environments: tools, tables, and the fields of each kind of record."""
    fields = (
        ("oid", "ostate", "tier", "points", "count", "limit", "notified", "changed"),
        ("rid", "title", "category", "rstate", "pid", "capacity", "used", "rate", "cap", "changed"),
        ("pid", "pstate", "pcount", "pcapacity", "access", "listed", "total"),
        ("bid", "oid", "rid", "units", "amount", "due", "latest", "extensions", "bstate", "approved"),
        ("sid", "rolefield", "duty"),
        ("os", "rs", "ps", "bs", "ss", "notices", "reports"),
    )
    found = worlds(replace(DEFAULT, environments=480))
    for world in found:
        for group in fields:
            names = [world.names[key] for key in group] + ["name", "scheduled", "today", "sequence"]
            assert len(set(names)) == len(names), (world.env_id, names)
            assert all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
        tools = [world.names["t_" + method.key] for method in world.methods]
        assert len(set(tools)) == len(tools), (world.env_id, tools)
    assert len({world.env_id for world in found}) == 480
