"""Memory plans against the measured peak of a process that trains by GRPO on a CPU: at most a third above it, and 5 % below."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from envsched_gnn.config import load_config
from envsched_gnn.config_training import ModelConfig
from envsched_gnn.pool.load import load_pool
from envsched_gnn.train.memory.machine import machine_of
from envsched_gnn.train.memory.plan import Plan, memory_plan, plan_for
from envsched_gnn.train.trl.models import load_tokenizer
from tests.train.test_run import tiny_pool

ROOT = Path(__file__).parents[3]
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
from envsched_gnn.train.trl.build import build_trainer
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
    prompt, peak = json.loads(output_of(TRAINS, folder, settings))
    plan = memory_plan(load_config(None, [*settings, f"train.max_prompt_tokens={prompt}"]), tiny_pool(), machine_of("cpu"))
    print(f"peak {peak:,} of {plan.update:,} planned, prompts of {prompt} tokens")
    return peak, plan


POCKET = [
    *("pool.toolworld.environments=8", "pool.toolworld.tasks=20", "pool.taught_share=0.2", "model.warm_start_batches=25"),
    *("run.steps=1", "train.max_completion_tokens=96", "evaluate.tasks=0"),
]
PLAYS = """
import resource, sys
from pathlib import Path
from envsched_gnn.config import load_config
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool.load import load_pool
from envsched_gnn.schedule import EnvSched
from envsched_gnn.train.pocket.engine import PocketEngine
config = load_config(None, sys.argv[2:])
pool = load_pool(config.pool)
scheduler = EnvSched(pool, build_graph(pool), batch_size=config.select.batch_size)
with PocketEngine(pool, config.model, config.train, config.rollout, 0, cache=Path(sys.argv[1])) as engine:
    groups = list(engine.rollout(scheduler.select(0)))
assert len(groups) == 64
print("MEASURED", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def output_of(program: str, folder: Path, settings: list[str]) -> str:
    """What a process prints after the word MEASURED."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(folder), *settings], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "MEASURED" in done.stdout, done.stderr
    return done.stdout.partition("MEASURED")[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pocket_model(tmp_path: Path) -> None:
    """Warm start, 64 x 8 plans, one update."""
    peak = int(output_of(PLAYS, tmp_path, POCKET))
    config = load_config(None, POCKET)
    plan = plan_for(config, load_pool(config.pool))
    assert 0.75 * plan.update < peak < 1.05 * plan.update, (peak / plan.update, plan)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checkpointing", ["false", "true"])
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
