"""What exploitation ranks by: the informativeness itself, or what the uncertainty of P(informative) makes worth a look (ours).

Knows: the three forms.
Does not know: where an uncertainty comes from, what is done with the value.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from scipy.special import betaincinv
from torch import Tensor

from envsched_gnn.config import SelectConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.records import Prediction
from envsched_gnn.schedule.keys import SIGN, task_keys

MIN_WEIGHT = 0.01
"""Least a + b of a Beta distribution: below it, draws are 0 or 1 anyway."""
DRAW = 0x7468_6F6D_7073_6F6E
"""Sets the keys of draws apart from those that break ties."""


def acquired(
    prediction: Prediction, config: SelectConfig, identity: Int[Tensor, " tasks"], seed: int, step: int
) -> Float[Tensor, " tasks"]:
    """`q`; or `q p' / p`, with p' in place of p: `p' = p + beta sigma`, sigma the standard deviation of p, or a draw from the Beta
    distribution of mean p and that deviation.

    Raises:
        ConfigError: the predictor has no uncertainty, and one is asked for.
    """
    q, sigma = prediction.informativeness, prediction.uncertainty
    if config.acquisition == "score":
        return q
    if sigma is None:
        cure = "Set select.acquisition = 'score', or let the predictor fill Prediction.uncertainty."
        raise ConfigError(f"select.acquisition = {config.acquisition!r}: the predictor says no uncertainty. {cure}")
    p = prediction.p_informative
    match config.acquisition:
        case "bonus":
            hoped = p + config.acquisition_bonus * sigma
        case _:
            hoped = beta_draw(p, sigma, uniform(identity, seed, step))
    return q * torch.where(p > 0, hoped / p, 1)


def uniform(identity: Int[Tensor, " tasks"], seed: int, step: int) -> Float[Tensor, " tasks"]:
    """A number in (0, 1) a task, a pure function of seed, step and identity: the 52 upper bits of a key, and a half."""
    upper = ((task_keys(identity, seed ^ DRAW, step) ^ SIGN) >> 12) & ((1 << 52) - 1)
    return (upper.double() + 0.5) / 2.0**52


def beta_draw(p: Float[Tensor, " n"], sigma: Float[Tensor, " n"], share: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The quantile `share` of Beta(p kappa, (1 - p) kappa), `kappa = p (1 - p) / sigma^2 - 1`; p where nothing is uncertain.

    Quantiles are scipy's, so on a GPU p and sigma come to the CPU and the draws go back.
    """
    mean, deviation, at = (x.cpu().double() for x in (p, sigma, share))
    spread = mean * (1 - mean)
    open_ = (deviation > 0) & (spread > 0)
    kappa = (spread[open_] / deviation[open_].square() - 1).clamp(min=MIN_WEIGHT)
    a, b = mean[open_] * kappa, (1 - mean[open_]) * kappa
    draw = mean.clone()
    draw[open_] = torch.from_numpy(betaincinv(a.numpy(), b.numpy(), at[open_].numpy()))
    return draw.to(p.device)
