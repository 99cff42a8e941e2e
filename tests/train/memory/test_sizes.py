"""Parameter counts by formula are those of the true models, and a model that cannot be sized is refused before anything is loaded."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from envsched_gnn.config_training import ModelConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.train.memory.sizes import KNOWN, ModelSize, size_of
from envsched_gnn.train.trl.models import load_model

PUBLISHED = {
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
}


def config_of(size: ModelSize) -> Qwen3Config | LlamaConfig:
    sizes = {
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "vocab_size": size.vocabulary,
        "tie_word_embeddings": size.tied,
        "head_dim": size.head_dim,
        "max_position_embeddings": size.positions,
    }
    return Qwen3Config(**sizes) if size.head_norms else LlamaConfig(**sizes)


def counted(config: object) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_formula_counts_the_true_model(name: str) -> None:
    assert KNOWN[name].parameters == PUBLISHED[name]
    assert counted(config_of(KNOWN[name])) == PUBLISHED[name]


def test_the_tiny_model_is_as_large_as_it_says() -> None:
    model, tokenizer = load_model(ModelConfig(kind="language_model", path="tiny"))
    assert model.num_parameters() == size_of("tiny").parameters == 106_880
    assert len(tokenizer) == size_of("tiny").vocabulary == 512


def test_lora_counts_what_peft_adds() -> None:
    from peft import LoraConfig, get_peft_model

    size = KNOWN["Qwen/Qwen3-0.6B"]
    with torch.device("meta"):
        adapted = get_peft_model(AutoModelForCausalLM.from_config(config_of(size)), LoraConfig(r=8, target_modules="all-linear"))
    trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert size.lora_parameters(8) == trained == 5_046_272


def test_a_folder_is_read_from_its_config(tmp_path: Path) -> None:
    config_of(KNOWN["Qwen/Qwen3-1.7B"]).save_pretrained(tmp_path)
    found = size_of(str(tmp_path))
    assert found.parameters == 1_720_574_976
    assert found.kv_bytes(2) == 114_688
    assert found.source == str(tmp_path / "config.json")


def test_a_family_with_biases_and_one_that_the_formula_does_not_know(tmp_path: Path) -> None:
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    for name, config in {
        "biases": Qwen2Config(**small, vocab_size=100),
        "experts": Qwen3MoeConfig(**small, vocab_size=100, num_experts=4, moe_intermediate_size=32),
    }.items():
        config.save_pretrained(tmp_path / name)
        assert size_of(str(tmp_path / name)).parameters == counted(config)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("./nowhere", r"model\.path = './nowhere': no such folder\. Give a folder, a hub name as Qwen/Qwen3-1\.7B, 'smollm2' or 'tiny'"),
        ("models/of/mine", "no such folder"),
        ("nothing", "no such folder"),
    ],
)
def test_no_such_model(path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        size_of(path)


def test_a_hub_name_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"neither a folder, nor a model of the Hugging Face hub .* or download it and give the folder"):
        size_of("nobody/has-this-model")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"config\.json cannot be read .* Give a folder with config\.json, weights and tokenizer"),
        ("{", r"config\.json cannot be read"),
        (json.dumps({"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4}), "lacks 'intermediate_size'"),
        (json.dumps({"model_type": "unheard_of"}), "no causal language model that transformers knows"),
    ],
)
def test_a_folder_that_holds_no_model(content: str | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=says):
        size_of(str(tmp_path))
