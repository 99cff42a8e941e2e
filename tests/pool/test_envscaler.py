"""EnvScaler pools: the real ones, every published variant, and what is wrong with broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from envsched_gnn.errors import PoolError
from envsched_gnn.pool import Pool, read_envscaler, write_envscaler
from envsched_gnn.pool.episode import Episode, ToolError, policy_view
from envsched_gnn.pool.show import summary, table, warnings
from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier

# Recorded and replayed reward of the four episodes that cannot replay: each made a record whose id the environment drew with uuid4,
# and its later calls name the id that was drawn then.
NOT_REPLAYED = {
    "env_143_rl-task_5",  # reschedules two waitlist entries that it added
    "env_154_rl-task_2",  # activates and enrols a user account that it created
    "env_155_rl-task_3",  # notifies about a reminder that it created
    "env_173_rl-task_1",  # uploads an image to a consultation that it created
}
"""Each names an id that was drawn with uuid4 when it was recorded; which checks then fail depends on the draw."""


@pytest.fixture
def real(data_dir: Path) -> Pool:
    return Pool.load(data_dir / "envscaler")


@pytest.mark.data
def test_the_real_pool(real: Pool) -> None:
    figures = summary(real)
    assert (figures["environments"], figures["tasks"], figures["checks"]) == (33, 87, 1794)
    assert figures["checks_per_task"] == {"min": 4, "median": 14, "max": 445}
    assert figures["tools_per_environment"] == {"min": 12, "median": 18, "max": 25}
    assert len(figures["empty_environments"]) == 5
    assert figures["tasks_without_checks"] == []
    assert figures["reward_ranges"] == [[0.0, 1.0]]
    assert real.keys[0] == "env_143_rl/env_143_rl-task_4"
    assert len(warnings(figures)) == 1
    assert warnings(figures)[0].startswith("5 environments have no tasks and are never chosen: env_")
    assert ("checks", "1794; a task 4 / 14 / 445 (min / median / max)") in table(figures)
    json.dumps(figures)


@pytest.mark.data
def test_no_operation_scores_as_measured(real: Pool) -> None:
    environments = {environment.env_id: environment for environment in real.environments}
    rewards = [Episode(environments[task.env_id], task).score() for task in real.tasks]
    assert (round(sum(rewards) / 87, 3), rewards.count(0.0), max(rewards)) == (0.117, 33, 0.9888)


@pytest.mark.data
def test_recorded_episodes_replay(real: Pool, data_dir: Path) -> None:
    environments = {environment.env_id: environment for environment in real.environments}
    lines = (data_dir / "envscaler" / "gpt5_reference_rollouts_25.jsonl").read_text(encoding="utf-8").splitlines()
    different = set()
    for record in map(json.loads, filter(None, lines)):
        task = real.tasks[real.index_of[f"{record['env_id']}/{record['task_id']}"]]
        episode = Episode(environments[task.env_id], task)
        for action in record["actions"]:
            if action["name"] == "chat_with_user":  # the text that ends the episode
                break
            try:
                episode.call(action["name"], action["arguments"])
            except ToolError:
                continue
        if episode.score() != record["recorded_reward"]:
            assert "uuid4()" in episode.environment.source
            different.add(task.task_id)
    assert len(lines) - lines.count("") == 25
    assert different == NOT_REPLAYED


@pytest.mark.data
def test_a_policy_sees_no_verifier_of_any_real_task(real: Pool) -> None:
    environments = {environment.env_id: environment for environment in real.environments}
    for task in real.tasks:
        text = json.dumps(policy_view(environments[task.env_id], task), ensure_ascii=False)
        assert "check_func" not in text
        assert "def __init__" not in text
        assert not any(check.description in text for check in task.verifier.checks)


def _environment_record(**fields: Any) -> dict[str, Any]:
    return {
        "env_id": "env_1",
        "environment_summary": "A list",
        "environment_introduction": "A list of things.",
        "state_space_definition": [{"entity": "Thing", "attributes": "na", "description": ""}],
        "constraints_rules": ["No two alike."],
        "operation_list": [{"operation_name": "add", "operation_description": "Add.", "operation_type": "state_change"}],
        "env_class_name": "Things",
        "env_class_code": "class Things:\n    def add(self, x):\n        self.things.append(x)\n",
        "env_class_def": "class Things:",
        "env_func_details": {"add": {"doc": ""}},
        "tools": [{"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}],
    } | fields


def _task_record(**fields: Any) -> dict[str, Any]:
    return {
        "env_id": "env_1",
        "env_class_name": "Things",
        "task_id": "t1",
        "init_config": {"things": [1]},
        "task": "Add 2.",
        "checklist_with_func": [{"check_item": "Is 2 there?", "check_func": "def check_func(s):\n    return 2 in s['things']"}],
    } | fields


def _write(
    directory: Path, environments: Any, tasks: Any, names: tuple[str, str] = ("191_env_metadata.json", "rl_scenario_metadata.json")
) -> Path:
    directory.mkdir(exist_ok=True)
    for name, content in zip(names, (environments, tasks), strict=True):
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (directory / name).write_bytes(text)
    return directory


def test_every_variant_reads_the_same(tmp_path: Path) -> None:
    environment, task = _environment_record(), _task_record()
    text_environment = environment | {key: json.dumps(environment[key]) for key in ("tools", "env_func_details")}
    text_task = task | {"init_config": json.dumps(task["init_config"])}
    published = ("191_env_metadata_processed.json", "envscaler_rl_scenario_metadata.json")
    pools = [
        Pool.load(_write(tmp_path / "a", [environment], [task])),
        Pool.load(_write(tmp_path / "b", {"env_1": environment}, [text_task])),
        Pool.load(_write(tmp_path / "c", [text_environment], [text_task], published)),
        Pool.load(_write(tmp_path / "d", {"env_1": {k: v for k, v in text_environment.items() if k != "env_id"}}, [task])),
    ]
    assert len({pool.content_hash for pool in pools}) == 1
    first = pools[0].environments[0]
    assert (first.env_id, first.name, first.description, first.rules) == ("env_1", "Things", "A list of things.", ("No two alike.",))
    assert first.operations == ({"name": "add", "description": "Add.", "type": "state_change"},)
    episode = Episode(pools[2].environments[0], pools[2].tasks[0])
    assert episode.score() == 0.0
    episode.call("add", {"x": 2})
    assert episode.score() == 1.0


def test_file_order_is_kept_and_other_files_are_ignored(tmp_path: Path) -> None:
    tasks = [_task_record(task_id=name) for name in ("z", "a", "m")]
    directory = _write(tmp_path, [_environment_record(env_id="env_2"), _environment_record()], tasks)
    (directory / "notes.json").write_text("not a pool")
    pool = Pool.load(directory)
    assert pool.keys == ("env_1/z", "env_1/a", "env_1/m")
    assert [environment.env_id for environment in pool.environments] == ["env_2", "env_1"]
    assert pool.empty_environments == ("env_2",)


@pytest.mark.parametrize("checks", [{}, {"checklist": ["Is 2 there?"]}, {"checklist_with_func": []}])
def test_a_task_without_checks_is_legal_and_reported(tmp_path: Path, checks: dict[str, Any]) -> None:
    record = {key: value for key, value in _task_record().items() if key != "checklist_with_func"} | checks
    pool = Pool.load(_write(tmp_path, [_environment_record()], [record]))
    assert pool.tasks[0].verifier.checks == ()
    assert warnings(summary(pool)) == ["1 tasks have no checks and cannot be scored: env_1/t1."]


ENVIRONMENT, TASK = _environment_record(), _task_record()


@pytest.mark.parametrize(
    ("environments", "tasks", "said"),
    [
        (b"[{", [TASK], r"191_env_metadata.json: malformed .*expected JSON"),
        (b'["\xff\xfe"]', [TASK], r"191_env_metadata.json: byte 0xff at offset 2; expected UTF-8 text.*iconv"),
        (b"[" * 100_000, [TASK], "malformed"),
        ("text", [TASK], "holds str; expected a JSON list"),
        ([ENVIRONMENT, 3], [TASK], "record 1: holds int; expected an object"),
        ([ENVIRONMENT], {"a": 1}, "rl_scenario_metadata.json: holds dict; expected a JSON list"),
        ([{**ENVIRONMENT, "env_id": None}], [TASK], "record 0: field 'env_id': missing; expected a string. Add 'env_id'"),
        ([{**ENVIRONMENT, "env_id": ""}], [TASK], "field 'env_id': found ''; expected a string that is not empty"),
        ([{**ENVIRONMENT, "tools": "[{"}], [TASK], r"record 0 \(env_1\): field 'tools': no JSON"),
        ([{**ENVIRONMENT, "tools": [{"name": "add"}]}], [TASK], "field 'tools': found {'name': 'add'}; expected a list of OpenAI"),
        ([{**ENVIRONMENT, "tools": {}}], [TASK], "field 'tools': found {}; expected a list"),
        ([{**ENVIRONMENT, "env_class_code": 7}], [TASK], "field 'env_class_code': found 7; expected a string"),
        ([{**ENVIRONMENT, "constraints_rules": [1]}], [TASK], "field 'constraints_rules': found 1; expected a list of strings"),
        ({"other": ENVIRONMENT}, [TASK], "env_id 'env_1' stands under key 'other'"),
        ([ENVIRONMENT, ENVIRONMENT], [TASK], r"record 1 \(env_1\): environment 'env_1' stands already at .*record 0"),
        ([ENVIRONMENT], [TASK, TASK], r"record 1 \(t1\): task 'env_1/t1' stands already at .*record 0"),
        ([ENVIRONMENT], [{**TASK, "env_id": "env_9"}], r"record 0 \(t1\): task 't1' belongs to environment 'env_9', which is not in"),
        ([ENVIRONMENT], [{k: v for k, v in TASK.items() if k != "task"}], r"record 0 \(t1\): field 'task': missing"),
        ([ENVIRONMENT], [{k: v for k, v in TASK.items() if k != "init_config"}], "field 'init_config': missing"),
        ([ENVIRONMENT], [{**TASK, "init_config": "{"}], "field 'init_config': no JSON"),
        ([ENVIRONMENT], [{**TASK, "checklist_with_func": [{"check_item": "x"}]}], "check 0: field 'check_func': missing"),
        ([ENVIRONMENT], [{**TASK, "checklist_with_func": ["x"]}], "field 'checklist_with_func': found 'x'"),
        ([ENVIRONMENT], [{**TASK, "envsched": {"weights": [1, 2]}}], r"field 'envsched.weights': found \[1, 2\]; expected a list of 1"),
        (
            [ENVIRONMENT],
            [{**TASK, "envsched": {"reward_range": [0, float("inf")]}}],
            r"'reward_range': found \[0, inf\]; expected two finite",
        ),
        ([ENVIRONMENT], [{**TASK, "envsched": {"held_out": True}}], "unknown field 'held_out'"),
        ([ENVIRONMENT], [], "no tasks"),
    ],
)
def test_bad_input_names_file_record_expectation_and_cure(tmp_path: Path, environments: Any, tasks: Any, said: str) -> None:
    with pytest.raises(PoolError, match=said):
        Pool.load(_write(tmp_path, environments, tasks))


def test_a_dict_with_one_environment_twice_is_refused(tmp_path: Path) -> None:
    record = json.dumps(ENVIRONMENT)
    with pytest.raises(PoolError, match="environment 'env_1' stands more than once"):
        Pool.load(_write(tmp_path, f'{{"env_1": {record}, "env_1": {record}}}'.encode(), [TASK]))


def test_two_files_of_a_kind_are_both_named(tmp_path: Path) -> None:
    directory = _write(tmp_path, [ENVIRONMENT], [TASK])
    (directory / "sft_scenario_metadata.json").write_text("[]")
    with pytest.raises(PoolError, match=r"rl_scenario_metadata.json and sft_scenario_metadata.json both match \*scenario\*.json"):
        Pool.load(directory)


def test_one_file_alone(tmp_path: Path) -> None:
    (tmp_path / "rl_scenario.json").write_text("[]")
    with pytest.raises(PoolError, match=r"no \*env_metadata\*.json"):
        Pool.load(tmp_path)


FULL = Pool(
    environments=(
        Environment(env_id="plain", name="A", source="class A: pass"),
        Environment(
            env_id="full",
            name="B",
            description="First line.\nSecond.",
            source="class B: pass",
            tools=(ENVIRONMENT["tools"][0],),
            rules=("a", ""),
            state_schema="free text",
            operations=({"name": "add", "note": 1}, {}),
            reward_range=(-1.0, 2.5),
            max_turns=7,
            timeouts=Timeouts(setup=1.0, step=2.5, score=3.0),
            licence="MIT",
            revision="r1",
        ),
    ),
    tasks=(
        Task(env_id="full", task_id="b", prompt="P \ud800 \u2028", initial_state="text", info={"held_out": True, "reward": "binary"}),
        Task(
            env_id="full",
            task_id="a",
            prompt="",
            initial_state={"x": [1, 2.5, None, {"y": "ü"}]},
            verifier=Verifier(checks=(Check(description="d", code="c", weight=2.0), Check(code="e"))),
            ground_truth=[{"name": "add", "arguments": {"x": 2}}],
            reward_range=(0.0, 10.0),
        ),
        Task(env_id="full", task_id="c", prompt="x" * 2_000_000, verifier=Verifier(kind="own")),
    ),
)


def test_write_and_read_back_equal(tmp_path: Path) -> None:
    write_envscaler(FULL, tmp_path)
    back = read_envscaler(tmp_path)
    assert back.environments == FULL.environments
    assert back.tasks == FULL.tasks
    assert back.content_hash == FULL.content_hash
    assert [task.held_out for task in back.tasks] == [True, False, False]
    write_envscaler(back, tmp_path)  # over itself
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env_metadata.json", "rl_scenario.json"]


@pytest.mark.data
def test_the_real_pool_survives_writing(real: Pool, tmp_path: Path) -> None:
    write_envscaler(real, tmp_path)
    back = Pool.load(tmp_path)
    assert (back.environments, back.tasks, back.content_hash) == (real.environments, real.tasks, real.content_hash)


def test_writing_refuses_what_it_would_spoil(tmp_path: Path) -> None:
    other = _write(tmp_path, [ENVIRONMENT], [TASK])
    with pytest.raises(PoolError, match=r"191_env_metadata\.json is there"):
        write_envscaler(FULL, other)
    foreign = Pool(environments=(Environment(env_id="e", env_type="mcp"),), tasks=(Task(env_id="e", task_id="t", prompt=""),))
    with pytest.raises(PoolError, match="e: env_type 'mcp'; expected 'python_class'"):
        write_envscaler(foreign, tmp_path / "new")
