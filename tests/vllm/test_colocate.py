"""A real engine on CPUs has the trainer's new weights in every round, with the scheduler beside it; `make test-vllm`.

One engine serves the whole file: it takes 10 seconds and two gigabytes to start. The tests go on from one another, in their order.
"""

import importlib.util
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig, GRPOTrainer

from envsched_gnn.config_training import VllmConfig
from envsched_gnn.errors import EngineError
from envsched_gnn.train.trl.colocate import colocate, engine_arguments
from envsched_gnn.train.trl.mixin import attach
from tests.train.tiny_qwen3 import save_tiny_qwen3
from tests.train.trl import helpers as trl_helpers

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed; `make test-vllm` installs it"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # those of vllm and of what it brings are many, and none of ours
]
FRESH = 0.01
"""Mean difference of log-probabilities between an engine in bfloat16 and a trainer in float32 with the same weights: at most this."""
STALE = 0.1
"""The same with weights of one update before, at the learning rate of these tests: at least this."""


def two_turns(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """A rollout of two turns with an observation between them, which is not the policy's."""
    tokenizer, vllm = trainer.processing_class, trainer.vllm_generation
    given, seen = [tokenizer.encode(prompt) for prompt in prompts], tokenizer.encode(" seen ")
    _, first, before, _ = vllm.generate(prompts=given, images=None, num_generations=1)
    _, second, after, _ = vllm.generate(prompts=[p + a + seen for p, a in zip(given, first, strict=True)], images=None, num_generations=1)
    turns = list(zip(first, second, strict=True))
    return {
        "prompt_ids": given,
        "completion_ids": [a + seen + b for a, b in turns],
        "env_mask": [[1] * len(a) + [0] * len(seen) + [1] * len(b) for a, b in turns],
        "logprobs": [[t[0] for t in a] + [0.0] * len(seen) + [t[0] for t in b] for a, b in zip(before, after, strict=True)],
    }


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """GRPO on two layers of Qwen3, tasks from EnvSched; what it costs is printed (`pytest -s`)."""
    patch = pytest.MonkeyPatch()
    patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    patch.setenv("VLLM_CPU_CI_ENV", "1")  # no compiling: half a minute less
    folder = tmp_path_factory.mktemp("vllm")
    model = save_tiny_qwen3(folder / "model")
    args = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,  # by its old name: vllm holds transformers at a version without the new one
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=8,
        learning_rate=0.05,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=5,
        **engine_arguments(VllmConfig(mode="colocate", memory_share=0.1), max_model_length=128, device="cpu"),
    )
    begin = time.perf_counter()
    made = GRPOTrainer(
        model=str(model), reward_funcs=trl_helpers.share_low, args=args, train_dataset=trl_helpers.rows(), rollout_func=two_turns
    )
    print(f"\nengine and trainer: {time.perf_counter() - begin:.1f} s")
    made.round_engine = colocate(attach(made, trl_helpers.scheduler()))
    yield made
    print(f"\n{made.round_engine.counts}\npeak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    patch.undo()


def differences(trainer: Any) -> list[float]:
    """Train three rounds of two turns; the mean difference of log-probabilities of each round."""
    trainer.state.log_history.clear()
    trainer.train()
    history = [line for line in trainer.state.log_history if "engine/turns" in line]
    print("\n", [(round(line["step_time"], 2), round(line["engine/seconds_sync"], 3)) for line in history], "s a step, s for the weights")
    assert [line["engine/turns"] for line in history] == [2, 2, 2]
    return [line["sampling/sampling_logp_difference/mean"] for line in history]


def test_every_round_has_the_new_weights(trainer: Any) -> None:
    seen = differences(trainer)
    print(seen)
    assert max(seen) < FRESH
    counts = trainer.round_engine.counts
    assert (counts.wakes, counts.syncs, counts.turns, counts.sleeps) == (3, 3, 6, 3)
    assert trainer.envsched_rounds == 3
    assert {rollout.policy_version for group in trainer.envsched_groups for rollout in group.rollouts} == {2}


def test_without_them_the_difference_is_large(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.round_engine, "_sync", lambda: None)
    seen = differences(trainer)
    print(seen)
    assert min(seen) > STALE


def test_one_round_with_the_weights_makes_up_for_it(trainer: Any) -> None:
    assert max(differences(trainer)) < FRESH


def test_sampling_follows_the_seed_of_the_round(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(seed: int) -> list[list[int]]:
        monkeypatch.setattr(trainer.round_engine, "_seed", lambda: seed)
        return trainer.vllm_generation.generate(prompts=[[65, 66], [65, 66]], images=None, num_generations=1)[1]

    assert sample(1) == sample(1) != sample(2)
    assert sample(1)[0] != sample(1)[1]


def test_an_engine_that_is_gone_is_a_clear_error(trainer: Any, tmp_path: Path) -> None:
    trainer.vllm_generation.llm.llm_engine.engine_core.shutdown()
    with pytest.raises(
        EngineError, match=r"vLLM in the round of optimiser step \d+: .+; expected an engine that answers\. Give the same command"
    ):
        trainer.train()
