"""The memory plan: formulas against what torch keeps, literal plans, problems with their cures, and plans against measured peaks."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from envsched_gnn.config import Config, load_config
from envsched_gnn.errors import ConfigError
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.train.memory.machine import GIB, Machine, machine_of
from envsched_gnn.train.memory.parts import Batch, Widths, activations, engine_cache, generation, layer_activations, log_probabilities
from envsched_gnn.train.memory.plan import Plan, memory_plan, share_of
from envsched_gnn.train.memory.sizes import KNOWN, ModelSize

SMALL = ["pool.toolworld.environments=6", "pool.toolworld.tasks=50"]
LARGE = [
    *SMALL,
    *("model.kind=language_model", "model.path=Qwen/Qwen3-1.7B", "vllm.mode=colocate", "vllm.memory_share=0.4", "run.device=cuda"),
    *("train.gradient_checkpointing=true", "train.micro_batch=1", "train.max_completion_tokens=32000", "train.kl=0.1"),
    "train.max_prompt_tokens=3000",
]


@pytest.fixture(scope="module")
def pool() -> Pool:
    return load_pool(load_config(None, SMALL).pool)


def gpus(devices: int, gib: float) -> Machine:
    return machine_of("cuda", devices=devices, memory_gb=gib)


def plan_of(pool: Pool, machine: Machine, *settings: str) -> tuple[Config, Plan]:
    config = load_config(None, [*LARGE, *settings])
    return config, memory_plan(config, pool, machine)


def part(plan: Plan, name: str) -> tuple[int, int]:
    return next((part.rollout, part.update) for part in plan.parts if part.name == name)


# ---- formulas ----


def shape(size: ModelSize, layers: int) -> Any:
    sizes = {"hidden_size": size.hidden, "intermediate_size": size.intermediate, "num_hidden_layers": layers, "vocab_size": 64}
    sizes |= {"num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads, "head_dim": size.head_dim}
    return Qwen3Config(**sizes) if size.head_norms else LlamaConfig(**sizes)


def kept_for_backward(model: Any, tokens: int) -> int:
    """Bytes of the different storages that the backward pass of the decoder needs, weights and their copies left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {tuple(parameter.shape) for parameter in model.parameters()} | {tuple(p.T.shape) for p in model.parameters() if p.dim() == 2}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights and tuple(tensor.shape) not in shapes:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    mask = torch.ones(1, tokens, dtype=torch.long)
    mask[0, 0] = 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.base_model(input_ids=torch.zeros(1, tokens, dtype=torch.long), attention_mask=mask, use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M-Instruct"])
@pytest.mark.parametrize(("weight", "compute"), [(4, 4), (2, 2), (4, 2)])
def test_activations_are_what_torch_keeps(name: str, weight: int, compute: int) -> None:
    size, tokens = KNOWN[name], 200
    models = [
        AutoModelForCausalLM.from_config(shape(size, layers)).to(torch.bfloat16 if weight == 2 else torch.float32) for layers in (1, 2)
    ]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=compute < weight):
        one, two = (kept_for_backward(model.train(), tokens) for model in models)
    mask = tokens * tokens * compute
    assert layer_activations(size, Widths(weight=weight, compute=compute)) == pytest.approx((two - one - mask) / tokens, rel=0.05)


def test_literal_parts() -> None:
    size = ModelSize(
        hidden=8, intermediate=16, layers=2, heads=2, kv_heads=1, head_dim=4, vocabulary=100_000, tied=True, positions=64, head_norms=False
    )
    batch, float32 = Batch(rollouts=6, micro=2, prompt=3, completion=5), Widths(weight=4, compute=4)
    assert layer_activations(size, float32) == 192 + 256 + 144  # 2 norms x 8 x 12, 4 x 16 x 4, 3 x (8 + 4) x 4
    assert activations(size, float32, batch, checkpointing=False) == 2 * 8 * (2 * 592 + 128 + 64 + 8 * (1 + 2 * 4))
    assert activations(size, float32, batch, checkpointing=True) == 2 * 8 * (2 * 8 * 4 + 592 + 128 + 64 + 8 * (1 + 4))
    tile, head = 2 * 8 * 32_768, 100_000 * 8 * 4  # the vocabulary is wider than a tile
    assert log_probabilities(size, float32, batch, kernel=False, trained_head=True) == tile * 33 + head + 2 * 8 * 8 * 8
    assert log_probabilities(size, float32, batch, kernel=True, trained_head=False) == 2 * 5 * 32_768 * 4 + 2 * 5 * 8 * 8
    cache, reading = 8 * (2 * 2 * 4 * 4), 8 * ((32 + 48 + 24) * 4 + 8)
    assert generation(size, float32, batch, top_p=False) == 6 * (cache + reading + 1_200_000)
    assert generation(size, float32, batch, top_p=True) == 6 * (cache + reading + 2_400_000)


def test_the_cache_of_the_engine() -> None:
    size = KNOWN["Qwen/Qwen3-8B"]
    assert size.kv_bytes(2) == 147_456
    alone = engine_cache(size, 32 * GIB, sequences=64, tensor_parallel=1)
    assert alone == 32 * GIB - 16_381_470_720 - GIB - 64 * 151_936 * 12
    assert engine_cache(size, 32 * GIB, sequences=64, tensor_parallel=4) == alone + 12_286_103_040
    assert engine_cache(size, 8 * GIB, sequences=64, tensor_parallel=1) < 0


# ---- plans ----


def test_a_literal_plan(pool: Pool) -> None:
    _, plan = plan_of(pool, gpus(1, 80))
    n = 1_720_574_976
    assert (plan.parameters, plan.trained, plan.prompt_tokens, plan.sequence_tokens) == (n, n, 3000, 35_000)
    assert part(plan, "weights") == (4 * n, 4 * n)
    assert part(plan, "bfloat16 copies") == (0, 2 * n)
    assert part(plan, "gradients") == (0, 4 * n)
    assert part(plan, "optimiser") == (8 * n, 8 * n)
    assert part(plan, "reference") == (4 * n, 4 * n)
    assert part(plan, "vLLM") == (32 * GIB, GIB)
    assert part(plan, "round") == (512 * 35_000 * 64,) * 2
    assert plan.sequences == 7
    assert plan.fits
    assert not plan.cures


def test_lora_trains_little_and_its_reference_is_as_small(pool: Pool) -> None:
    settings = ("model.path=Qwen/Qwen3-32B", "model.lora_rank=32", "model.dtype=bfloat16", "vllm.tensor_parallel=8")
    _, plan = plan_of(pool, gpus(8, 140), *settings)
    trained = 268_435_456
    assert plan.trained == trained
    assert part(plan, "weights") == (2 * 32_762_123_264 + 4 * trained,) * 2
    assert part(plan, "optimiser") == (8 * trained,) * 2
    assert part(plan, "gradient buckets") == (4 * trained,) * 2
    assert part(plan, "reference") == (4 * trained,) * 2
    assert "bfloat16 copies" not in {part.name for part in plan.parts}
    assert plan.fits


def test_shards_are_a_device_s_share(pool: Pool) -> None:
    _, plan = plan_of(pool, gpus(8, 80), "model.path=Qwen/Qwen3-8B", "train.shard=true")
    n = 8_190_735_360
    assert part(plan, "weights") == (4 * n // 8,) * 2
    assert part(plan, "optimiser") == (n,) * 2
    assert part(plan, "gathered weights") == (2 * (2 * 192_946_432 + 2 * 151_936 * 4096),) * 2
    assert plan.fits


def test_an_engine_that_stays_awake_takes_its_share_in_updates_too(pool: Pool) -> None:
    _, plan = plan_of(pool, gpus(1, 80), "vllm.sleep=false")
    assert part(plan, "vLLM") == (32 * GIB, 32 * GIB)


def test_an_engine_on_a_cpu_takes_what_its_own_variable_says(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    _, plan = plan_of(pool, machine_of("cpu", memory_gb=64))
    assert part(plan, "vLLM") == (3 * GIB + 2 * 1_720_574_976,) * 2
    assert part(plan_of(pool, gpus(1, 80))[1], "vLLM") == (32 * GIB, GIB)


def test_prompts_are_reckoned_from_the_pool(pool: Pool) -> None:
    config = load_config(None, [*LARGE, "train.max_prompt_tokens=0"])
    plan = memory_plan(config, pool, gpus(1, 80))
    assert 3451 < plan.prompt_tokens < 4500  # 3,451 is the longest in the default pool by SmolLM2's tokenizer


# ---- problems and cures ----


@pytest.mark.parametrize(
    ("devices", "gib", "settings", "cures"),
    [
        (1, 80, ("train.micro_batch=0",), ("train.micro_batch = 2",)),
        (1, 80, ("train.gradient_checkpointing=false",), ("train.gradient_checkpointing = true",)),
        (1, 80, ("vllm.memory_share=0.7", "vllm.sleep=false"), ("vllm.sleep = true", "vllm.memory_share = 0.6")),
        (1, 80, ("vllm.memory_share=0.05",), ("vllm.memory_share = 0.15",)),
        (1, 80, ("vllm.max_model_length=4096",), ("vllm.max_model_length = 0",)),
        (8, 80, ("model.path=Qwen/Qwen3-8B",), ("train.shard = true",)),
        (1, 80, ("train.max_completion_tokens=100000",), ("train.max_completion_tokens = 31640",)),
        (1, 24, (), ()),
    ],
)
def test_the_cure_fits_and_is_no_longer_than_needed(
    devices: int, gib: float, settings: tuple[str, ...], cures: tuple[str, ...], pool: Pool
) -> None:
    _, plan = plan_of(pool, gpus(devices, gib), *settings)
    assert not plan.fits
    assert plan.cures == cures
    if cures:
        _, cured = plan_of(pool, gpus(devices, gib), *settings, *(cure.replace(" = ", "=") for cure in cures))
        assert cured.fits


def test_what_does_not_fit_is_refused_with_its_cure(pool: Pool) -> None:
    _, plan = plan_of(pool, gpus(1, 80), "train.micro_batch=0")
    expected = (
        r"1\.7B' does not fit: updating takes [\d.]+ GiB of each device, and 76\.0 of 80\.0 can be used\. Set train\.micro_batch = 2\."
    )
    with pytest.raises(ConfigError, match=expected):
        plan.require()
    _, plan = plan_of(pool, gpus(1, 24))
    with pytest.raises(ConfigError, match="Choose a smaller model, shorter episodes or larger devices"):
        plan.require()
    plan_of(pool, gpus(1, 80))[1].require()


@pytest.mark.parametrize(
    ("settings", "devices", "says"),
    [
        (
            ("select.batch_size=3", "rollout.num_rollouts=3"),
            2,
            r"batch_size x rollout\.num_rollouts = 3 x 3 = 9: expected a multiple of the 2",
        ),
        (("train.micro_batch=7",), 1, r"train\.micro_batch = 7: expected a divisor of the 512 rollouts on each of 1 devices"),
        (("vllm.tensor_parallel=3",), 8, r"vllm\.tensor_parallel = 3: expected a divisor of the 8 devices"),
    ],
)
def test_a_batch_that_does_not_divide(settings: tuple[str, ...], devices: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        share_of(load_config(None, [*LARGE, *settings]), devices)


def test_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert machine_of("auto", devices=2, memory_gb=24) == Machine(kind="cuda", devices=2, memory=24 * GIB, free=24 * GIB)
    assert machine_of("cpu", memory_gb=8) == Machine(kind="cpu", devices=1, memory=8 * GIB, free=8 * GIB)
    here = machine_of("cpu")
    assert here.kind == "cpu"
    assert 0 < here.free <= here.memory
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert machine_of("cpu").devices == 2
    assert machine_of("cpu").memory == here.memory // 2
    with pytest.raises(ConfigError, match=r"--memory-gb = 0: expected the memory of a device in GiB, above 0"):
        machine_of("cpu", memory_gb=0)
    with pytest.raises(ConfigError, match=r"--devices = 0: expected at least 1"):
        machine_of("cpu", devices=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"run\.device = 'cuda': there is no GPU here\. Plan for another machine with --memory-gb 24"):
        machine_of("cuda")
