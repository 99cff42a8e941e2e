"""The pocket engine and TRL's GRPOTrainer make the same rounds and the same updates: same rollouts, same rewards, same weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from envsched_gnn.config import Config, RolloutConfig, RunConfig, SelectConfig
from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, RolloutGroup, Verifier
from envsched_gnn.schedule import Uniform
from envsched_gnn.train.pocket.engine import PocketEngine
from envsched_gnn.train.pocket.rollout_func import pocket_trainer, rows_of, tokenizer_of
from tests.schedule.small import graph_of
from tests.train.pocket.pools import selection, shop

RATE = 3e-4
FIND = {"name": "find_item", "arguments": {"title": "Desk Lamp"}}
SELL = {"name": "sell_item", "arguments": {"item_id": {"$result": 0}}}
OPEN = {"name": "open_door", "arguments": {}}
CHECKS = ("s['opened'] == 1", "len(s['sold']) > 0", "[sale[0] for sale in s['sold']] == ['I-1']")
LESSONS = {"Open the door.": [OPEN], 'Sell "Desk Lamp".': [FIND, SELL], 'Open the door and sell "Desk Lamp".': [OPEN, FIND, SELL]}
TAUGHT, OPEN_TASKS, IMPOSSIBLE = range(3), range(3, 9), range(9, 15)
ROUNDS = (OPEN_TASKS, IMPOSSIBLE, OPEN_TASKS)
"""Rows of each round; nothing varies in the second one."""


def pool_of() -> Pool:
    """Three tasks that teach, six that everyone solves in part, six that nobody solves; one of the four tools ends the process."""
    pool = shop([*LESSONS, *list(LESSONS) * 4])
    sound, never = (
        Verifier(checks=tuple(Check(code=f"def check_func(s):\n    return {c}") for c in checks)) for checks in (CHECKS, ("False",))
    )
    tasks = [replace(task, verifier=never if row in IMPOSSIBLE else sound) for row, task in enumerate(pool.tasks)]
    for row in TAUGHT:
        gold = LESSONS[tasks[row].prompt]
        literal = [{**call, "arguments": {"item_id": "I-1"}} if call is SELL else call for call in gold]
        tasks[row] = replace(tasks[row], ground_truth=literal, info={"taught": True, "held_out": True})
    return replace(pool, tasks=tuple(tasks))


POOL = pool_of()


class Planned(Uniform):
    """Selects what ROUNDS says."""

    def select(self, step, n=None, request_id=None):
        return selection(POOL, step, ROUNDS[step])


def scheduler() -> Planned:
    held_out = [task.held_out for task in POOL.tasks]
    graph = graph_of([0] * 15, task_ids=[task.task_id for task in POOL.tasks], env_ids=["shop"], held_out=held_out)
    return Planned(None, graph, batch_size=6)


def config(own_tools: bool = False, **train) -> Config:
    settings = {"learning_rate": RATE, "warmup_steps": 0, "max_completion_tokens": 12, "temperature": 1.2} | train
    return Config(
        model=ModelConfig(hidden_size=32, layers=1, own_tools=own_tools, warm_start_batches=75, warm_start_reward=1.0),
        train=TrainConfig(**settings),
        rollout=RolloutConfig(num_rollouts=8, workers=1),
        select=SelectConfig(batch_size=6),
        run=RunConfig(steps=len(ROUNDS), seed=3, device="cpu"),
    )


def engine_of(config: Config, cache: Path) -> PocketEngine:
    return PocketEngine(POOL, config.model, config.train, config.rollout, config.run.seed, cache=cache)


def weights(engine: PocketEngine) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in engine.model.parameters()]).clone()


Told = tuple[list[list[RolloutGroup]], list[torch.Tensor], list[float]]
"""Groups of each round in rank order; all weights before the first round and after each; the norm of each gradient."""


def by_engine(config: Config, cache: Path) -> Told:
    groups, states, norms = [], [], []
    with engine_of(config, cache) as engine:
        update = engine._learner._update

        def noted(samples, advantages) -> None:
            update(samples, advantages)
            norms.append(engine._learner.grad_norm)

        engine._learner._update = noted
        for step in range(len(ROUNDS)):
            states.append(weights(engine))
            chosen = scheduler().select(step)
            played = {group.group_id: group for group in engine.rollout(chosen)}
            groups.append([played[group_id] for group_id in chosen.group_ids])
        return groups, [*states, weights(engine)], norms


def by_trl(config: Config, cache: Path, folder: Path) -> Told:
    groups, states = [], []
    with engine_of(config, cache) as engine:

        def on_round(_, told) -> None:
            groups.append(list(told))
            states.append(weights(engine))

        trainer = pocket_trainer(config, engine, scheduler(), folder, on_round=on_round)
        trainer.train()
        norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
        return groups, [*states, weights(engine)], norms


def seen(groups):
    """All but the seconds and the words for a failure."""
    return [[(g.group_id, [(r.reward, r.status, r.tokens) for r in g.rollouts]) for g in round_] for round_ in groups]


def telling(groups: list[RolloutGroup]) -> int:
    """Groups with variance."""
    return sum(len({reward for reward in group.rewards if reward is not None}) > 1 for group in groups)


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
    ids=lambda train: " ".join(map(str, train.values())),
)
def test_rounds_end_with_the_same_weights(train, cache, tmp_path):
    """Some rollouts crash; the second round has no variance, and momentum alone moves the weights."""
    settings = config(**train)
    groups, states, norms = by_engine(settings, cache)
    assert telling(groups[0]) >= 3
    assert telling(groups[1]) == 0
    assert telling(groups[2]) >= 3
    assert sum(None in group.rewards and len(set(group.rewards)) > 2 for group in groups[0]) == 2
    assert {rollout.status for group in groups[0] for rollout in group.rollouts} == {"ok", "truncated", "crashed"}
    told, theirs, same_norms = by_trl(settings, cache, tmp_path)
    assert seen(told) == seen(groups)
    assert (states[-1] - states[0]).abs().max() > RATE
    for mine, other in zip(states, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)
    assert len(norms) == len(ROUNDS) * settings.train.num_iterations
    assert norms == pytest.approx(same_norms, rel=1e-4, abs=1e-7)  # Adam's steps alone would not tell a gradient from its double


def test_the_prompts_that_trl_logs_are_the_tokens_that_the_policy_reads(cache):
    with engine_of(config(), cache) as engine:
        rows, tokenizer = rows_of(POOL, engine.language), tokenizer_of(engine.language)
        assert list(rows["task_id"]) == list(POOL.keys)
        for row in range(len(POOL.tasks)):
            assert tokenizer(rows["prompt"][row])["input_ids"] == engine.reading(row).ids
        language = engine.language
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (language.pad, language.end, language.size)


def test_trl_evaluates_with_the_engine(cache, tmp_path):
    settings = config()
    with engine_of(settings, cache) as engine:
        trainer = pocket_trainer(settings, engine, scheduler(), tmp_path)
        before = weights(engine)
        found = [trainer.evaluate(trainer.train_dataset.select(TAUGHT))["eval_reward"] for _ in range(2)]
        assert found[0] == found[1] > 0
        assert torch.equal(weights(engine), before)
        assert trainer.envsched_groups == ()


def test_a_policy_held_to_its_own_tools_is_none_for_trl(cache, tmp_path):
    with engine_of(config(), cache) as engine, pytest.raises(ConfigError, match=r"model\.own_tools = True: expected false"):
        pocket_trainer(config(own_tools=True), engine, scheduler(), tmp_path)
