"""Pools as TRL environments: episodes and statuses in the trainer's own tool loop, with a policy that speaks from a script."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.errors import EnvSchedError
from envsched_gnn.pool import Pool
from envsched_gnn.records import Check, Timeouts, Verifier
from envsched_gnn.train.workers import WorkerPool
from tests.train.counter import ADD, COUNTER, call, counter_pool, counter_task, tool_schema

pytest.importorskip("trl", reason="the extra rl is not installed")

from envsched_gnn.train.trl.environments import attach_environments, dataset_of, environment_factories, environment_name, environment_reward
from envsched_gnn.train.trl.models import load_model

Say = dict[str, list[str]]


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    with WorkerPool(2, memory_mb=400) as pool:
        yield pool


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        yield load_model(ModelConfig(kind="language_model", path="tiny"))


Build = Callable[..., Any]


@pytest.fixture
def build(policy: tuple[Any, Any], workers: WorkerPool, tmp_path: Path) -> Build:
    """A GRPOTrainer over the tasks of a pool, attached; with a script {task key: messages}, it generates those messages."""
    from trl import GRPOConfig, GRPOTrainer

    def build(
        pool: Pool, script: Say | None = None, *, tokens: int = 2000, turns: int = 10, budget: int = 3, on: WorkerPool = workers
    ) -> Any:
        model, tokenizer = policy
        arguments = GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            per_device_train_batch_size=2,
            num_generations=2,
            max_steps=1,
            max_completion_length=tokens,
            max_tool_calling_iterations=turns,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model,
            args=arguments,
            processing_class=tokenizer,
            train_dataset=dataset_of(pool),
            environment_factory=environment_factories(pool, on, TrainConfig(tool_error_budget=budget)),
            reward_funcs=[environment_reward],
        )
        attach_environments(trainer)
        if script is not None:
            trainer._generate_single_turn = lambda prompt_ids, *_, **__: ([_speak(tokenizer, script, ids) for ids in prompt_ids], None)
        return trainer

    return build


def _speak(tokenizer: Any, script: Say, prompt: list[int]) -> list[int]:
    """The next message of the task whose key stands in the prompt in brackets; one that ends with ... lacks its end."""
    text = tokenizer.decode(prompt)
    key = next(key for key in script if f"[{key}]" in text)
    said = script[key][text.count("<|im_start|>assistant") - 1]
    ids: list[int] = tokenizer(said)["input_ids"]
    return ids if said.endswith("...") else [*ids, tokenizer.eos_token_id]


def _round(trainer: Any, copies: int = 1) -> list[Any]:
    """One generation round over all rows; the environments, as the trainer leaves them."""
    rows = [dict(row) for row in trainer.train_dataset for _ in range(copies)]
    rows += [dict(rows[-1]) for _ in range(len(rows) % 2)]
    trainer._generate_and_score_completions(rows)
    return list(trainer.environments)


def _rewards(environments: list[Any]) -> list[float | None]:
    return asyncio.run(environment_reward(environments))


def test_an_episode_in_the_trainers_own_loop(build: Build) -> None:
    script = {
        "counter/done": [call("add", k=1) + call("add", k=3), "Done."],
        "counter/half": [call("add", k=1), call("add", k=1), "Done."],
        "counter/idle": ["I would rather not."],
        "counter/zero": [call("add", k=4) + call("reset"), "Done."],
    }
    environments = _round(build(counter_pool("done", "half", "idle", "zero"), script))
    assert [environment.status for environment in environments] == ["ok"] * 4
    assert _rewards(environments) == [1.0, 0.5, 0.0, 0.0]


def test_what_the_policy_reads(build: Build) -> None:
    trainer = build(counter_pool("a"), {"counter/a": [call("add", k=2) + call("add", k=-1), "Done."]})
    seen: list[str] = []
    speak = trainer._generate_single_turn
    trainer._generate_single_turn = lambda ids, *_, **__: [seen.extend(trainer._tokenizer.batch_decode(ids)), speak(ids)][1]  # type: ignore[func-returns-value]
    _round(trainer)
    first, later = seen[0], seen[2]
    assert first.startswith("<|im_start|>system\nA counter.\n\nRules:\n- Only up.\n\n# Tools")
    assert first.endswith("<|im_start|>user\nMake it 4 [counter/a].<|im_end|>\n<|im_start|>assistant\n")
    assert [json.loads(line) for line in first.split("<tools>\n")[1].split("\n</tools>")[0].split("\n")] == list(COUNTER.tools)
    results = "<tool_response>\n{'n': 2}\n</tool_response>\n<tool_response>\nValueError: k must not be negative\n</tool_response>"
    assert results in later


def test_statuses(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    script = {
        "counter/budget": [call("add", k=2), call("add", k=-1) + call("fly"), call("add", k="x"), "Sorry."],
        "counter/crash": [call("add", k=4) + call("leave"), "Done."],
        "counter/cut": [call("add", k=4), "It is now..."],
        "counter/limit": [call("add", k=1), call("add", k=1) * 3, call("add", k=1), "Done."],
        "counter/pending": [call("add", k=1)] * 5,
        "counter/hang": [call("hang"), "Done."],
    }
    environments = _round(build(counter_pool(*(key.removeprefix("counter/") for key in script)), script, turns=4))
    found = dict(zip(script, environments, strict=True))
    assert {key.removeprefix("counter/"): environment.status for key, environment in found.items()} == {
        "budget": "tool_budget",
        "crash": "crashed",
        "cut": "truncated",
        "limit": "truncated",
        "pending": "truncated",
        "hang": "timeout",
    }
    assert _rewards(environments) == [0.5, None, None, None, None, None]
    assert not caplog.records, "rollouts without reward are nothing to warn of"
    assert found["counter/budget"].detail.startswith("3 tool errors; the last: TypeError: ")
    assert found["counter/crash"].detail == "the process ended with exit code 1 during step"
    assert found["counter/hang"].detail == "step took longer than 1 s"
    assert found["counter/limit"].detail == "The limit of 4 calls is reached."
    assert found["counter/pending"].detail.startswith("the limit of tokens or turns was reached before")
    assert found["counter/cut"].detail == "the limit of tokens was reached in the midst of a message"


def test_hanging_environments_hold_the_batch_for_one_timeout(build: Build) -> None:
    script = {"counter/hang": [call("hang"), "Done."], "counter/quick": [call("add", k=4), "Done."]}
    trainer = build(counter_pool("hang", "quick"), script)
    began = time.monotonic()
    environments = _round(trainer, copies=8)
    assert time.monotonic() - began < 5  # one after the other: over 8
    assert [environment.status for environment in environments] == ["timeout"] * 8 + ["ok"] * 8
    assert _rewards(environments) == [None] * 8 + [1.0] * 8


def test_an_environment_that_hangs_when_scored_does_too(build: Build) -> None:
    slow = replace(COUNTER, timeouts=Timeouts(score=1.0))
    check = Check(code="import time\ndef check_func(s):\n    time.sleep(60)")
    pool = Pool(environments=(slow,), tasks=(replace(counter_task("a"), verifier=Verifier(checks=(check,))),))
    trainer = build(pool, {"counter/a": ["Done."]})
    began = time.monotonic()
    environments = _round(trainer, copies=8)
    assert time.monotonic() - began < 5
    assert [environment.status for environment in environments] == ["timeout"] * 8


def test_rounds_follow_each_other_and_leave_no_process(build: Build) -> None:
    script = {"counter/a": [call("add", k=1), "Done."], "counter/b": [call("leave"), "Done."]}
    with WorkerPool(2, memory_mb=400) as workers:
        trainer = build(counter_pool("a", "b"), script, on=workers)
        for _ in range(3):
            assert _rewards(_round(trainer, copies=2)) == [0.25, 0.25, None, None]
        assert trainer.environments[0] is trainer._environment_pool["counter"][0]
        pids = [worker.pid for worker in workers._all]
        assert len(pids) == 2  # two were left in each round
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_workers_that_do_not_start_end_the_training(build: Build) -> None:
    workers = WorkerPool(2)
    trainer = build(counter_pool("a"), {"counter/a": [call("add", k=1), "Done."]}, on=workers)
    workers.close()
    with pytest.raises(EnvSchedError, match="the worker pool is closed"):
        _round(trainer)


def test_training_with_a_policy_that_only_babbles(build: Build) -> None:
    trainer = build(counter_pool("a", "b"), tokens=8)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.global_step == 1
    assert {environment.status for environment in trainer.environments} <= {"ok", "truncated"}
    assert all(weight.equal(before[name]) for name, weight in trainer.model.named_parameters())  # equal or masked rewards teach nothing


def test_any_name_will_do_for_a_tool(build: Build) -> None:
    odd = ("file-system.read", "status", "get_reward", "_begin", "class", "__init__")
    environment = replace(COUNTER, tools=(ADD, *map(tool_schema, odd)), max_turns=40)
    script = {"counter/a": [call("add", k=4), *(call(name) for name in odd), "Done."]}
    trainer = build(counter_pool("a", environment=environment), script, budget=6)
    (instance, _) = _round(trainer)
    assert set(trainer._async_tool_dicts[0]) == {"add", *odd}
    assert (instance.status, instance.detail[:13]) == ("tool_budget", "6 tool errors"), "the class has no such methods"


@pytest.mark.bfcl
def test_a_task_of_several_turns(build: Build) -> None:
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed")
    from envsched_gnn.pool.bfcl import gold_calls, read_bfcl

    whole = read_bfcl(graded=True)
    task = whole.tasks[whole.index_of["GorillaFileSystem+TwitterAPI/multi_turn_miss_func_0"]]
    world = whole.environment_of[task.env_id]
    assert environment_name(task) == f"{task.env_id} without {task.info['withheld_tools'][0]}"
    marked = replace(task, info={**task.info, "turns": [[f"[{task.key}]", *task.info["turns"][0]], *task.info["turns"][1:]]})
    pool = Pool(environments=(world,), tasks=(marked,))
    turns = ["".join(call(gold["name"], **gold["arguments"]) for gold in turn) + call("end_turn") for turn in gold_calls(task, world)]
    trainer = build(pool, {task.key: [*turns, "Done."]}, tokens=30_000)
    (late,) = task.info["withheld_tools"]
    assert late not in {tool["function"]["name"] for tool in trainer._env_tools[environment_name(task)]}
    environments = _round(trainer)
    assert [environment.status for environment in environments] == ["ok", "ok"]
    assert _rewards(environments) == [1.0, 1.0]
    heard = [
        message["content"]
        for message in environments[0]._floor.followed[0][1]
        if message["role"] == "tool" and message["name"] == "end_turn"
    ]
    assert [text.split("\nNew tool: ")[0] for text in heard[:-1]] == ["\n".join(turn) for turn in task.info["turns"][1:]]
    assert [json.dumps(late) in text.partition("New tool: ")[2] for text in heard].count(True) == 1
    assert heard[-1] == "The user has nothing more to ask."
