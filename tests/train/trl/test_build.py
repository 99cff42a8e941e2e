"""The trainer that a configuration makes: TRL has our settings, and what is impossible is said before anything is loaded."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOConfig

from envsched_gnn.config import Config, load_config
from envsched_gnn.errors import ConfigError
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import RolloutGroup, Selection
from envsched_gnn.schedule import EnvSched
from envsched_gnn.train.memory.machine import machine_of
from envsched_gnn.train.trl.build import arguments_of, build_trainer, check
from envsched_gnn.train.trl.models import load_tokenizer
from envsched_gnn.train.workers import WorkerPool
from tests.train.test_run import tiny_pool

TINY = [
    *("model.kind=language_model", "model.path=tiny", "run.device=cpu", "run.steps=2", "select.batch_size=2", "rollout.num_rollouts=4"),
    *("train.max_completion_tokens=16", "train.micro_batch=4", "train.checkpoint_every=1", "train.warmup_steps=0", "evaluate.samples=3"),
]


def config_of(*settings: str) -> Config:
    return load_config(None, [*TINY, *settings])


def arguments(config: Config, device: str = "cpu", devices: int = 1) -> dict[str, Any]:
    return arguments_of(config, Path("run"), device=torch.device(device), devices=devices, sequence_tokens=5000)


@pytest.fixture(scope="module")
def pool() -> Pool:
    return tiny_pool()


@pytest.fixture(scope="module")
def graph(pool: Pool) -> Any:
    return build_graph(pool)


@pytest.fixture
def scheduler(pool: Pool, graph: Any) -> EnvSched:
    return EnvSched(pool, graph, batch_size=2, seed=0)


def build(config: Config, pool: Pool, scheduler: EnvSched, folder: Path, gib: float = 1000, **more: Any) -> Any:
    with WorkerPool(1, 1024) as workers:
        return build_trainer(config, pool, scheduler, folder, workers=workers, machine=machine_of("cpu", memory_gb=gib), **more)


# ---- settings ----


def test_a_round_on_one_cpu() -> None:
    found = arguments(
        config_of("train.num_iterations=3", "train.schedule=cosine", "train.kl=0.1", "train.scale_rewards=none", "run.seed=7")
    )
    assert found["output_dir"] == "run/trainer"
    assert (found["generation_batch_size"], found["num_generations"]) == (8, 4)
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (4, 2)
    assert (found["num_iterations"], found["max_steps"], found["save_steps"]) == (3, 6, 3)
    assert (found["lr_scheduler_type"], found["beta"], found["scale_rewards"], found["seed"]) == ("cosine", 0.1, "none", 7)
    assert (found["use_cpu"], found["bf16"], found["use_vllm"]) == (True, False, False)
    assert (found["num_generations_eval"], found["per_device_eval_batch_size"]) == (3, 6)
    assert set(found) <= {field.name for field in fields(GRPOConfig)}


def test_a_round_on_eight_gpus() -> None:
    settings = ("select.batch_size=64", "rollout.num_rollouts=8", "train.micro_batch=1", "train.gradient_checkpointing=true")
    found = arguments(config_of(*settings), "cuda", 8)
    assert (found["generation_batch_size"], found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (512, 1, 64)
    assert (found["use_cpu"], found["bf16"], found["activation_checkpointing"]) == (False, True, True)
    assert "fsdp" not in found
    found = arguments(config_of(*settings, "train.shard=true"), "cuda", 8)
    assert found["activation_checkpointing"] is False
    assert found["fsdp"] is True
    assert found["fsdp_config"] == {"version": 2, "activation_checkpointing": True}
    assert set(found) <= {field.name for field in fields(GRPOConfig)}


def test_all_of_a_share_at_once_by_default() -> None:
    found = arguments(config_of("train.micro_batch=0"), devices=2)
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (4, 1)


def test_a_constant_rate_is_warmed_up_too() -> None:
    assert arguments(config_of("train.schedule=constant", "train.warmup_steps=5"))["lr_scheduler_type"] == "constant_with_warmup"


def test_trl_takes_the_settings(pool: Pool, scheduler: EnvSched, tmp_path: Path) -> None:
    settings = (
        "train.loss_type=dr_grpo",
        "train.temperature=0.99",
        "train.top_p=0.9",
        "train.max_turns=5",
        "train.kl=0.2",
        "train.warmup_steps=3",
    )
    trainer = build(config_of(*settings, "train.learning_rate=0.002"), pool, scheduler, tmp_path)
    assert (trainer.loss_type, trainer.temperature, trainer.top_p, trainer.max_tool_calling_iterations) == ("dr_grpo", 0.99, 0.9, 5)
    assert (trainer.beta, trainer.args.learning_rate, trainer.args.warmup_steps, trainer.args.steps_per_generation) == (0.2, 0.002, 3, 2)
    assert trainer.args.remove_unused_columns is False
    assert trainer.args.report_to == []
    assert trainer.ref_model is not None
    assert trainer.train_dataset["task_id"] == list(pool.keys)
    assert set(trainer.environment_factories) == {"s0", "s1", "s2"}


def test_rounds_are_trained_and_kept(pool: Pool, scheduler: EnvSched, tmp_path: Path) -> None:
    """Two rounds, two passes over each, two backward passes a step."""
    rounds: list[tuple[Selection, tuple[RolloutGroup, ...]]] = []
    config = config_of("train.num_iterations=2")
    with WorkerPool(1, 1024) as workers:
        trainer = build_trainer(config, pool, scheduler, tmp_path, workers=workers, on_round=lambda *given: rounds.append(given))
        trainer.train()
    assert trainer.state.global_step == 4
    assert [selection.step for selection, _ in rounds] == [0, 1]
    assert [[len(group.rollouts) for group in groups] for _, groups in rounds] == [[4, 4], [4, 4]]
    assert sorted(path.name for path in (tmp_path / "trainer").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]


# ---- bad input, said before anything is loaded ----


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("train.algorithm=rloo",), r"train\.algorithm = 'rloo': TRL's RLOOTrainer calls no tools\. Set 'grpo'"),
        (("model.kind=pocket",), r"model\.kind = 'pocket': expected 'language_model'"),
        (("train.micro_batch=3",), r"train\.micro_batch = 3: expected a divisor of the 8 rollouts"),
        (("run.device=warp",), r"run\.device = 'warp': not usable here"),
    ],
)
def test_settings_that_cannot_be(settings: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(config_of(*settings))


def test_processes_that_do_not_divide_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"2 x 4 = 8: expected a multiple of the 3 devices\. Change one of them"):
        check(config_of())


def test_a_round_needs_groups_of_two() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.num_rollouts = 1: expected at least 2"):
        config_of("rollout.num_rollouts=1")


@pytest.fixture
def hollow(tmp_path: Path) -> Path:
    """A model's folder without weights: whatever loads it fails."""
    load_tokenizer(config_of().model).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(
        '{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, '
        '"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 32768}'
    )
    return tmp_path / "model"


def refused(config: Config, pool: Pool, scheduler: EnvSched, folder: Path, gib: float = 1000) -> str:
    with pytest.raises(ConfigError) as caught:
        build(config, pool, scheduler, folder, gib)
    assert not (folder / "trainer").exists()
    return str(caught.value)


def test_what_does_not_fit_is_refused_before_the_weights(hollow: Path, pool: Pool, scheduler: EnvSched, tmp_path: Path) -> None:
    says = refused(config_of(f"model.path={hollow}"), pool, scheduler, tmp_path, gib=1)
    assert "does not fit: generating rollouts takes 1.1 GiB of each device, and 0.9 of 1.0 can be used" in says
    says = refused(config_of(f"model.path={hollow}", "train.max_completion_tokens=40000"), pool, scheduler, tmp_path)
    assert "more than the 32,768 positions of the model. Set train.max_completion_tokens = 30000." in says


def test_a_template_without_tools_is_refused_before_the_weights(hollow: Path, pool: Pool, scheduler: EnvSched, tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    says = refused(config_of(f"model.path={hollow}", f"model.chat_template={template}"), pool, scheduler, tmp_path)
    assert "plain.jinja shows no tool calls and results; expected a template with tools" in says


def test_a_model_that_is_not_there(pool: Pool, scheduler: EnvSched, tmp_path: Path) -> None:
    says = refused(config_of("model.path=./nowhere"), pool, scheduler, tmp_path)
    assert says.startswith("model.path = './nowhere': no such folder")


def test_weights_that_are_not_there(hollow: Path, pool: Pool, scheduler: EnvSched, tmp_path: Path) -> None:
    says = refused(config_of(f"model.path={hollow}"), pool, scheduler, tmp_path)
    assert "cannot be loaded" in says


def test_an_engine_that_is_not_installed(pool: Pool, scheduler: EnvSched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsched_gnn.train.trl.colocate.importlib.util.find_spec", lambda name: None)
    says = refused(config_of("vllm.mode=colocate"), pool, scheduler, tmp_path)
    assert says.startswith("vllm.mode = 'colocate': there is no package vllm")
