"""Preset `paper`: from shrunk estimates to predicted variance, steps 4 to 6 of the paper.

Knows: the formulas and their constants.
Does not know: where estimates come from, what the rank is used for.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from envsched_gnn.ops import percentile_rank, quantile_map, sort

GRAPH_STRENGTH = 2.0
"""Pseudo-weight of the reference in a relation estimate (paper)."""
SHRINKAGE_STRENGTH = 2.0
"""Pseudo-weight of the prior in an estimate (paper)."""


def reconstructed_variance(mean: Tensor, dispersion: Tensor) -> Tensor:
    """`f = est_d est_m (1 - est_m)` (paper)."""
    return dispersion * mean * (1 - mean)


def horizon_variance(
    v: Float[Tensor, " tasks"], m: Float[Tensor, " tasks"], d: Float[Tensor, " tasks"], *, share: float
) -> Float[Tensor, " tasks"]:
    """`u_h = Q[(1 - share) pr(v) + share pr(f)]` of shrunk estimates (v, m, d), Q the empirical quantile function of v (paper)."""
    f = reconstructed_variance(m, d)
    return quantile_map(sort(v), (1 - share) * percentile_rank(v) + share * percentile_rank(f))


def predicted_variance(u_long: Float[Tensor, " tasks"], u_short: Float[Tensor, " tasks"], decline: float) -> Float[Tensor, " tasks"]:
    """`u = u_long - decline max(u_long - u_short, 0)` (paper)."""
    return u_long - decline * (u_long - u_short).clamp(min=0)
