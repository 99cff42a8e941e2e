"""What of a pool a policy is shown, in TRL's form: schemas, names, rows; and what is refused."""

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.errors import ConfigError, PoolError
from envsched_gnn.pool import Pool, load_pool
from envsched_gnn.records import Environment, Task
from envsched_gnn.train.trl.tool_environment import ToolEnvironment
from envsched_gnn.train.workers import WorkerPool
from tests.train.counter import ADD, COUNTER, counter_pool, counter_task, tool_schema

pytest.importorskip("trl", reason="the extra rl is not installed")

from envsched_gnn.train.trl.environments import attach_environments, dataset_of, environment_factories, environment_reward
from envsched_gnn.train.trl.models import load_tokenizer


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    with WorkerPool(2, memory_mb=400) as pool:
        yield pool


def test_a_trainer_that_is_not_attached_can_do_without(workers: WorkerPool) -> None:
    from transformers.utils import get_json_schema

    world = load_pool(PoolConfig(toolworld=ToolWorldConfig(environments=8, tasks=1)))
    factories = environment_factories(world, workers, TrainConfig())
    for environment in world.environments:
        instance = factories[environment.env_id]()
        for tool in environment.tools:
            assert get_json_schema(getattr(instance, tool["function"]["name"])) == tool

    async def episode() -> tuple[str, list[float | None]]:
        instance: Any = environment_factories(counter_pool("a"), workers, TrainConfig())["counter"]()
        instance.reset(task_id="counter/a", prompt=[])
        return await instance.add(k=3), await environment_reward([instance])

    assert asyncio.run(episode()) == ("{'n': 3}", [0.75])


def test_nested_schemas_as_signatures(workers: WorkerPool) -> None:
    from transformers.utils import get_json_schema

    address = {"type": "object", "properties": {"street": {"type": "string"}}, "description": "Where to."}
    tool = tool_schema(
        "send", to=address, sizes={"type": "array", "items": {"type": "number"}, "description": "In\n  cm."}, kind={"enum": ["a", "b"]}
    )
    tool["function"]["parameters"]["properties"] |= {"note": {"type": ["string", "null"], "description": ""}, "class": {"type": "string"}}
    environment = replace(COUNTER, tools=(tool,))
    instance: Any = environment_factories(counter_pool("a", environment=environment), workers, TrainConfig())["counter"]()
    assert get_json_schema(instance.send)["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "to": {"type": "object", "description": "Where to."},
            "sizes": {"type": "array", "items": {"type": "number"}, "description": "In cm."},
            "kind": {"type": "string", "enum": ["a", "b"], "description": "kind"},
            "note": {"type": "string", "nullable": True, "description": "note"},
        },
        "required": ["to", "sizes", "kind"],
    }


def test_rows_are_in_pool_order_whatever_is_held_out() -> None:
    pool = load_pool(PoolConfig(toolworld=ToolWorldConfig(environments=3, tasks=4, held_out_tasks=0.5)))
    rows = dataset_of(pool)
    assert rows["task_id"][:] == list(pool.keys)
    assert rows["environment"][:] == [task.env_id for task in pool.tasks]
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert rows[0]["prompt"][1]["content"] == pool.tasks[0].prompt


@pytest.mark.parametrize(
    "name",
    [
        "toolworld",
        pytest.param("bfcl", marks=pytest.mark.bfcl),
        pytest.param("envscaler", marks=pytest.mark.data),
    ],
)
def test_nothing_of_verifier_gold_or_state_is_shown(
    name: str, workers: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = _whole_pool(name)
    factories = environment_factories(pool, workers, TrainConfig())
    shown = {key: json.dumps(factory()._shown) for key, factory in factories.items()}
    rows = dataset_of(pool)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer = load_tokenizer(ModelConfig(kind="language_model", path="tiny"))
    assert sum(bool(_secrets(task)) for task in pool.tasks) == len(pool.tasks)
    for task, row in zip(pool.tasks, rows, strict=True):
        prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        seen = prompt + shown[row["environment"]] + shown[row["environment"]].encode().decode("unicode_escape", "ignore")
        for secret in _secrets(task):
            assert secret not in seen, (task.key, secret)


def _whole_pool(name: str) -> Pool:
    if name == "bfcl":
        pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed")
    if name == "envscaler":
        folder = os.environ.get("ENVSCHED_DATA")
        if not folder:
            pytest.skip("ENVSCHED_DATA is not set")
        return Pool.load(Path(folder) / "envscaler")
    return Pool.load(name)


def _secrets(task: Task) -> list[str]:
    """All that must not be shown, where it is long enough to be told from chance."""
    gold = task.ground_truth if isinstance(task.ground_truth, list) else []
    calls = [call for turn in gold for call in (turn if isinstance(turn, list) else [turn])]
    secrets = [check.code for check in task.verifier.checks] + [check.description for check in task.verifier.checks]
    secrets += [call if isinstance(call, str) else json.dumps(call) for call in calls] + [json.dumps(gold)]
    secrets += [json.dumps(task.initial_state), str(task.initial_state)]
    return [secret for secret in secrets if len(secret) > 12]


def test_what_cannot_be_played_is_refused_before_training(workers: WorkerPool) -> None:
    factories = environment_factories(counter_pool("a"), workers, TrainConfig())
    with pytest.raises(PoolError, match=r"environment 'counter': task_id 'counter/b'; expected a task of it"):
        factories["counter"]().reset(task_id="counter/b")
    for environment, said in (
        (replace(COUNTER, env_type="mcp"), r"environment 'counter': env_type 'mcp'; expected python_class or bfcl"),
        (replace(COUNTER, tools=(ADD, ADD)), r"environment 'counter': two tools 'add'; expected different names"),
    ):
        with pytest.raises(PoolError, match=said):
            environment_factories(counter_pool("a", environment=environment), workers, TrainConfig())
    turns = replace(counter_task("a"), info={"turns": [["One."], ["Two."]]})
    clash = Pool(environments=(replace(COUNTER, tools=(tool_schema("end_turn"),)),), tasks=(turns,))
    with pytest.raises(PoolError, match=r"two tools 'end_turn'; expected different names; end_turn is ours"):
        environment_factories(clash, workers, TrainConfig())
    with pytest.raises(ConfigError, match=r"attach_environments\(trainer\): object; expected a trainer with this pool's environments"):
        attach_environments(object())


def test_an_empty_environment_needs_no_factory(workers: WorkerPool) -> None:
    pool = Pool(environments=(COUNTER, Environment(env_id="idle", env_type="mcp")), tasks=(counter_task("a"),))
    factories = environment_factories(pool, workers, TrainConfig())
    assert list(factories) == ["counter"]
    assert isinstance(factories["counter"](), ToolEnvironment)
