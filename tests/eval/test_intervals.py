"""Intervals for the number of informative groups: literal numbers, and a predictor that is right, too sure, or not sure enough."""

import numpy as np
import pytest
from scipy.stats import binom

from envsched_gnn.eval.replay.intervals import count_distribution, interval_coverage, interval_of
from envsched_gnn.eval.replay.score import Predicted


def test_the_distribution_by_hand() -> None:
    assert count_distribution(np.array([0.5, 0.2])).tolist() == pytest.approx([0.4, 0.5, 0.1])
    np.testing.assert_allclose(count_distribution(np.full(16, 0.3)), binom.pmf(np.arange(17), 16, 0.3), atol=1e-12)


def test_the_interval_by_hand() -> None:
    """Binomial(4, 1/2): 1/16, 4/16, 6/16, 4/16, 1/16, so a twentieth on either side leaves nothing out."""
    assert interval_of(np.full(4, 0.5)) == (0, 4, pytest.approx(1))
    assert interval_of(np.full(16, 0.5)) == (5, 11, pytest.approx(binom.cdf(11, 16, 0.5) - binom.cdf(4, 16, 0.5)))
    assert interval_of(np.zeros(3)) == (0, 0, pytest.approx(1))
    assert interval_of(np.ones(3)) == (3, 3, pytest.approx(1))


def predicted(p: np.ndarray, z: np.ndarray) -> Predicted:
    steps = np.repeat(np.arange(len(p)), p.shape[1])
    return Predicted(step=steps, predicted=p.ravel(), realised=z.ravel(), informative=z.ravel())


def test_who_is_right_covers_what_it_promised_and_who_is_wrong_does_not() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, (2000, 16))
    z = (rng.random(p.shape) < p).astype(float)
    right = interval_coverage(predicted(p, z))
    assert right["interval_probability"] > 0.9
    assert right["interval_coverage"] == pytest.approx(right["interval_probability"], abs=0.015)
    assert interval_coverage(predicted(p**2, z))["interval_coverage"] < 0.75
    together = np.repeat(rng.random((2000, 1)) < 0.5, 16, axis=1).astype(float)  # each half of the time, but all at once
    assert interval_coverage(predicted(np.full(p.shape, 0.5), together))["interval_coverage"] == 0
