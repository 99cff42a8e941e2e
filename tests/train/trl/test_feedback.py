"""A rollout that failed changes nothing but its own absence: neither advantages, nor losses, nor gradients of the others."""

import math
import statistics
from dataclasses import dataclass, replace

import pytest
import torch
from transformers import Qwen3ForCausalLM
from trl import RLOOTrainer

from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool.pool import Pool
from envsched_gnn.schedule import EnvSched
from envsched_gnn.train.trl import feedback
from envsched_gnn.train.trl.environments import attach_environments, dataset_of, environment_factories, environment_reward
from envsched_gnn.train.trl.feedback import Report
from envsched_gnn.train.trl.models import load_model
from envsched_gnn.train.workers import WorkerPool
from tests.train.test_run import tiny_pool
from tests.train.trl import helpers as tiny
from tests.train.trl.helpers import ScheduledGRPO, ScheduledRLOO

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
FAILED = math.nan
REWARDS = [1.0, 0.0, 0.5, FAILED, 1.0, 1.0, 1.0, 1.0, FAILED, FAILED, FAILED, 0.25, FAILED, FAILED, FAILED, FAILED]
"""Four groups of four: one lacks a rollout, one has no variance, one has a single rollout left, one has none."""
DOWN = [row for row, reward in enumerate(REWARDS) if math.isnan(reward)]
LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
PER_TOKEN = {"bnpo", "dapo", "cispo", "vespo"}
"""Losses that divide by tokens; the others divide by rows, failed ones included, as TRL does for truncated completions."""


class KeepingGRPO(ScheduledGRPO):
    """Keeps the last scored batch."""

    def _generate_and_score_completions(self, inputs):
        self.kept = super()._generate_and_score_completions(inputs)
        return self.kept


class KeepingRLOO(ScheduledRLOO):
    """Keeps the last scored batch."""

    def _generate_and_score_completions(self, inputs):
        self.kept = super()._generate_and_score_completions(inputs)
        return self.kept


def fixed(completion_ids, **_):
    return [None if math.isnan(reward) else reward for reward in REWARDS]


def one_round(folder, kind=KeepingGRPO, reward_funcs=fixed, **changes):
    trainer = tiny.trainer(folder, kind, reward_funcs, **{"max_steps": 1} | changes)
    trainer.train()
    return trainer


def advantages(trainer):
    return trainer.kept["advantages"].tolist()


# ---- advantages ----


def test_group_scaled(tmp_path):
    trainer = one_round(tmp_path)
    assert advantages(trainer) == pytest.approx([0.5 / 0.5001, -0.5 / 0.5001, 0, 0] + [0] * 12)
    assert trainer.kept["completion_mask"].sum(1).bool().tolist() == [row not in DOWN for row in range(16)]
    assert trainer.kept["num_items_in_batch"] == trainer.kept["completion_mask"].sum()


def test_not_scaled(tmp_path):
    assert advantages(one_round(tmp_path, scale_rewards="none")) == [0.5, -0.5, 0, 0] + [0] * 12


def test_batch_scaled(tmp_path):
    deviation = statistics.stdev([reward for reward in REWARDS if not math.isnan(reward)])
    expected = [0.5 / (deviation + 1e-4), -0.5 / (deviation + 1e-4), 0, 0] + [0] * 12
    assert advantages(one_round(tmp_path, scale_rewards="batch")) == pytest.approx(expected, abs=1e-6)


def test_normalised_by_function_and_then_summed(tmp_path):
    """Two functions, the second gives none for a row that the first does give; weights 2 and 1."""
    second = [None, 1.0, 0.0, None, 0.5, 0.0, 0.5, 0.0, None, None, None, 1.0, None, None, None, None]
    funcs = [fixed, lambda completion_ids, **_: second]
    trainer = one_round(
        tmp_path, reward_funcs=funcs, reward_weights=[2.0, 1.0], multi_objective_aggregation="normalize_then_sum", use_vllm=False
    )
    half = math.sqrt(0.5)
    first_group = [2 * 0.5 / 0.5001, -2 * 0.5 / 0.5001 + 0.5 / (half + 1e-4), -0.5 / (half + 1e-4)]
    quarter = 0.25 / (statistics.stdev([0.5, 0.0, 0.5, 0.0]) + 1e-4)
    sums = [*first_group, quarter, -quarter, quarter, -quarter, 0.0]
    expected = [(value - statistics.mean(sums)) / (statistics.stdev(sums) + 1e-4) for value in sums]
    alive = [value for row, value in enumerate(advantages(trainer)) if row not in DOWN]
    assert alive == pytest.approx(expected, abs=1e-5)
    assert [advantages(trainer)[row] for row in DOWN] == [0.0] * 8


@pytest.mark.parametrize("normalised", [False, True])
def test_leave_one_out(tmp_path, normalised):
    trainer = one_round(tmp_path, KeepingRLOO, normalize_advantages=normalised)
    expected = [0.75, -0.75, 0.0, None, 0.0, 0.0, 0.0, 0.0, None, None, None, None, None, None, None, None]
    if normalised:  # over the rows that have an advantage: a lone rollout has none
        alive = [value for value in expected if value is not None]
        expected = [None if value is None else value / (statistics.stdev(alive) + 1e-4) for value in expected]
    assert advantages(trainer) == pytest.approx([value or 0.0 for value in expected], abs=1e-6)
    assert trainer.kept["completion_mask"][DOWN].sum() == 0
    assert trainer.kept["old_logps"][DOWN].tolist() == [0.0] * 8


def test_an_infinite_reward_is_masked_for_the_trainer_and_told_to_the_scheduler(tmp_path):
    scheduler = tiny.scheduler()
    trainer = one_round(tmp_path, reward_funcs=lambda completion_ids, **_: [math.inf, 0.0, 1.0, 0.5] * 4, scheduler=scheduler)
    assert advantages(trainer) == pytest.approx([0, -0.5 / 0.5001, 0.5 / 0.5001, 0] * 4)
    assert trainer.envsched_groups[0].rewards == (math.inf, 0.0, 1.0, 0.5)
    assert scheduler.metrics()["envsched/total/out_of_range"] == 4


def test_a_round_of_failures_only_updates_nothing(tmp_path):
    trainer = one_round(tmp_path, reward_funcs=lambda completion_ids, **_: [None] * 16)
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.state_dict().values(), tiny.model().state_dict().values(), strict=True))
    assert trainer.state.log_history[0]["envsched/total/failed"] == 4


def test_a_round_without_failures_is_handed_on_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(feedback, "mask_rows", None)
    assert one_round(tmp_path, reward_funcs=tiny.share_low).kept["completion_mask"].sum(1).bool().all()


# ---- losses ----


def loss_and_gradient(trainer, batch):
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


def rows_taken(batch, rows):
    return {name: value[rows] if torch.is_tensor(value) and value.dim() else value for name, value in batch.items()}


def with_kl(folder, **changes):
    tiny.model().save_pretrained(folder / "model")
    return {"model": Qwen3ForCausalLM.from_pretrained(folder / "model"), "beta": 0.1, **changes}


@pytest.mark.parametrize("loss_type", LOSSES)
def test_what_a_failed_rollout_says_changes_no_loss(tmp_path, loss_type):
    trainer = one_round(tmp_path, loss_type=loss_type, num_iterations=2, max_steps=2, **with_kl(tmp_path))
    batch = trainer.kept
    assert all(math.isfinite(line["loss"]) for line in trainer.state.log_history[:2])
    assert batch["old_per_token_logps"].shape == batch["ref_per_token_logps"].shape == batch["completion_ids"].shape
    loss, gradient = loss_and_gradient(trainer, batch)
    assert math.isfinite(loss)
    assert gradient.abs().max() > 0
    other = dict(batch, completion_ids=batch["completion_ids"].clone())
    other["completion_ids"][DOWN] = 77
    changed, changed_gradient = loss_and_gradient(trainer, other)
    assert changed == loss
    assert torch.equal(changed_gradient, gradient)
    alive = [row for row in range(16) if row not in DOWN]
    without, gradient_without = loss_and_gradient(trainer, rows_taken(batch, alive))
    share = 1.0 if loss_type in PER_TOKEN else 0.5
    assert loss == pytest.approx(share * without, rel=1e-4, abs=1e-7)
    assert torch.allclose(gradient, share * gradient_without, rtol=1e-3, atol=1e-6)
    check_that_no_ratio_overflows(trainer, batch)


def check_that_no_ratio_overflows(trainer, batch):
    """exp(new - old) of what the policy would hardly have written is infinite, and infinity times a mask of 0 is no number."""
    down = torch.zeros(16, dtype=torch.bool)
    down[5] = True
    batch["old_per_token_logps"][5] = -500.0
    batch["ref_per_token_logps"][5] = 500.0
    feedback.mask_rows(batch, down, lambda tensor: tensor)
    loss, gradient = loss_and_gradient(trainer, batch)
    assert math.isfinite(loss)
    assert gradient.isfinite().all()


def test_what_a_failed_rollout_says_changes_no_loss_of_rloo(tmp_path):
    trainer = one_round(tmp_path, KeepingRLOO, num_iterations=2, max_steps=2, learning_rate=1e-4, **with_kl(tmp_path))
    assert isinstance(trainer, RLOOTrainer)
    loss, gradient = loss_and_gradient(trainer, trainer.kept)
    assert gradient.abs().max() > 0
    alive = [row for row in range(16) if row not in DOWN]
    without, gradient_without = loss_and_gradient(trainer, rows_taken(trainer.kept, alive))
    assert loss == pytest.approx(0.5 * without, rel=1e-4, abs=1e-7)
    assert torch.allclose(gradient, 0.5 * gradient_without, rtol=1e-3, atol=1e-6)


# ---- statuses ----


def scripted_rollouts(prompts, trainer):
    """Completions of 2 to 6 tokens; in each group the second rollout ran out of time, the third out of its budget, the fourth is cut."""
    ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    said = [[60 + k, *[70] * (row % 3), 1] if k < 3 else [80] * 6 for row, k in ((row, row % 4) for row in range(len(prompts)))]
    spoken = {row["prompt"] for row in trainer.envsched_inputs}
    assert spoken == set(prompts)
    statuses = ["ok", "timeout", "tool_budget", "ok"] * (len(prompts) // 4)
    return {"prompt_ids": ids, "completion_ids": said, "logprobs": [[-1.0] * len(tokens) for tokens in said], "envsched_status": statuses}


def test_statuses_of_a_rollout_function_mask_rewards_that_it_gave_all_the_same(tmp_path):
    rewards = [1.0, 0.9, 0.0, 0.5] * 4
    trainer = one_round(tmp_path, reward_funcs=lambda completion_ids, **_: rewards, rollout_func=scripted_rollouts, scale_rewards="none")
    for group in trainer.envsched_groups:
        assert [rollout.status for rollout in group.rollouts] == ["ok", "timeout", "tool_budget", "truncated"]
        assert group.rewards == (1.0, None, 0.0, 0.5)
    assert [rollout.tokens for rollout in trainer.envsched_groups[0].rollouts] == [2, 3, 4, 6]
    assert advantages(trainer) == [0.5, 0.0, -0.5, 0.0] * 4
    assert trainer.kept["completion_mask"].sum(1).tolist() == [2, 0, 4, 6, 3, 0, 2, 6, 4, 0, 3, 6, 2, 0, 4, 6]
    assert trainer.kept["num_items_in_batch"] == 48


@pytest.mark.filterwarnings("ignore:You are using 'environment_factory':UserWarning")
def test_an_environment_that_does_not_start_is_masked_and_its_crash_reported(tmp_path):
    """Real environments in worker processes; the source of one of three raises."""
    shelves = tiny_pool(environments=3, tasks=1)
    broken = replace(shelves.environments[1], source="raise RuntimeError('no such shelf')")
    pool = Pool(environments=(shelves.environments[0], broken, shelves.environments[2]), tasks=shelves.tasks, source="one is broken")
    policy, tokenizer = load_model(ModelConfig(kind="language_model", path="tiny"))
    scheduler = EnvSched(pool, build_graph(pool), batch_size=3)
    with WorkerPool(2, 1024) as workers:
        trainer = KeepingGRPO(
            model=policy,
            args=tiny.config(tmp_path, max_steps=1, per_device_train_batch_size=12),
            processing_class=tokenizer,
            train_dataset=dataset_of(pool),
            reward_funcs=[environment_reward],
            environment_factory=environment_factories(pool, workers, TrainConfig()),
            scheduler=scheduler,
        )
        attach_environments(trainer)
        trainer.train()
    statuses = {group.env_id: {rollout.status for rollout in group.rollouts} for group in trainer.envsched_groups}
    assert statuses["s1"] == {"crashed"}
    assert all("no such shelf" in rollout.detail for group in trainer.envsched_groups if group.env_id == "s1" for rollout in group.rollouts)
    down = [at * 4 + k for at, group in enumerate(trainer.envsched_groups) if group.env_id == "s1" for k in range(4)]
    assert trainer.kept["completion_mask"][down].sum() == 0
    assert scheduler.metrics()["envsched/total/failed"] == 1


@dataclass
class Episode:
    """An environment, as far as a report looks at it."""

    status: str
    detail: str = ""


def test_reports_read_the_row_then_the_environment():
    rows = [{"task_id": "e/a"}, {"task_id": "e/a", "envsched_status": "timeout"}, {"task_id": "e/b"}]
    episodes = [Episode("crashed", "no such shop"), Episode("ok"), Episode("ok")]
    completions = [[5, 1], [5, 6, 7], [5, 6, 7]]
    reports = feedback.reports_of(rows, episodes, completions, limit=3, ends=[1])
    assert reports == [
        Report(task_key="e/a", status="crashed", tokens=2, detail="no such shop"),
        Report(task_key="e/a", status="timeout", tokens=3, cut=True),
        Report(task_key="e/b", status="ok", tokens=3, cut=True),
    ]
    assert [report.status for report in feedback.reports_of(rows, None, completions, limit=4, ends=[1])] == ["ok", "timeout", "ok"]


@pytest.mark.parametrize(
    ("status", "cut", "reward", "expected"),
    [
        ("ok", False, 0.5, ("ok", 0.5)),
        ("ok", True, 0.5, ("truncated", 0.5)),
        ("ok", True, math.nan, ("crashed", None)),
        ("truncated", True, math.nan, ("truncated", None)),
        ("tool_budget", False, 0.25, ("tool_budget", 0.25)),
        ("out_of_memory", False, 0.25, ("out_of_memory", None)),
        ("cancelled", False, math.nan, ("cancelled", None)),
    ],
)
def test_a_rollout_keeps_a_reward_only_under_a_status_that_may_carry_one(status, cut, reward, expected):
    rollout = feedback.rollout_of(reward, Report(task_key="e/a", status=status, tokens=7, cut=cut), 4)
    assert (rollout.status, rollout.reward) == expected
    assert (rollout.tokens, rollout.policy_version) == (7, 4)


def test_rewards_are_the_numbers_that_were_given_not_their_float32_neighbours():
    given = torch.tensor([[0.1, 0.7], [1.0, 1.0], [math.nan, 0.3], [math.nan, math.nan]])
    total = feedback.combined(given, torch.tensor([0.3, 0.7]))
    assert total[:3] == [0.52, 1.0, 0.21]
    assert math.isnan(total[3])
