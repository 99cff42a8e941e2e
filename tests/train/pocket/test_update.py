"""GRPO's update: literal advantages, the gradient of the clipped loss by its formula, masked rollouts, momentum, warm-up."""

import copy
import math

import pytest
import torch

from envsched_gnn.config_training import TrainConfig
from envsched_gnn.errors import ConfigError
from envsched_gnn.train.pocket.generate import Completion, generate
from envsched_gnn.train.pocket.model import new_model
from envsched_gnn.train.pocket.update import Learner, Sample, advantages

PROMPTS = [[5, 6, 7], [8, 9, 5, 6, 7], [9]]
LIMIT = 6


@pytest.mark.parametrize(
    ("rewards", "scale", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], False, [0.75, -0.25, -0.25, -0.25]),
        ([1.0, 0.0, 0.0, 0.0], True, [0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001]),
        ([1.0, None, 0.0, 1.0], False, [1 / 3, 0.0, -2 / 3, 1 / 3]),
        ([1.0, None, 0.0], True, [0.5 / (math.sqrt(0.5) + 1e-4), 0.0, -0.5 / (math.sqrt(0.5) + 1e-4)]),
        ([0.1, 0.1, 0.1], True, [0.0, 0.0, 0.0]),
        ([0.3, None], True, [0.0, 0.0]),
        ([None, None], True, [0.0, 0.0]),
        ([], True, []),
        ([-2.0, 4.0], False, [-3.0, 3.0]),
    ],
)
def test_advantages(rewards, scale, expected):
    assert advantages(rewards, scale) == pytest.approx(expected, abs=1e-12)


def config(**changes):
    plain = {"learning_rate": 0.01, "warmup_steps": 0, "max_completion_tokens": LIMIT, "scale_rewards": "none", "loss_type": "grpo"}
    return TrainConfig(**plain | changes)


def model():
    return new_model(10, hidden_size=32, layers=1, pad=0, end=4)


def groups_of(policy, *rewards, temperature=1.0, shift=0.0, free=None):
    """A group for each list of rewards, sampled from the policy; `shift` makes the policy seem other than it was."""
    generator = torch.Generator().manual_seed(11)
    groups = []
    for prompt, group in zip(PROMPTS, rewards, strict=False):
        settings = {"samples": len(group), "max_new_tokens": LIMIT, "temperature": temperature, "free": free}
        (written,) = generate(policy, [prompt], generator=generator, **settings)
        moved = [Completion(ids=c.ids, logprobs=[value - shift for value in c.logprobs], truncated=c.truncated) for c in written]
        groups.append([Sample(prompt=prompt, completion=c, reward=reward) for c, reward in zip(moved, group, strict=True)])
    return groups


def gradient(policy):
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


def weights(policy):
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]).clone()


def learned_gradient(groups, policy=None, free=None, **changes):
    """The gradient of one update, as the optimiser saw it."""
    policy = policy or model()
    Learner(policy, config(**changes), free).learn(groups)
    return gradient(policy)


def by_formula(groups, sizes, temperature=1.0, free=None):
    """d/dw of - sum over rollouts and tokens of A min(ratio, clip(ratio)) / size, one rollout at a time, of norm at most 1."""
    policy = model()
    total = torch.zeros(())
    for group in groups:
        for sample, advantage in zip(group, advantages([s.reward for s in group], False), strict=True):
            ids = sample.completion.ids
            logits = policy(input_ids=torch.tensor([[*sample.prompt, *ids]])).logits[0, len(sample.prompt) - 1 : -1] / temperature
            if free is not None:
                banned = [token for token in range(10) if token not in {*sample.prompt, *free}]
                logits = logits.index_fill(-1, torch.tensor(banned), -torch.inf)
            logprob = logits.log_softmax(-1)[torch.arange(len(ids)), ids]
            ratio = (logprob - torch.tensor(sample.completion.logprobs)).exp()
            clipped = ratio.clamp(0.8, 1.2)
            total = total - torch.minimum(ratio * advantage, clipped * advantage).sum() / sizes(sample)
    total.backward()
    found = gradient(policy)
    return found / max(1.0, float(found.norm()) + 1e-6)


SMALL = [0.1, 0.0, 0.05]
"""So that the gradient is below the norm at which it is clipped."""
REWARDS = ([1.0, 0.0, 0.5], [0.0, 1.0, None, 0.0], [1.0, 1.0])


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.5, -0.5])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_the_gradient_is_that_of_the_clipped_loss(loss_type, shift):
    groups = groups_of(model(), *REWARDS, shift=shift)
    tokens = sum(len(s.completion.ids) for group in groups for s in group if s.reward is not None)
    sizes = {"grpo": lambda s: 9 * len(s.completion.ids), "dr_grpo": lambda s: 9 * LIMIT, "dapo": lambda s: tokens}
    found, expected = learned_gradient(groups, loss_type=loss_type), by_formula(groups, sizes[loss_type])
    assert expected.norm() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_what_a_row_cannot_write_has_no_gradient():
    groups = groups_of(model(), *REWARDS, free=[4, 3])
    assert {token for group in groups for sample in group for token in sample.completion.ids} == {3, 4, 5, 6, 7, 8, 9}
    expected = by_formula(groups, lambda s: 9 * len(s.completion.ids), free=[4, 3])
    torch.testing.assert_close(learned_gradient(groups, free=[4, 3]), expected, atol=1e-6, rtol=1e-4)


def test_temperature_is_that_of_the_sampling():
    groups = groups_of(model(), *REWARDS, temperature=0.7)
    expected = by_formula(groups, lambda s: 9 * len(s.completion.ids), temperature=0.7)
    torch.testing.assert_close(learned_gradient(groups, temperature=0.7), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("shift", "rewards", "moves"), [(0.5, (1.0, 1.0, 0.0), 1), (-0.5, (0.0, 0.0, 1.0), 1), (0.0, (1.0, 0.0, 0.0), 3)])
def test_rollouts_beyond_the_clip_give_no_gradient(shift, rewards, moves):
    """Ratio e^0.5: better rollouts have no gradient left; ratio e^-0.5: worse ones have none."""
    (group,) = groups_of(model(), rewards, shift=shift)
    kept = [s if shift == 0 or (s.reward == 1.0) != (shift > 0) else None for s in group]
    assert sum(s is not None for s in kept) == moves
    alone = by_formula([group], lambda s: 3 * len(s.completion.ids) if any(s is other for other in kept) else math.inf)
    torch.testing.assert_close(learned_gradient([group]), alone, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_groups_without_variance_count_in_the_denominator_alone(loss_type):
    (group,) = groups_of(model(), SMALL)
    silent = [Sample(prompt=s.prompt, completion=s.completion, reward=0.3) for s in group]
    alone = learned_gradient([group], loss_type=loss_type)
    assert 0.01 < alone.norm() < 0.9
    torch.testing.assert_close(learned_gradient([silent, group], loss_type=loss_type), alone / 2, atol=1e-8, rtol=1e-5)


def test_tokens_of_masked_rollouts_do_not_count_but_rollouts_do():
    """As TRL counts: a masked row has no tokens, and is a row."""
    (group,) = groups_of(model(), SMALL)
    masked = [*group, Sample(prompt=group[0].prompt, completion=group[0].completion, reward=None)]
    torch.testing.assert_close(learned_gradient([masked], loss_type="dapo"), learned_gradient([group], loss_type="dapo"))
    torch.testing.assert_close(learned_gradient([masked]), learned_gradient([group]) * 3 / 4, atol=1e-8, rtol=1e-5)


def test_many_rollouts_go_through_in_parts():
    policy = model()
    groups = groups_of(policy, *[[float(k % 2) for k in range(50)]] * 3)
    whole = learned_gradient(groups)
    expected = by_formula(groups, lambda s: 150 * len(s.completion.ids))
    torch.testing.assert_close(whole, expected, atol=1e-6, rtol=1e-4)


def test_a_first_round_without_variance_moves_nothing_and_a_later_one_keeps_the_momentum():
    policy = model()
    learner = Learner(policy, config())
    silent, telling = groups_of(policy, [0.0, 0.0]), groups_of(policy, REWARDS[0])
    before = weights(policy)
    learner.learn(silent)
    assert torch.equal(weights(policy), before)
    learner.learn(telling)
    moved = weights(policy)
    assert not torch.equal(moved, before)
    learner.learn(silent)
    assert 0 < (weights(policy) - moved).norm() < (moved - before).norm() * 1.2
    learner.learn([])
    learner.learn([[Sample(prompt=[5], completion=telling[0][0].completion, reward=None)]])
    assert torch.isfinite(weights(policy)).all()


@pytest.mark.parametrize(("warmup", "rates"), [(0, [1.0, 1.0, 1.0]), (1, [0.0, 1.0, 1.0]), (4, [0.0, 0.25, 0.5])])
def test_warm_up(warmup, rates):
    learner = Learner(model(), config(warmup_steps=warmup, learning_rate=0.5))
    for rate in rates:
        learner.learn([])
        assert learner._optimizer.param_groups[0]["lr"] == rate * 0.5


def test_each_iteration_is_an_update():
    policy, twice = model(), model()
    groups = groups_of(policy, REWARDS[0])
    learner = Learner(policy, config())
    learner.learn(groups)
    learner.learn(groups)
    Learner(twice, config(num_iterations=2)).learn(groups)
    assert torch.equal(weights(policy), weights(twice))


def test_the_state_restores_the_next_update_bit_for_bit():
    policy = model()
    groups = groups_of(policy, *REWARDS)
    learner = Learner(policy, config(warmup_steps=3))
    learner.learn(groups)
    state = copy.deepcopy(learner.state_dict())
    learner.learn(groups)
    learner.learn(groups)
    after = weights(policy)
    other = model()
    restored = Learner(other, config(warmup_steps=3))
    restored.load_state_dict(state)
    restored.learn(groups)
    restored.learn(groups)
    assert torch.equal(weights(other), after)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kl": 0.1}, r"train\.kl = 0\.1: the pocket model has only 0\.0"),
        ({"algorithm": "rloo"}, r"train\.algorithm = 'rloo'"),
        ({"schedule": "cosine"}, r"train\.schedule = 'cosine'"),
        ({"top_p": 0.9}, r"train\.top_p = 0\.9"),
        ({"loss_type": "bnpo"}, r"train\.loss_type = 'bnpo'"),
        ({"scale_rewards": "batch"}, r"scale_rewards = 'batch'"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        Learner(model(), config(**changes))
