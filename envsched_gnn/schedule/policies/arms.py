"""What SEC and DUMP share: environments as the arms of a bandit.

Knows: the advantage of groups, means by environment, draws of tasks by the chance of their environment.
Does not know: what an arm is worth.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from envsched_gnn.ops import segment_sum
from envsched_gnn.schedule.policies import chance
from envsched_gnn.schedule.policies.groups import Groups
from envsched_gnn.schedule.policies.rule import Ask, Plan


def mean_advantage(groups: Groups) -> Float[Tensor, " groups"]:
    """Mean |r - mean| / std of each group, 0 without variance: 2 sqrt(p (1-p)) of binary rewards."""
    return torch.where(groups.mixed, groups.deviation / groups.variance.clamp(min=1e-30).sqrt(), 0.0)


def by_environment(
    values: Float[Tensor, " n"], env: Int[Tensor, " n"], environments: int
) -> tuple[Float[Tensor, " environments"], Float[Tensor, " environments"]]:
    """(mean of the values, number of values) of each environment; mean 0 without any."""
    total, count = segment_sum(torch.stack([values, torch.ones_like(values)]), env, environments)
    return total / count.clamp(min=1), count


def draw(ask: Ask, logit: Float[Tensor, " environments"], env_index: Int[Tensor, " tasks"]) -> Plan:
    """`count` draws without replacement: an environment with a chance proportional to exp(logit), in it a task uniformly.

    score = log P(e) - log n_e + Gumbel, n_e = eligible tasks of the environment, P over environments that have some (ours: the sources
    draw with replacement, which a task in flight forbids).
    """
    env = env_index[ask.rows]
    size = torch.bincount(env, minlength=len(logit))
    log_p = torch.log_softmax(logit.masked_fill(size == 0, -torch.inf), 0) if len(env) else logit
    return ask.best(log_p[env] - size[env].log() + chance.gumbel(ask.draws(chance.GUMBEL)))
