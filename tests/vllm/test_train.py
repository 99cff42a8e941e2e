"""`envsched train` with a co-located engine, as a user starts it: the pool's environments, the scheduler, TRL and vLLM in one process."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envsched_gnn.pool.manifest import write_manifest
from envsched_gnn.pool.pool import Pool
from tests.train.test_run import tiny_pool
from tests.train.tiny_qwen3 import save_tiny_qwen3

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed; `make test-vllm` installs it"),
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),
]


def train(folder: Path, *settings: str) -> list[dict[str, Any]]:
    """Two rounds with the engine; the lines of metrics.jsonl."""
    given = [*settings, f"run.folder={folder}", "run.name=it", "run.steps=2", "vllm.mode=colocate", "vllm.memory_share=0.1"]
    options = [part for setting in given for part in ("-s", setting)]
    command = [str(Path(sys.executable).parent / "envsched"), "train", "-c", str(ROOT / "configs" / "smollm2.toml"), *options]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_CI_ENV": "1"}  # the latter: no compiling
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=3000, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (folder / "it" / "metrics.jsonl").read_text().splitlines()]
    print([{key: line[key] for key in line if "seconds" in key or "logp" in key or "engine" in key} for line in lines])
    return lines


@pytest.fixture
def pool(tmp_path: Path) -> str:
    """Setting of a pool with short prompts, one of whose tasks is held out."""
    shelves = tiny_pool()
    first, *others = shelves.tasks
    held_out = Pool(environments=shelves.environments, tasks=(replace(first, info={"held_out": True}), *others), source="tiny")
    write_manifest(held_out, tmp_path / "pool", form="jsonl")
    return f"pool.path={tmp_path / 'pool'}"


def test_a_run_with_evaluation(tmp_path: Path, pool: str) -> None:
    settings = (pool, f"model.path={save_tiny_qwen3(tmp_path / 'model')}", "train.max_prompt_tokens=2000", "train.max_completion_tokens=16")
    lines = train(tmp_path, *settings, "evaluate.tasks=1", "evaluate.every=1", "train.gradient_checkpointing=false")
    assert [[line[f"trainer/engine/{told}"] for told in ("wakes", "syncs", "turns", "sleeps")] for line in lines] == [[1, 1, 1, 1]] * 2
    assert max(line["trainer/sampling/sampling_logp_difference/mean"] for line in lines) < 0.01
    evaluations = [json.loads(line) for line in (tmp_path / "it" / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["step"], line["all"]["tasks"], line["all"]["failed"]) for line in evaluations] == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]


@pytest.mark.slow
def test_smollm2(tmp_path: Path, pool: str) -> None:
    """Real weights; the engine holds them in bfloat16."""
    size = ("select.batch_size=1", "train.max_prompt_tokens=1000", "train.max_completion_tokens=128")
    lines = train(tmp_path, pool, *size)
    assert [[line[f"trainer/engine/{told}"] for told in ("wakes", "syncs", "sleeps")] for line in lines] == [[1, 1, 1]] * 2
    assert max(line["trainer/sampling/sampling_logp_difference/mean"] for line in lines) < 0.1
