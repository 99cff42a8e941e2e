"""Do the peers find what varies? On a pool that holds still, with structure for each to use: direction, not proof."""

import numpy as np
import pytest
import torch

from envsched_gnn.schedule.policies import NAMES, play_round, policy_of
from tests.schedule.small import graph_of, group

ENVIRONMENTS, TASKS, K = 20, 20, 8
RNG = np.random.default_rng(0)
ENV = np.repeat(np.arange(ENVIRONMENTS), TASKS)
OPEN = (RNG.random(ENVIRONMENTS) < 0.4)[ENV] | (RNG.random(len(ENV)) < 0.1)
CHANCE = np.where(OPEN, RNG.beta(4, 4, len(ENV)), 0.0)
"""Of each task's rollouts to succeed: 0 of most tasks in six of ten environments."""
TOPIC = torch.randn((ENVIRONMENTS, 16), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
VECTORS = TOPIC[ENV] + 0.5 * torch.randn((len(ENV), 16), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
POOL_SHARE = float(np.mean(1 - CHANCE**K - (1 - CHANCE) ** K))
"""Expected share of mixed groups of a uniform batch."""
STEPS, FROM = 40, 20
"""An epoch has 25 steps: what skips tasks by their last visit needs a second one."""


class Engine:
    def __init__(self):
        self.dice = np.random.default_rng(5)

    def rollout(self, selection):
        for pick in selection.picks:
            solved = self.dice.random(selection.num_rollouts or K) < CHANCE[pick.task_index]
            yield group(pick, selection.step, solved.astype(float).tolist())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("uniform", "envsched", "paper", "oracle")])
def test_more_mixed_groups_than_uniform(name):
    policy, engine = policy_of(name, None, graph_of(ENV.tolist()), batch_size=16, embedding=VECTORS), Engine()
    train = [played for step in range(STEPS) for played in play_round(policy, engine, step).train if step >= FROM]
    share = float(np.mean([len(set(g.rewards)) > 1 for g in train]))
    # A uniform batch's share over 320 groups has a standard error of 0.027.
    assert share > POOL_SHARE + 0.08
