"""Small graphs and groups for the tests of the scheduler."""

import torch

from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.records import Rollout, RolloutGroup


def graph_of(env_index, *, seed=0, words=4, records=None, held_out=None, task_ids=None, env_ids=None, low=None, high=None):
    """A graph whose similarities come from a few random words, so that ties and strangers both occur."""
    env_index = torch.as_tensor(env_index, dtype=torch.int64)
    tasks, generator = len(env_index), torch.Generator().manual_seed(seed)
    records = records or max(tasks // 2, 1)
    return assemble_graph(
        env_ids=env_ids or [f"e{k}" for k in range(int(env_index.max()) + 1)],
        env_index=env_index,
        task_ids=task_ids or [f"t{k}" for k in range(tasks)],
        within_vectors=unit(tasks, words, generator),
        cross_vectors=unit(records, words, generator),
        record_index=torch.randint(records, (tasks,), generator=generator),
        held_out=None if held_out is None else torch.tensor(held_out),
        reward_low=None if low is None else torch.tensor(low, dtype=torch.float64),
        reward_high=None if high is None else torch.tensor(high, dtype=torch.float64),
    )


def unit(count, words, generator):
    vectors = torch.randint(0, 3, (count, words), generator=generator).double()
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-9)


def group(pick, step, rewards, status="ok"):
    rollouts = tuple(Rollout(reward=reward, status=status) for reward in rewards)
    return RolloutGroup(group_id=pick.group_id, env_id=pick.env_id, task_id=pick.task_id, step=step, rollouts=rollouts)


def groups(selection, rewards=None):
    """One group a pick; by default rewards that depend on the task's identity alone."""
    return [group(p, selection.step, rewards or own_rewards(p)) for p in selection.picks]


def own_rewards(pick):
    number = sum(map(ord, pick.key))
    return [(number * 7 + k * (number % 4)) % 5 / 4 for k in range(4)]
