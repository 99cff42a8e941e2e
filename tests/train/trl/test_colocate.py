"""The engine wakes, gets the weights and sleeps once a round, under TRL's own trainers; `tests/vllm` does the same with a real engine."""

import inspect
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from envsched_gnn.config_training import VllmConfig
from envsched_gnn.errors import ConfigError, EngineError
from envsched_gnn.train.session import explained
from envsched_gnn.train.trl.colocate import RoundEngine, colocate, engine_arguments, round_seed
from tests.train.tiny_qwen3 import save_tiny_qwen3
from tests.train.trl.counting_llm import CountingLLM

ROUND = ["wake weights", "weights", "forget prefixes", "wake kv_cache", "generate", "sleep"]
THREE_TURNS = [*ROUND[:4], "generate", "generate", "generate", "sleep"]
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_qwen3(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL finds an engine where none is installed."""
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "LLM", CountingLLM, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SimpleNamespace, raising=False)


def vowels(completions: list[Any], **_: object) -> list[float]:
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [float(sum(map(text.count, "aeiou"))) + n % 4 for n, text in enumerate(texts)]


def look() -> str:
    """Look around."""
    return "nothing"


def trainer_of(model: Path, folder: Path, *, kind: str = "grpo", sleep: bool = True, peft: Any = None, **settings: Any) -> Any:
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 300,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 5,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 1024,
        "vllm_enable_sleep_mode": sleep,
    } | settings
    tools = [look] if CountingLLM.opening else None
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"task {n}"}] for n in range(8)]})
    if kind == "rloo":
        trainer = RLOOTrainer(model=str(model), reward_funcs=vowels, args=RLOOConfig(**given), train_dataset=rows)
    else:
        trainer = GRPOTrainer(
            model=str(model), reward_funcs=vowels, args=GRPOConfig(**given), train_dataset=rows, tools=tools, peft_config=peft
        )
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):  # for a real engine; the next trainer would read them
        os.environ.pop(name, None)
    return trainer


def calls_of(trainer: Any) -> list[str]:
    return trainer.vllm_generation.llm.calls


def logged(trainer: Any, name: str) -> list[float]:
    return [line[name] for line in trainer.state.log_history if name in line]


@pytest.fixture
def tool_turns(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """Every rollout calls a tool twice, so that a round has three turns."""
    from transformers import AutoTokenizer

    monkeypatch.setattr(CountingLLM, "opening", tuple(AutoTokenizer.from_pretrained(model).encode(CALL)))


@pytest.mark.usefixtures("tool_turns")
def test_once_a_round_in_a_loop_of_three_turns(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path)
    engine = colocate(trainer)
    trainer.train()
    assert calls_of(trainer) == ["sleep", *THREE_TURNS, *THREE_TURNS]  # the first: TRL's, when the engine was made
    assert (engine.counts.wakes, engine.counts.syncs, engine.counts.turns, engine.counts.sleeps) == (2, 2, 6, 2)
    assert logged(trainer, "engine/wakes") == logged(trainer, "engine/syncs") == logged(trainer, "engine/sleeps") == [1, 1]
    assert logged(trainer, "engine/turns") == [3, 3]
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4


@pytest.mark.usefixtures("tool_turns")
def test_trl_alone_sleeps_and_takes_weights_at_every_turn(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path)
    trainer.train()
    assert [calls_of(trainer).count(call) for call in ("weights", "sleep", "wake kv_cache")] == [6, 7, 6]


@pytest.mark.usefixtures("tool_turns")
def test_an_engine_that_cannot_sleep_is_told_as_often(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingLLM, "device", "cpu")
    trainer = trainer_of(model, tmp_path, sleep=False)
    engine = colocate(trainer)
    trainer.train()
    assert calls_of(trainer) == 2 * ["weights", "forget prefixes", "generate", "generate", "generate"]
    assert (engine.counts.wakes, engine.counts.syncs, engine.counts.turns, engine.counts.sleeps) == (2, 2, 6, 2)
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"max_steps": 4, "num_iterations": 2}, 2),
        ({"max_steps": 2, "gradient_accumulation_steps": 2}, 2),
        ({"max_steps": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 1}, 4),
    ],
)
def test_iterations_and_accumulation(model: Path, tmp_path: Path, kind: str, settings: dict[str, int], rounds: int) -> None:
    trainer = trainer_of(model, tmp_path, kind=kind, **settings)
    colocate(trainer)
    trainer.train()
    assert calls_of(trainer) == ["sleep", *ROUND * rounds]


@pytest.mark.parametrize("peft", [None, LoraConfig(r=4, target_modules=["q_proj", "v_proj"])])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_round_samples_from_the_trainers_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peft: Any, device: str
) -> None:
    monkeypatch.setattr(CountingLLM, "device", device)
    trainer = trainer_of(model, tmp_path, peft=peft, sleep=device == "cuda", max_steps=3, learning_rate=0.05)
    colocate(trainer)
    trainer.train()
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4


def test_weights_that_are_never_handed_over_show(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundEngine, "_sync", lambda _: None)
    trainer = trainer_of(model, tmp_path, sleep=False, max_steps=3, learning_rate=0.05)
    colocate(trainer)
    trainer.train()
    first, second, third = logged(trainer, "sampling/sampling_logp_difference/mean")
    assert first < 1e-4
    assert min(second, third) > 0.1


def test_evaluation_after_sleep_gets_the_weights_and_draws_alike_at_all_steps(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path, per_device_eval_batch_size=4, num_generations_eval=2)
    engine = colocate(trainer)
    rows = trainer.train_dataset.select(range(4))  # two batches
    trainer.evaluate(eval_dataset=rows)
    trainer.train()
    figures = trainer.evaluate(eval_dataset=rows)
    assert calls_of(trainer) == ["sleep", *ROUND * 6]
    assert engine.counts.syncs == 6
    assert figures["eval_sampling/sampling_logp_difference/max"] < 1e-4
    first, second, *train, third, fourth = trainer.vllm_generation.llm.seeds
    assert (first, second) == (third, fourth)
    assert len({first, second, *train}) == 4


def test_generating_outside_a_round_is_a_round_and_several_calls_may_share_one(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path)
    engine = colocate(trainer)
    trainer.vllm_generation.sync_weights()  # nothing to do: a round begins with it
    _, ids, _, _ = trainer.vllm_generation.generate(prompts=[[65, 66]], images=None, num_generations=1)
    assert 1 <= len(ids[0]) <= 4
    with engine.round():
        for _ in range(2):
            trainer.vllm_generation.generate(prompts=[[65, 66]], images=None, num_generations=1)
    assert calls_of(trainer) == ["sleep", *ROUND, *ROUND[:4], "generate", "generate", "sleep"]


def test_an_engine_that_dies_names_the_round_and_the_cure_and_the_run_goes_on_as_if_it_had_not(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(name: str) -> dict[str, Any]:
        return {"folder": tmp_path / name, "max_steps": 4, "save_strategy": "steps", "save_steps": 1}

    whole = trainer_of(model, **settings("whole"))
    colocate(whole)
    whole.train()

    monkeypatch.setattr(CountingLLM, "dies_at", 3)
    broken = trainer_of(model, **settings("broken"))
    colocate(broken)
    with pytest.raises(EngineError) as failure, explained(tmp_path):
        broken.train()
    assert "RuntimeError: the engine core stopped\nand left a long trace" in (tmp_path / "error.txt").read_text()
    assert str(failure.value) == (
        "vLLM in the round of optimiser step 2: RuntimeError at 'generate': the engine core stopped; expected an engine that answers. "
        "Give the same command again: it goes on from the last checkpoint."
    )
    assert sorted(path.name for path in (tmp_path / "broken").glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    with pytest.raises(EngineError, match="failed in an earlier round"):
        broken.vllm_generation.generate(prompts=[[65, 66]], images=None, num_generations=1)
    assert calls_of(broken)[-1] == "generate"  # nothing more was asked of it

    monkeypatch.setattr(CountingLLM, "dies_at", 0)
    resumed = trainer_of(model, **settings("broken"))
    colocate(resumed)
    resumed.train(resume_from_checkpoint=True)
    assert logged(resumed, "reward")[2:] == logged(whole, "reward")[2:]
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_lack_of_memory_keeps_its_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingLLM, "dies_at", 1)
    monkeypatch.setattr(CountingLLM, "dies_of", torch.OutOfMemoryError)
    trainer = trainer_of(model, tmp_path)
    colocate(trainer)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train()
    assert calls_of(trainer)[-1] == "generate"


def test_an_error_of_a_users_code_leaves_a_working_engine_asleep(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path)
    engine = colocate(trainer)

    def fail() -> None:
        with engine.round():
            trainer.vllm_generation.generate(prompts=[[65, 66]], images=None, num_generations=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert calls_of(trainer) == ["sleep", *ROUND]
    trainer.train()
    assert calls_of(trainer) == ["sleep", *ROUND * 3]


def test_sampling_follows_the_runs_seed(model: Path, tmp_path: Path) -> None:
    def sample(seed: int, draws: int = 0, taken_over: bool = True) -> list[list[int]]:
        trainer = trainer_of(model, tmp_path, seed=seed)
        if taken_over:
            colocate(trainer)
        torch.rand(draws)  # the trainer's use of its generator does not change what is sampled
        return trainer.vllm_generation.generate(prompts=[[65, 66], [65, 66]], images=None, num_generations=1)[1]

    assert sample(5) == sample(5, draws=7) != sample(6)
    assert sample(5)[0] != sample(5)[1]
    assert sample(5, taken_over=False) == sample(6, taken_over=False)  # TRL alone: the same in all runs


def test_the_trainers_generators_are_its_own(model: Path, tmp_path: Path) -> None:
    def draw(seed: int, generate: bool) -> list[float]:
        trainer = trainer_of(model, tmp_path, seed=seed)
        colocate(trainer)
        if generate:
            trainer.vllm_generation.generate(prompts=[[65, 66]], images=None, num_generations=1)
        return torch.rand(3).tolist()

    assert draw(5, generate=True) == draw(5, generate=False) != draw(6, generate=False)


def test_round_seeds_differ_by_run_rank_step_mode_and_place() -> None:
    seeds = [
        round_seed(seed, group, step, training, nth)
        for seed in (0, 1)
        for group in (0, 1)
        for step in (0, 1)
        for training in (False, True)
        for nth in (1, 2)
    ]
    assert len(set(seeds)) == 32
    assert round_seed(0, 0, 0, True, 1) == 2610853492


def test_arguments_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_arguments(VllmConfig(), max_model_length=99, device="cpu") == {"use_vllm": False}
    with pytest.raises(ConfigError, match=r"there is no package vllm; expected an installed engine\. pip install 'envsched-gnn\[vllm\]'"):
        engine_arguments(VllmConfig(mode="colocate"), max_model_length=99, device="cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    given = engine_arguments(VllmConfig(mode="colocate"), max_model_length=99, device="cuda")
    assert given == {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_tensor_parallel_size": 1,
        "vllm_max_model_length": 99,
        "vllm_enable_sleep_mode": True,
    }
    assert not engine_arguments(VllmConfig(mode="colocate"), max_model_length=99, device="cpu")["vllm_enable_sleep_mode"]
    assert (
        engine_arguments(VllmConfig(mode="colocate", max_model_length=7), max_model_length=99, device="cpu")["vllm_max_model_length"] == 7
    )


def test_a_trainer_without_an_engine_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use_vllm=False; expected an engine inside the trainer's process"):
        colocate(trainer_of(model, tmp_path, use_vllm=False))


@pytest.mark.parametrize("kind", [GRPOTrainer, RLOOTrainer])
def test_the_parts_of_trl_that_are_taken_over_are_as_they_were(kind: type) -> None:
    assert list(inspect.signature(kind._generate).parameters) == ["self", "prompts"]
    assert list(inspect.signature(VLLMGeneration.generate).parameters) == ["self", "prompts", "images", "num_generations", "profiler"]
    assert list(inspect.signature(VLLMGeneration.sync_weights).parameters) == ["self"]
    assert list(inspect.signature(VLLMGeneration._iter_named_params).parameters) == ["self"]
    assert list(inspect.signature(vllm_generation.empty_cache).parameters) == []
    assert "self._last_loaded_step = self.state.global_step" in inspect.getsource(kind._generate_single_turn)
    for part in ("enable_sleep_mode", "tensor_parallel_size", "llm"):
        assert f"self.{part}" in inspect.getsource(VLLMGeneration)
