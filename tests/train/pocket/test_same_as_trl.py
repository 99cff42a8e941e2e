"""The pocket engine and TRL's GRPOTrainer make the same rounds and the same updates: same rollouts, same rewards, same weights."""

from pathlib import Path

import pytest
import torch

from envsched_gnn.config import Config, RolloutConfig, RunConfig, SelectConfig
from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import RolloutGroup
from envsched_gnn.schedule import Uniform
from envsched_gnn.train.pocket.engine import PocketEngine
from envsched_gnn.train.pocket.rollout_func import pocket_trainer, rows_of, tokenizer_of
from tests.train.pocket.pools import breaking, toolworld

POOL = toolworld()
GRAPH = build_graph(POOL)
ROUNDS = 3
RATE = 3e-4

Told = tuple[list[list[RolloutGroup]], list[torch.Tensor]]
"""Groups of each round in rank order; all weights before the first round and after each."""


def config(own_tools: bool = False, **train) -> Config:
    settings = {"learning_rate": RATE, "warmup_steps": 0, "max_completion_tokens": 16, "temperature": 1.2} | train
    return Config(
        model=ModelConfig(hidden_size=32, layers=1, own_tools=own_tools, warm_start_batches=100, warm_start_reward=0.6),
        train=TrainConfig(**settings),
        rollout=RolloutConfig(num_rollouts=4, workers=1),
        select=SelectConfig(batch_size=8),
        run=RunConfig(steps=ROUNDS, seed=3, device="cpu"),
    )


def engine_of(config: Config, cache: Path, pool: Pool) -> PocketEngine:
    """Taught on the sound pool, whatever it plays in."""
    engine = PocketEngine(POOL, config.model, config.train, config.rollout, config.run.seed, cache=cache)
    engine.pool = engine._player._pool = pool
    return engine


def weights(engine: PocketEngine) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in engine.model.parameters()]).clone()


def by_engine(config: Config, cache: Path, pool: Pool) -> Told:
    groups, states, scheduler = [], [], Uniform(None, GRAPH, batch_size=8, seed=0)
    with engine_of(config, cache, pool) as engine:
        for step in range(ROUNDS):
            states.append(weights(engine))
            chosen = scheduler.select(step)
            played = {group.group_id: group for group in engine.rollout(chosen)}
            groups.append([played[group_id] for group_id in chosen.group_ids])
            scheduler.observe(groups[-1])
        return groups, [*states, weights(engine)]


def by_trl(config: Config, cache: Path, pool: Pool, folder: Path) -> Told:
    groups, states = [], []
    with engine_of(config, cache, pool) as engine:

        def on_round(selection, told) -> None:
            groups.append(list(told))
            states.append(weights(engine))

        pocket_trainer(config, engine, Uniform(None, GRAPH, batch_size=8, seed=0), folder, on_round=on_round).train()
        return groups, [*states, weights(engine)]


def seen(groups):
    return [[(g.group_id, [(r.reward, r.status, r.tokens) for r in g.rollouts]) for g in round_] for round_ in groups]


def telling(groups) -> list[int]:
    """Groups with variance in each round."""
    return [sum(len({reward for reward in group.rewards if reward is not None}) > 1 for group in round_) for round_ in groups]


def assert_same(ours: Told, trl: Told) -> None:
    assert seen(ours[0]) == seen(trl[0])
    assert (ours[1][-1] - ours[1][0]).abs().max() > RATE
    for mine, theirs in zip(ours[1], trl[1], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "train",
    [
        {"loss_type": "grpo", "scale_rewards": "group"},
        {"loss_type": "grpo", "scale_rewards": "none", "num_iterations": 2},
        {"loss_type": "dapo", "scale_rewards": "group", "num_iterations": 2, "warmup_steps": 2},
        {"loss_type": "dapo", "scale_rewards": "none", "micro_batch": 8},
        {"loss_type": "dr_grpo", "scale_rewards": "group"},
        {"loss_type": "dr_grpo", "scale_rewards": "none", "micro_batch": 16},
    ],
)
def test_rounds_end_with_the_same_weights(train, cache, tmp_path):
    settings = config(**train)
    ours = by_engine(settings, cache, POOL)
    assert_same(ours, by_trl(settings, cache, POOL, tmp_path))


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_masked_rollouts_are_masked_alike(loss_type, cache, tmp_path):
    pool, settings = breaking(POOL, "delete_client"), config(loss_type=loss_type)
    ours = by_engine(settings, cache, pool)
    partly = [g for round_ in ours[0] for g in round_ if None in g.rewards and len(set(g.rewards)) > 2]
    print("MASK", telling(ours[0]), len(partly))
    assert partly
    assert {rollout.status for group in partly for rollout in group.rollouts if rollout.reward is None} == {"crashed"}
    assert_same(ours, by_trl(settings, cache, pool, tmp_path))


def test_the_prompts_that_trl_logs_are_the_tokens_that_the_policy_reads(cache):
    with engine_of(config(), cache, POOL) as engine:
        rows, tokenizer = rows_of(POOL, engine.language), tokenizer_of(engine.language)
        assert rows["task_id"] == list(POOL.keys)
        for row in range(len(POOL.tasks)):
            assert tokenizer(rows["prompt"][row])["input_ids"] == engine.reading(row).ids
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (
            engine.language.pad,
            engine.language.end,
            engine.language.size,
        )


def test_trl_evaluates_with_the_engine(cache, tmp_path):
    settings = config()
    with engine_of(settings, cache, POOL) as engine:
        trainer = pocket_trainer(settings, engine, Uniform(None, GRAPH, batch_size=8, seed=0), tmp_path)
        held_out = [row for row, task in enumerate(POOL.tasks) if task.held_out][:4]
        before = weights(engine)
        found = [trainer.evaluate(trainer.train_dataset.select(held_out))["eval_reward"] for _ in range(2)]
        assert found[0] == found[1] > 0
        assert trainer.envsched_groups == ()
        assert torch.equal(weights(engine), before)


def test_a_policy_held_to_its_own_tools_is_none_for_trl(cache, tmp_path):
    with engine_of(config(), cache, POOL) as engine, pytest.raises(ConfigError, match=r"model\.own_tools = True: expected false"):
        pocket_trainer(config(own_tools=True), engine, Uniform(None, GRAPH, batch_size=8, seed=0), tmp_path)
