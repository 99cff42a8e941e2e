"""The formulas of preset `paper`, a literal number each."""

import pytest
import torch

from envsched_gnn.graph.neighbors import NeighborLists
from envsched_gnn.predict import paper
from envsched_gnn.predict.propagate import relation_estimate, shrink


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_reconstructed_variance() -> None:
    assert paper.reconstructed_variance(f64(0.5, 0.25), f64(1.0, 0.5)).tolist() == [0.25, 0.09375]


def test_shrink() -> None:
    assert shrink(f64(0.2), f64(2.0), f64(0.1), 2.0).tolist() == pytest.approx([0.15])
    assert shrink(f64(0.7), f64(0.0), f64(0.1), 2.0).tolist() == [0.1]


def test_relation_estimate_by_hand() -> None:
    """Two neighbours, s = .5 and 1, W = 2 and 1: a = 1 and 1. A padded row says the reference."""
    lists = NeighborLists(
        slot_index=torch.tensor([[1, 0], [0, 0]], dtype=torch.int32), similarity=torch.tensor([[1.0, 0.5], [0.0, 0.0]]), row=torch.arange(2)
    )
    rel, a = relation_estimate(f64(0.2, 0.1)[None], f64(2.0, 1.0)[None], torch.tensor([0]), f64(0.05), f64(2.0), lists)
    assert a.tolist() == [[2.0, 0.0]]
    assert rel.flatten().tolist() == pytest.approx([(0.2 + 0.1 + 2 * 0.05) / 4, 0.05])


def test_horizon_variance_by_hand() -> None:
    """f reverses the order of v: p = .65 pr(v) + .35 pr(f) = (.325, .5, .675), between plotting positions 1/6, 1/2, 5/6."""
    v, m, d = f64(0.01, 0.03, 0.09), f64(0.5, 0.5, 0.5), f64(0.9, 0.5, 0.1)
    p = [0.65 / 6 + 0.35 * 5 / 6, 0.5, 0.65 * 5 / 6 + 0.35 / 6]
    expected = [0.01 + (p[0] * 3 - 0.5) * 0.02, 0.03, 0.03 + (p[2] * 3 - 1.5) * 0.06]
    assert paper.horizon_variance(v, m, d, share=0.35).tolist() == pytest.approx(expected)


def test_only_a_decline_is_taken_off() -> None:
    assert paper.predicted_variance(f64(0.2, 0.1), f64(0.1, 0.2), 0.5).tolist() == pytest.approx([0.15, 0.1])
