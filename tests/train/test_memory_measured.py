"""Memory plans against the measured peak of a process that trains by GRPO on a CPU: at most a third above it, and 5 % below."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from envsched_gnn.config import load_config
from envsched_gnn.config_training import ModelConfig
from envsched_gnn.train.language_models import load_tokenizer
from envsched_gnn.train.machine import machine_of
from envsched_gnn.train.memory import Plan, memory_plan
from tests.train.test_run import tiny_pool

ROOT = Path(__file__).parent.parent.parent
SETTINGS = [
    *("model.kind=language_model", "run.device=cpu", "run.steps=1", "select.batch_size=2", "rollout.num_rollouts=2"),
    *("train.max_completion_tokens=32", "train.checkpoint_every=100", "train.learning_rate=0.001"),
]
TRAINS = """
import json, resource, sys
from pathlib import Path
from envsched_gnn.config import load_config
from envsched_gnn.graph.build import build_graph
from envsched_gnn.schedule import EnvSched
from envsched_gnn.train.build import build_trainer
from envsched_gnn.train.workers import WorkerPool
from tests.train.test_run import tiny_pool
pool, lengths = tiny_pool(), []
scheduler = EnvSched(pool, build_graph(pool), batch_size=2)
with WorkerPool(1, 1024) as workers:
    trainer = build_trainer(load_config(None, sys.argv[2:]), pool, scheduler, Path(sys.argv[1]), workers=workers)
    loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (lengths.append(inputs["prompt_ids"].shape[1]), loss(model, inputs))[1]
    trainer.train()
print("MEASURED", json.dumps([max(lengths), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


def measured(settings: list[str], folder: Path) -> tuple[int, Plan]:
    """Peak bytes of a process that trains, and the plan for its prompts."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRAINS, str(folder), *settings], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "MEASURED" in done.stdout, done.stderr
    prompt, peak = json.loads(done.stdout.partition("MEASURED")[2])
    plan = memory_plan(load_config(None, [*settings, f"train.max_prompt_tokens={prompt}"]), tiny_pool(), machine_of("cpu"))
    print(f"peak {peak:,} of {plan.update:,} planned, prompts of {prompt} tokens")
    return peak, plan


@pytest.mark.parametrize("checkpointing", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_a_model_of_14_million_parameters(checkpointing: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2}
    Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=64, vocab_size=32_000, tie_word_embeddings=True)).save_pretrained(tmp_path / "model")
    load_tokenizer(ModelConfig(kind="language_model", path="tiny")).save_pretrained(tmp_path / "model")
    settings = [*SETTINGS, f"model.path={tmp_path / 'model'}", f"train.gradient_checkpointing={checkpointing}"]
    peak, plan = measured(settings, tmp_path)
    assert plan.parameters == 14_094_336
    assert plan.update > plan.rollout
    assert 0.75 * plan.update < peak < 1.05 * plan.update, (peak / plan.update, plan)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_smollm2(tmp_path: Path) -> None:
    """Two rounds: the optimiser's states come to be in the first update."""
    peak, plan = measured([*SETTINGS, "model.path=smollm2", "run.steps=2"], tmp_path)
    assert 0.75 * plan.update < peak < 1.05 * plan.update, (peak / plan.update, plan)
