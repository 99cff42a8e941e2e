"""Every TOML that we ship parses, names its run after itself, and is one that a trainer can be built from.

The dry run builds all objects of a training run with a tiny random model and a small pool in their place, on a CPU and without vLLM.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from envsched_gnn.config import Config, load_config
from envsched_gnn.config_training import ModelConfig
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool.load import load_pool
from envsched_gnn.schedule import EnvSched

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))
HEADLINE = sorted((CONFIGS[0].parent / "headline").glob("*.toml"))
TRAINING = ("qwen3_1.7b", "qwen3_4b", "qwen3_8b", "qwen3_27b_lora", "reproduction_24gb", "smollm2")
SMALL = ("pool.toolworld.environments=8", "pool.toolworld.tasks=20", "vllm.mode=off", "run.device=cpu")


pool_of = cache(load_pool)


def config_of(name: str, *settings: str) -> Config:
    return load_config(CONFIGS[0].parent / f"{name}.toml", settings)


def test_there_is_one_for_each_pool_and_each_policy() -> None:
    assert {"bfcl", "envscaler", "toolworld", "pocket", *TRAINING} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_parses(path: Path) -> None:
    config = load_config(path)
    assert config.run.name == path.stem
    assert config.run.policy == "envsched"


@pytest.mark.parametrize("path", HEADLINE, ids=lambda path: path.stem)
def test_pools_of_the_headline_experiment_parse_and_hold_a_run(path: Path) -> None:
    config = load_config(path)
    assert (config.run.name, config.run.steps, config.model.kind) == (path.stem, 120, "pocket")
    assert (config.select.batch_size, config.rollout.num_rollouts) == (16, 8)
    pool = pool_of(config.pool)
    trained = {task.env_id for task in pool.tasks if not task.held_out}
    evaluated = [task for task in pool.tasks if task.held_out and not task.taught]
    assert sum(task.taught for task in pool.tasks) > 0
    assert min(sum(task.env_id in trained for task in evaluated), sum(task.env_id not in trained for task in evaluated)) >= 250


@pytest.mark.parametrize("name", TRAINING[:4])
def test_the_large_ones_have_the_published_settings(name: str) -> None:
    config = config_of(name)
    assert (config.select.batch_size, config.rollout.num_rollouts, config.run.steps) == (64, 8, 200)
    t = config.train
    assert (t.learning_rate, t.schedule, t.warmup_steps, t.kl) == (1e-6, "cosine", 10, 0.1)
    assert (t.temperature, t.top_p, t.max_completion_tokens, t.max_turns) == (0.99, 0.99, 32_000, 40)
    assert config.vllm.mode == "colocate"


def test_the_reproduction_is_of_the_size_that_it_says() -> None:
    config = config_of("reproduction_24gb")
    trained = [task for task in pool_of(config.pool).tasks if not task.held_out]
    assert (len(trained), len({task.env_id for task in trained})) == (300, 6)
    assert (config.select.batch_size, config.rollout.num_rollouts, config.run.steps, config.train.max_completion_tokens) == (
        16,
        4,
        40,
        8192,
    )


@pytest.mark.parametrize(
    ("name", "devices", "gib", "settings"),
    [
        ("qwen3_1.7b", 1, 80, ()),
        ("qwen3_4b", 1, 139, ()),
        ("qwen3_4b", 8, 80, ("train.shard=true",)),
        ("qwen3_8b", 8, 80, ()),
        ("qwen3_27b_lora", 8, 139, ()),
        ("reproduction_24gb", 1, 24, ()),
        ("reproduction_24gb", 1, 24, ("model.path=Qwen/Qwen3-1.7B", "model.lora_rank=32", "model.dtype=bfloat16")),
        ("smollm2", 1, 8, ()),
        ("pocket", 1, 4, ()),
    ],
)
def test_it_fits_the_hardware_that_its_comment_names(name: str, devices: int, gib: int, settings: tuple[str, ...]) -> None:
    from envsched_gnn.train.memory.plan import plan_for

    config = config_of(name, *settings)
    plan = plan_for(config, pool_of(config.pool), devices=devices, memory_gb=gib)
    assert plan.fits, plan.problems


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in a folder, for sequences as long as those of the model whose place it takes."""
    from envsched_gnn.train.trl.models import load_model

    folder = tmp_path_factory.mktemp("model")
    model, tokenizer = load_model(ModelConfig(kind="language_model", path="tiny"))
    model.config.max_position_embeddings = 40_960
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", TRAINING)
def test_dry_run(name: str, stand_in: Path, tmp_path: Path) -> None:
    from envsched_gnn.train.memory.machine import machine_of
    from envsched_gnn.train.trl.build import build_trainer
    from envsched_gnn.train.workers import WorkerPool

    config = config_of(name, *SMALL)
    config = replace(config, model=replace(config.model, path=str(stand_in)))
    pool = pool_of(config.pool)
    scheduler = EnvSched(pool, build_graph(pool), seed=config.run.seed, select=config.select, predict=config.predict)
    with WorkerPool(config.rollout.workers, config.rollout.memory_mb) as workers:
        trainer = build_trainer(config, pool, scheduler, tmp_path, workers=workers, machine=machine_of("cpu", memory_gb=1e6))
    args, t = trainer.args, config.train
    assert args.generation_batch_size == config.select.batch_size * config.rollout.num_rollouts
    assert args.num_generations == config.rollout.num_rollouts
    assert args.max_steps == config.run.steps
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == args.generation_batch_size
    assert args.per_device_train_batch_size == 1
    assert (args.learning_rate, args.beta, args.temperature, args.top_p) == (t.learning_rate, t.kl, t.temperature, t.top_p)
    assert (args.max_completion_length, args.max_tool_calling_iterations) == (t.max_completion_tokens, t.max_turns)
    assert args.warmup_steps == t.warmup_steps
    assert args.activation_checkpointing is t.gradient_checkpointing is True
    assert len(trainer.train_dataset) == 160
    trained = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    assert trained == (65_536 if config.model.lora_rank else 106_880)
    assert (trainer.ref_model is not None) == (t.kl > 0 and not config.model.lora_rank)


def test_dry_run_of_the_pocket_policy(tmp_path: Path) -> None:
    from envsched_gnn.train.pocket.engine import PocketEngine

    config = config_of("pocket", *SMALL, "model.warm_start_batches=1")
    pool = pool_of(config.pool)
    scheduler = EnvSched(pool, build_graph(pool), seed=config.run.seed, select=config.select, predict=config.predict)
    assert len(scheduler.select(0).picks) == config.select.batch_size == 64
    with PocketEngine(pool, config.model, config.train, config.rollout, config.run.seed, cache=tmp_path) as engine:
        assert engine.model.num_parameters() < 1_000_000
