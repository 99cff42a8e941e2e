"""Files of weights, as `envsched fit` writes them: tensors and plain data, loadable without executing anything.

Knows: the format, and which graph weights may be used on.
Does not know: how weights are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.errors import CheckpointError, message
from envsched_gnn.files import replacing
from envsched_gnn.models.features import CONTEXT, SOURCE, content_name
from envsched_gnn.models.network import Propagation

FORMAT, VERSION = "envsched-weights", 2
"""Raised when what the network reads, or what it corrects, changes its meaning: 2 with the level of first groups."""


def description(graph: HeteroData) -> dict[str, Any]:
    """What the inputs of a network are on this graph: weights hold where it is the same."""
    return {"content": content_name(graph), "source": list(SOURCE), "context": list(CONTEXT)}


def save_weights(weights: Mapping[str, Any], graph: HeteroData, path: str | Path, trained_on: Mapping[str, Any]) -> None:
    """Write `Learner.weights()`, what they were trained on, and what they expect; whole or not at all.

    Raises:
        CheckpointError: the file cannot be written.
    """
    content = {"format": FORMAT, "version": VERSION, "inputs": description(graph), "trained_on": dict(trained_on), **weights}
    try:
        with replacing(Path(path)) as file:
            torch.save(content, file)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error.strerror}). Give a path in a folder that you may write to.") from None


def load_weights(path: str | Path, graph: HeteroData) -> dict[str, Any]:
    """Read weights for a graph.

    Raises:
        CheckpointError: the file is missing, damaged or of another format, or the weights are of another kind of graph; names both.
    """
    content = _read(Path(path))
    wanted, found = content["inputs"], description(graph)
    if wanted != found:
        key = next(key for key in found if wanted.get(key) != found[key])
        raise CheckpointError(
            message(
                str(path),
                f"weights of a network that reads {wanted.get(key)!s}, for a graph with {found[key]!s}",
                "a graph with the features that the weights were trained on",
                "Build the graph with the same graph.similarity and graph.embedding, or fit weights on a ledger of this one.",
            )
        )
    return content


def _read(path: Path) -> dict[str, Any]:
    cure = "Write one with `envsched fit LEDGER --out FILE`."
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file. {cure}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises nearly anything on bytes that it did not write
        raise CheckpointError(f"{path}: not a file of weights, or damaged ({type(error).__name__}). {cure}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise CheckpointError(f"{path}: a torch file, but no weights of version {VERSION} of ours. {cure}")
    network = content.get("network")
    shapes = {name: tensor.shape for name, tensor in Propagation().state_dict().items()}
    if not isinstance(network, dict) or {n: t.shape for n, t in network.items() if isinstance(t, Tensor)} != shapes:
        raise CheckpointError(f"{path}: damaged: its tensors are not those of the network. {cure}")
    kinds = {"precision": Tensor, "trained": int, "inputs": dict}
    missing = [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]
    if missing:
        raise CheckpointError(f"{path}: damaged: no {missing[0]}. {cure}")
    return content
