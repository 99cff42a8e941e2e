"""The array operations against literal numbers, slow definitions, and each other on every device."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsched_gnn import ops


def slow_rank(values: list[float]) -> list[float]:
    keys = [round(v * 2**32) for v in values]
    n = len(keys)
    return [(sum(k < key for k in keys) + (sum(k == key for k in keys) + 1) / 2 - 0.5) / n for key in keys]


def test_percentile_rank_shares_ties(device: torch.device) -> None:
    x = torch.tensor([0.2, 0.1, 0.2, 0.9], dtype=torch.float64, device=device)
    assert ops.percentile_rank(x).tolist() == [0.5, 0.125, 0.5, 0.875]


def test_percentile_rank_of_one_is_a_half(device: torch.device) -> None:
    assert ops.percentile_rank(torch.zeros(1, dtype=torch.float64, device=device)).tolist() == [0.5]


def test_percentile_rank_ignores_rounding_noise() -> None:
    assert ops.percentile_rank(torch.tensor([0.1 + 0.2, 0.3, 0.3 + 1e-13], dtype=torch.float64)).tolist() == [0.5, 0.5, 0.5]


def test_percentile_rank_leaves_its_input_alone() -> None:
    x = torch.tensor([0.3, 0.1], dtype=torch.float64)
    ops.percentile_rank(x)
    assert x.tolist() == [0.3, 0.1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e12])
def test_percentile_rank_refuses_what_it_cannot_order(bad: float) -> None:
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="cannot be ranked"):
        ops.percentile_rank(torch.tensor([0.0, bad], dtype=torch.float64))


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from([0.0, 0.05, 0.25]), st.floats(-1, 1)), min_size=1, max_size=30))
def test_percentile_rank_is_the_average_rank(values: list[float]) -> None:
    assert ops.percentile_rank(torch.tensor(values, dtype=torch.float64)).tolist() == pytest.approx(slow_rank(values), abs=1e-15)


def test_percentile_rank_is_the_average_rank_of_many() -> None:
    x = torch.randint(0, 3000, (20_000,), generator=torch.Generator().manual_seed(0)).to(torch.float64) / 4096
    values, count = x.unique(return_counts=True)
    expected = (count.cumsum(0).double() - count.double() / 2) / 20_000
    torch.testing.assert_close(ops.percentile_rank(x), expected[torch.searchsorted(values, x)], rtol=0, atol=1e-15)


def test_quantile_map_is_linear_between_plotting_positions(device: torch.device) -> None:
    ordered = torch.tensor([0.0, 1.0, 3.0, 7.0], dtype=torch.float64, device=device)
    p = torch.tensor([0.0, 0.125, 0.25, 0.375, 0.5, 0.875, 1.0], dtype=torch.float64, device=device)
    assert ops.quantile_map(ordered, p).tolist() == [0.0, 0.0, 0.5, 1.0, 2.0, 7.0, 7.0]


def test_quantile_map_of_one_value_is_that_value() -> None:
    assert ops.quantile_map(torch.tensor([0.3]), torch.tensor([0.0, 0.5, 1.0])).tolist() == pytest.approx([0.3] * 3)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**30), min_size=1, max_size=20, unique=True))
def test_quantile_map_undoes_percentile_rank(grid: list[int]) -> None:
    x = torch.tensor(grid, dtype=torch.float64) / 2**32
    torch.testing.assert_close(ops.quantile_map(ops.sort(x), ops.percentile_rank(x)), x, rtol=0, atol=1e-15)


def test_segment_sum_leaves_empty_segments_zero(device: torch.device) -> None:
    values = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], dtype=torch.float64, device=device)
    index = torch.tensor([2, 0, 2], device=device)
    assert ops.segment_sum(values, index, 4).tolist() == [[2.0, 0.0, 5.0, 0.0], [16.0, 0.0, 40.0, 0.0]]
    assert ops.segment_sum(values[0], index, 4).tolist() == [2.0, 0.0, 5.0, 0.0]


def random_segments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(2, 3, 500, generator=generator, dtype=torch.float64), torch.randint(0, 40, (500,), generator=generator)


def test_the_sorted_reduction_agrees_with_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "torch_scatter", None)
    values, index = random_segments()
    torch.testing.assert_close(ops._segment_sum_sorted(values, index, 50), ops.segment_sum(values, index, 50), rtol=1e-14, atol=0)


@pytest.mark.scatter
def test_torch_scatter_agrees_with_the_plain_path() -> None:
    pytest.importorskip("torch_scatter", reason="torch-scatter is not installed")
    values, index = random_segments()
    torch.testing.assert_close(ops._segment_sum_sorted(values, index, 50), ops.segment_sum(values, index, 50), rtol=1e-14, atol=0)


@pytest.mark.parametrize("slots", [1, 7])
def test_weighted_gather_is_the_weighted_sum(slots: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(2)
    table = torch.rand(slots, 3, generator=generator, dtype=torch.float64).to(device)
    index = torch.randint(0, slots, (11, 4), generator=generator, dtype=torch.int32).to(device)
    weight = torch.rand(11, 4, generator=generator).to(device)
    expected = (table[index.long()] * weight.double()[..., None]).sum(1)
    torch.testing.assert_close(ops.weighted_gather(table, index, weight), expected, rtol=1e-14, atol=1e-15)


def test_weighted_gather_from_nothing_is_zero() -> None:
    table, index = torch.zeros(0, 3, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.int32)
    assert ops.weighted_gather(table, index, torch.zeros(2, 4)).tolist() == [[0.0] * 3] * 2
