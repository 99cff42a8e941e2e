"""Graph files: save, load, export.

Knows: the file format (plain tensors and lists, loadable without executing anything), its version, its digest.
Does not know: how a graph is built or used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from envsched_gnn.errors import GraphError
from envsched_gnn.files import replacing
from envsched_gnn.graph.build import clear_edges, embedding_flaw
from envsched_gnn.graph.similarity import pair_similarity

FORMAT = "envsched-graph"
VERSION = 3
OLDER = 2
"""A version that is read, too: it knew no embeddings."""
MAX_EXPORT = 5_000
"""Tasks that a dense export may hold: 200 MB (ours)."""

_TENSORS: Mapping[str, torch.dtype] = {
    "env_index": torch.int64,
    "home_index": torch.int64,
    "record_index": torch.int64,
    "cross_vectors": torch.float64,
    "within_similarity": torch.float32,
    "within_offset": torch.int64,
    "members": torch.int64,
    "member_offset": torch.int64,
    "position": torch.int64,
    "held_out": torch.bool,
    "reward_low": torch.float64,
    "reward_high": torch.float64,
    "identity": torch.int64,
}
_EMBEDDINGS: Mapping[str, torch.dtype] = {"embedding": torch.float32, "record_embedding": torch.float32}
"""There only where the graph has an embedding model."""
_ATTRIBUTES: Mapping[str, type] = {
    "task_ids": list,
    "env_ids": list,
    "pool_hash": str,
    "feature_config": dict,
    "within_k": int,
    "cross_k": int,
}
_NEW_ATTRIBUTES: Mapping[str, type] = {"embedding_model": str}
"""Since version 3."""


def save_graph(graph: HeteroData, path: str | Path) -> None:
    """Write a graph, whole or not at all. Edges are left out: they depend on what was observed."""
    attributes = {name: graph[name] for name in (*_ATTRIBUTES, *_NEW_ATTRIBUTES)}
    tensors = {name: graph["task"][name].detach().cpu().contiguous() for name in _expected(attributes)}
    content = {"format": FORMAT, "version": VERSION, "tensors": tensors, "attributes": attributes, "digest": _digest(tensors, attributes)}
    _write(Path(path), lambda file: torch.save(content, file))


def load_graph(path: str | Path) -> HeteroData:
    """Read a graph on the CPU, without edges.

    Raises:
        GraphError: the file is missing, damaged, no graph, or of another version.
    """
    content = _read(Path(path))
    graph = HeteroData()
    tensors, attributes = content["tensors"], content["attributes"]
    graph["task"].num_nodes = tensors["env_index"].numel()
    for name in _expected(attributes):
        graph["task"][name] = tensors[name]
    for name in _ATTRIBUTES:
        graph[name] = attributes[name]
    graph.embedding_model = attributes.get("embedding_model", "")
    clear_edges(graph)
    return graph


def export_similarities(graph: HeteroData, path: str | Path) -> None:
    """Write dense `s_within`, `s_cross` [tasks, tasks] float32 and `env_id`, `task_id` [tasks] as .npz: the values that `select` uses.

    Raises:
        GraphError: more than MAX_EXPORT tasks.
    """
    store = graph["task"]
    tasks = store.env_index.numel()
    if tasks > MAX_EXPORT:
        raise GraphError(
            f"{tasks} tasks make two dense matrices of {tasks * tasks * 4 / 2**30:.1f} GiB each; export is for at most {MAX_EXPORT} tasks. "
            "Export the graph of a smaller pool, or compute the rows you need with envsched_gnn.graph.similarity.pair_similarity."
        )
    everyone = torch.arange(tasks, device=store.env_index.device)
    rows = [pair_similarity(graph, part, everyone).cpu() for part in everyone.split(512)]
    similarity = torch.cat(rows).numpy()
    env_index = store.env_index.cpu().numpy()
    same = env_index[:, None] == env_index[None, :]
    s_within, s_cross = np.where(same, similarity, np.float32(0)), np.where(same, np.float32(0), similarity)
    env_id, task_id = np.array([graph.env_ids[env] for env in store.home_index.tolist()]), np.array(graph.task_ids)
    _write(Path(path), lambda file: np.savez_compressed(file, s_within=s_within, s_cross=s_cross, env_id=env_id, task_id=task_id))


def _write(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            fill(file)
    except OSError as error:
        raise GraphError(f"{path}: cannot be written ({error}). Give a path in a folder that you may write to.") from error


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise GraphError(f"{path}: no such file. Build one with `envsched graph build POOL -o {path}`.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises nearly anything on bytes that it did not write
        raise GraphError(
            f"{path}: not a graph, or damaged ({type(error).__name__}). Build it again with `envsched graph build`."
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise GraphError(f"{path}: a torch file, but not a graph of ours. Build one with `envsched graph build`.")
    if content.get("version") not in (OLDER, VERSION):
        raise GraphError(
            f"{path}: graph format {content.get('version')}; this program reads {OLDER} and {VERSION}. "
            "Build it again with `envsched graph build`."
        )
    flaw = _flaw(content)
    if flaw:
        raise GraphError(f"{path}: damaged: {flaw}. Build it again with `envsched graph build`.")
    return content


def _flaw(content: Mapping[str, Any]) -> str:
    tensors, attributes = content.get("tensors"), content.get("attributes")
    if not isinstance(tensors, dict) or not isinstance(attributes, dict):
        return "no tensors or attributes"
    for name, kind in (_ATTRIBUTES if content["version"] == OLDER else {**_ATTRIBUTES, **_NEW_ATTRIBUTES}).items():
        if not isinstance(attributes.get(name), kind):
            return f"{name} is not a {kind.__name__}"
    for name, dtype in _expected(attributes).items():
        if not isinstance(tensors.get(name), Tensor) or tensors[name].dtype != dtype:
            return f"{name} is not a tensor of {dtype}"
    if content.get("digest") != _digest(tensors, attributes):
        return "the tensors or attributes do not match their digest"
    if len(attributes["task_ids"]) != tensors["env_index"].numel():
        return f"{len(attributes['task_ids'])} task ids for {tensors['env_index'].numel()} tasks"
    return embedding_flaw(tensors) if attributes.get("embedding_model") else ""


def _expected(attributes: Mapping[str, Any]) -> Mapping[str, torch.dtype]:
    """The tensors of a graph."""
    return {**_TENSORS, **_EMBEDDINGS} if attributes.get("embedding_model") else _TENSORS


def _digest(tensors: Mapping[str, Tensor], attributes: Mapping[str, Any]) -> str:
    """Of what a graph without embeddings has in the order in which version 2 knew it, so that its files stay whole."""
    kept = [attributes[name] for name in (*_ATTRIBUTES, *_NEW_ATTRIBUTES) if name in attributes]
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for name in _expected(attributes):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
