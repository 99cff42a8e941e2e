"""How large a causal language model is, from the sizes of its layers, before anything of it is loaded.

Knows: the sizes of known models, the parameter count of dense decoders (Llama, Qwen2, Qwen3), where a config.json lies.
Does not know: weights, devices, what training costs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envsched_gnn.errors import ConfigError
from envsched_gnn.train.trl.models import TINY, TINY_POSITIONS, TINY_VOCABULARY

DENSE = ("llama", "mistral", "qwen2", "qwen3")
"""Kinds of model whose parameters `ModelSize` counts by formula; others are counted from an instance without memory."""


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The sizes of a decoder."""

    hidden: int
    intermediate: int
    """Of the gated feed-forward layer."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether the output head is the embedding."""
    positions: int
    """Longest sequence in tokens."""
    head_norms: bool = True
    """Qwen3: queries and keys are normalised a head."""
    attention_bias: bool = False
    """Qwen2: queries, keys and values have a bias."""
    source: str = ""
    """Where the sizes are from, for people."""
    counted: int | None = None
    """Parameters of an architecture that the formula does not know."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """`2hq + 2hk + 3hm + 2h` of products and norms (q, k, m: widths of queries, keys, feed-forward), and what the family adds."""
        products = 2 * self.hidden * (self.query_width + self.kv_width) + 3 * self.hidden * self.intermediate
        extra = 2 * self.head_dim * self.head_norms + (self.query_width + 2 * self.kv_width) * self.attention_bias
        return products + 2 * self.hidden + extra

    @property
    def head_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model, tied weights once."""
        if self.counted is not None:
            return self.counted
        return self.layers * self.layer_parameters + self.head_parameters * (1 if self.tied else 2) + self.hidden

    def lora_parameters(self, rank: int) -> int:
        """Of adapters on every product of every layer: `rank (inputs + outputs)` each."""
        h, q, k, m = self.hidden, self.query_width, self.kv_width, self.intermediate
        return self.layers * rank * (2 * (h + q) + 2 * (h + k) + 3 * (h + m))

    def kv_bytes(self, width: int) -> int:
        """Key-value cache of one token, at `width` bytes a number."""
        return 2 * self.layers * self.kv_width * width


def _qwen3(name: str, hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> ModelSize:
    return ModelSize(
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocabulary=151_936,
        tied=tied,
        positions=40_960,
        source=f"known sizes of {name}",
    )


KNOWN = {
    "Qwen/Qwen3-0.6B": _qwen3("Qwen3-0.6B", 1024, 3072, 28, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3("Qwen3-1.7B", 2048, 6144, 28, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3("Qwen3-4B", 2560, 9728, 36, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen3("Qwen3-8B", 4096, 12_288, 36, 32, tied=False),
    "Qwen/Qwen3-14B": _qwen3("Qwen3-14B", 5120, 17_408, 40, 40, tied=False),
    "Qwen/Qwen3-32B": _qwen3("Qwen3-32B", 5120, 25_600, 64, 64, tied=False),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelSize(
        hidden=576,
        intermediate=1536,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocabulary=49_152,
        tied=True,
        positions=8192,
        head_norms=False,
        source="known sizes of SmolLM2-135M",
    ),
}
"""Sizes as in the config.json that each publisher ships (Hugging Face hub, 2026); tests compare the counts with transformers' own."""
KNOWN["smollm2"] = KNOWN["HuggingFaceTB/SmolLM2-135M-Instruct"]
KNOWN["tiny"] = ModelSize(
    hidden=TINY["hidden_size"],
    intermediate=TINY["intermediate_size"],
    layers=TINY["num_hidden_layers"],
    heads=TINY["num_attention_heads"],
    kv_heads=TINY["num_key_value_heads"],
    head_dim=TINY["head_dim"],
    vocabulary=TINY_VOCABULARY,
    tied=True,
    positions=TINY_POSITIONS,
    source="the random model `tiny`",
)


def size_of(path: str) -> ModelSize:
    """Sizes of the model that `model.path` names: of its folder, else of a known model, else of its config.json on the hub.

    Raises:
        ConfigError: no such folder, no config.json in it, or the hub has no such model or cannot be reached.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return _of_folder(folder)
    if path in KNOWN:
        return KNOWN[path]
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ConfigError(f"model.path = {path!r}: no such folder. Give a folder, a hub name as Qwen/Qwen3-1.7B, 'smollm2' or 'tiny'.")
    return _of_hub(path)


def _of_folder(folder: Path) -> ModelSize:
    file = folder / "config.json"
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path = {str(folder)!r}: {file.name} cannot be read ({error}). Give a folder with config.json, weights and tokenizer."
        ) from None
    return _from_table(table, str(file)) if isinstance(table, dict) and table.get("model_type") in DENSE else _from_instance(str(folder))


def _of_hub(name: str) -> ModelSize:
    from transformers import AutoConfig

    try:
        table = AutoConfig.from_pretrained(name).to_dict()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path = {name!r}: neither a folder, nor a model of the Hugging Face hub that can be reached "
            f"({str(error).splitlines()[0]}). Check the name, or download it and give the folder."
        ) from None
    return _from_table(table, f"config.json of {name}") if table.get("model_type") in DENSE else _from_instance(name)


def _from_table(table: dict[str, Any], source: str) -> ModelSize:
    """From the keys of a config.json; what a family leaves out is derived as transformers does."""
    try:
        heads, hidden = int(table["num_attention_heads"]), int(table["hidden_size"])
        return ModelSize(
            hidden=hidden,
            intermediate=int(table["intermediate_size"]),
            layers=int(table["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(table.get("num_key_value_heads") or heads),
            head_dim=int(table.get("head_dim") or hidden // heads),
            vocabulary=int(table["vocab_size"]),
            tied=bool(table.get("tie_word_embeddings", False)),
            positions=int(table.get("max_position_embeddings", 32_768)),
            head_norms=table["model_type"] == "qwen3",
            attention_bias=table["model_type"] == "qwen2",
            source=source,
        )
    except KeyError as error:
        raise ConfigError(f"{source}: lacks {error}; expected the config.json of a causal language model.") from None


def _from_instance(name: str) -> ModelSize:
    """Of an architecture that the formula does not know: parameters counted on an instance without memory, widths as its text part says."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(name)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"model.path = {name!r}: no causal language model that transformers knows ({str(error).splitlines()[0]}). Give another model."
        ) from None
    table = config.get_text_config().to_dict() | {"model_type": "other"}
    counted = sum(parameter.numel() for parameter in model.parameters())
    return replace(_from_table(table, f"config.json of {name}"), counted=counted)
