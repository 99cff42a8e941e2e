"""`envsched doctor -c CONFIG`: the plan is printed, and the exit code says whether it fits."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envsched_gnn.cli.main import app

CONFIG = """
[pool.toolworld]
environments = 2
tasks = 40

[model]
kind = "language_model"
path = "Qwen/Qwen3-1.7B"

[train]
max_completion_tokens = 8000
max_prompt_tokens = 1000
micro_batch = 1
gradient_checkpointing = true

[vllm]
mode = "colocate"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def doctor(path: Path, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["doctor", "-c", str(path), *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_plan_that_fits(path: Path) -> None:
    code, shown, _ = doctor(path, "--memory-gb", "80")
    assert code == 0
    assert "model.path = 'Qwen/Qwen3-1.7B': 1,720.6 million parameters, 1,720.6 trained (known sizes of Qwen3-1.7B)" in shown
    assert "1 x cuda of 80.0 GiB" in shown
    assert "weights                       6.41      6.41  float32" in shown
    assert shown.endswith("It fits.\n")


def test_a_plan_that_does_not_fit_names_the_cure(path: Path) -> None:
    code, shown, _ = doctor(path, "--memory-gb", "40", "-s", "train.micro_batch=8")
    assert code == 1
    assert "It does not fit: updating takes" in shown
    assert shown.endswith("Set train.micro_batch = 1.\n")


def test_a_plan_as_json(path: Path) -> None:
    code, shown, _ = doctor(path, "--memory-gb", "24", "--devices", "2", "--json")
    plan = json.loads(shown)
    assert code == 1
    assert plan["fits"] is False
    assert plan["machine"] == {"kind": "cuda", "devices": 2, "memory": 24 << 30, "free": 24 << 30}
    assert plan["rollout"] == sum(part["rollout"] for part in plan["parts"])
    assert plan["update"] == sum(part["update"] for part in plan["parts"])
    assert plan["cures"] == ["train.shard = true"]
    assert (plan["prompt_tokens"], plan["sequence_tokens"]) == (1000, 9000)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-s", "train.micro_batsh=1"), "unknown key train.micro_batsh. Did you mean train.micro_batch?"),
        (("-s", "train.micro_batch=7"), "train.micro_batch = 7: expected a divisor of the 512 rollouts"),
        (("-s", "model.path=./nothing"), "model.path = './nothing': no such folder"),
        (("-s", "vllm.memory_share=1.5"), "vllm.memory_share = 1.5: expected a share between 0 and 1"),
        (("-s", "pool.path=/nowhere"), "/nowhere"),
        (("--devices", "3"), "expected a multiple of the 3 devices"),
        (("--memory-gb", "-1"), "--memory-gb = -1.0: expected the memory of a device in GiB, above 0"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], says: str, path: Path) -> None:
    code, shown, told = doctor(path, *arguments)
    assert code == 1
    assert shown == ""
    assert says in told
    assert "Traceback" not in told


def test_a_machine_without_a_configuration_is_wrong_usage() -> None:
    assert CliRunner().invoke(app, ["doctor", "--memory-gb", "24"]).exit_code == 2
