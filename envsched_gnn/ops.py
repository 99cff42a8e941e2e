"""The few array operations that everything else is written in.

Knows: which implementation is fast and deterministic on which device; whether torch-scatter is installed.
Does not know: tasks, relations, history.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

try:
    import torch_scatter
except ImportError:
    torch_scatter = None

RANK_SCALE = 2.0**32
"""Ranks are taken of round(x * RANK_SCALE): rounding noise orders nothing, and every device agrees (ours)."""


def segment_sum(values: Float[Tensor, "... L"], index: Int[Tensor, " L"], size: int) -> Float[Tensor, "... size"]:
    """`out[..., s] = sum of values[..., l] over l with index[l] == s`; deterministic on every device."""
    if not values.is_cpu:
        return _segment_sum_sorted(values, index, size)
    out = values.new_zeros((*values.shape[:-1], size))
    return out.scatter_add_(-1, index.expand(values.shape), values)


def _segment_sum_sorted(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Segmented reduction instead of atomics, whose order of additions changes from run to run."""
    ordered, order = torch.sort(index, stable=True)
    pointer = torch.searchsorted(ordered, torch.arange(size + 1, device=index.device))
    if torch_scatter is not None:
        sums: Tensor = torch_scatter.segment_csr(
            values[..., order].contiguous(), pointer.expand(*values.shape[:-1], size + 1), reduce="sum"
        )
        return sums
    columns = values.reshape(-1, values.shape[-1])[:, order].t().contiguous()
    reduced = torch.segment_reduce(columns, "sum", lengths=pointer.diff(), axis=0, unsafe=True)
    return reduced.t().reshape(*values.shape[:-1], size)


def ascending_row_sum(values: Float[Tensor, "L columns"], index: Int[Tensor, " L"], size: int) -> Float[Tensor, "size columns"]:
    """`out[s] = sum of rows values[l] over l with index[l] == s`, where `index` ascends; deterministic on every device, differentiable."""
    return torch.segment_reduce(values, "sum", lengths=torch.bincount(index, minlength=size), axis=0, unsafe=True)


def percentile_rank(x: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """`pr = (average rank - 0.5) / N` of round(x * 2^32); ties share their average rank (paper; integers ours)."""
    key = (x * RANK_SCALE).round_().to(torch.int64)
    if x.is_cpu:
        return torch.from_numpy(_percentile_rank_packed(key.numpy()))
    n = key.numel()
    ordered, order = torch.sort(key)
    start = torch.cat([order.new_zeros(1), (ordered[1:] != ordered[:-1]).nonzero().flatten() + 1])
    end = torch.cat([start[1:], start.new_tensor([n])])
    rank = ((start + end).to(torch.float64) / (2 * n)).repeat_interleave(end - start, output_size=n)
    return torch.empty(n, dtype=torch.float64, device=x.device).scatter_(0, order, rank)


def _percentile_rank_packed(key: np.ndarray) -> np.ndarray:
    """The same on the CPU, where key and position share one int64: numpy's vector sort of it is several times faster than an argsort."""
    n = len(key)
    bits = max(n - 1, 1).bit_length()
    if max(-int(key.min()), int(key.max())) >= 1 << (63 - bits):
        raise ValueError(
            f"values from {key.min() / RANK_SCALE} to {key.max() / RANK_SCALE} cannot be ranked; expected |x| < {2.0 ** (31 - bits)}"
        )
    key <<= bits
    key |= np.arange(n)
    key.sort()
    order = key & ((1 << bits) - 1)
    key >>= bits
    start = np.concatenate([[0], np.flatnonzero(key[1:] != key[:-1]) + 1])
    end = np.append(start[1:], n)
    rank = np.empty(n)
    rank[order] = np.repeat((start + end) / (2 * n), end - start)
    return rank


def sort(x: Num[Tensor, "*batch N"]) -> Num[Tensor, "*batch N"]:
    """Values in ascending order along the last dimension."""
    return torch.from_numpy(np.sort(x.numpy())) if x.is_cpu else torch.sort(x).values


def quantile_map(ordered: Float[Tensor, " N"], p: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Empirical quantile function of `ordered` (ascending) at p, linear between plotting positions (k - 0.5)/N, clamped outside."""
    n = ordered.numel()
    position = (p * n).sub_(0.5).clamp_(0, n - 1)
    below = position.to(torch.int64).clamp_(max=max(n - 2, 0))
    low = ordered.index_select(0, below)
    position -= below
    high = ordered.index_select(0, (below + 1).clamp_(max=n - 1))
    return high.sub_(low).mul_(position).add_(low)


def weighted_gather(
    table: Float[Tensor, "slots columns"], slot_index: Int[Tensor, "rows k"], weight: Float[Tensor, "rows k"]
) -> Float[Tensor, "rows columns"]:
    """`out[i] = sum_j weight[i, j] * table[slot_index[i, j]]`, summed in float64. Padding has weight 0."""
    rows, k = slot_index.shape
    if table.shape[0] == 0 or k == 0:
        return table.new_zeros((rows, table.shape[1]))
    if not table.is_cpu:
        return torch.nn.functional.embedding_bag(slot_index, table, per_sample_weights=weight.to(table.dtype), mode="sum")
    pointer = np.arange(0, rows * k + 1, k, dtype=np.int32 if rows * k < 2**31 else np.int64)
    data, columns = weight.to(torch.float64).flatten().numpy(), slot_index.flatten().numpy()
    sums = scipy.sparse.csr_matrix((data, columns, pointer), shape=(rows, table.shape[0])) @ table.numpy()
    return torch.from_numpy(sums)
