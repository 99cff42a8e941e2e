"""The pocket engine: groups for a selection, one update a round, resumed bit for bit; failures are masked; evaluation changes nothing."""

import copy
import io
from dataclasses import replace

import psutil
import pytest
import torch

from envsched_gnn.config import RolloutConfig
from envsched_gnn.config_training import ModelConfig, TrainConfig
from envsched_gnn.errors import ConfigError, PoolError
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task
from envsched_gnn.train.pocket.engine import PocketEngine
from tests.train.pocket.pools import SHOP_TOOLS, breaking, selection, shop, toolworld
from tests.train.pocket.test_language import HOSTILE_TOOLS

MODEL = ModelConfig(hidden_size=32, layers=1, warm_start_batches=75, warm_start_reward=0.4)
TRAIN = TrainConfig(learning_rate=1e-3, warmup_steps=0, max_completion_tokens=16)
POOL = toolworld()
ROWS = [row for row, task in enumerate(POOL.tasks) if not task.held_out]


def engine(cache, pool: Pool = POOL, seed: int = 0, **changes) -> PocketEngine:
    rollout = RolloutConfig(num_rollouts=4, workers=1)
    return PocketEngine(pool, changes.get("model", MODEL), changes.get("train", TRAIN), rollout, seed, cache=cache)


def weights(policy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]).clone()


def rounds(policy, *steps):
    """Groups of rounds on the same tasks, in rank order."""
    played = []
    for step in steps:
        chosen = selection(POOL, step, ROWS[:10])
        groups = {group.group_id: group for group in policy.rollout(chosen)}
        played.append([groups[group_id] for group_id in chosen.group_ids])
    return played


def seen(rounds_):
    """All but the seconds, which repeat of nothing."""
    return [[(g.group_id, [(r.reward, r.status, r.tokens, r.policy_version) for r in g.rollouts]) for g in groups] for groups in rounds_]


def test_a_round_is_played_and_learned_from(cache):
    with engine(cache) as policy:
        before = weights(policy)
        (groups,) = rounds(policy, 0)
        assert not torch.equal(weights(policy), before)
        assert [group.key for group in groups] == [POOL.keys[row] for row in ROWS[:10]]
        assert {len(group.rollouts) for group in groups} == {4}
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        assert {rollout.status for rollout in rollouts} == {"ok", "truncated"}
        assert all((rollout.tokens == 16) or rollout.status == "ok" for rollout in rollouts)
        assert any(len(set(group.rewards)) > 1 for group in groups)
        assert {rollout.policy_version for rollout in rollouts} == {0}
        assert rounds(policy, 1)[0][0].rollouts[0].policy_version == 1
        assert sorted(policy.timings) == ["generate", "learn", "play"]
        assert policy.language.size < 400


def test_rounds_are_a_function_of_weights_seed_and_selection(cache):
    with engine(cache) as one, engine(cache) as two, engine(cache, seed=1) as other:
        first = seen(rounds(one, 0, 1, 2))
        assert seen(rounds(two, 0, 1, 2)) == first
        assert torch.equal(weights(one), weights(two))
        assert seen(rounds(other, 0, 1, 2)) != first


@pytest.mark.parametrize("share", [0, 4, 10])
def test_an_interrupted_round_ends_as_if_it_had_not_been(cache, share):
    with engine(cache) as whole:
        expected = rounds(whole, 0, 1)
        with engine(cache) as resumed:
            chosen = selection(POOL, 0, ROWS[:10])
            finished = expected[0][::2][:share] if share < 10 else expected[0]
            again = list(resumed.rollout(chosen, finished))
            assert {group.group_id for group in again} == set(chosen.group_ids) - {group.group_id for group in finished}
            by_id = {group.group_id: group for group in [*again, *finished]}
            assert seen([[by_id[group_id] for group_id in chosen.group_ids]]) == seen(expected[:1])
            assert seen(rounds(resumed, 1)) == seen(expected[1:])
            assert torch.equal(weights(resumed), weights(whole))


def test_pilots_belong_to_the_group_they_led_to(cache):
    """2 + 2 rollouts in two trips teach what 4 do that were written at once, when they are the same."""
    pilots = [replace(pick, group_id=pick.group_id.replace("0:", "0.pilot:")) for pick in selection(POOL, 0, ROWS[:6]).picks]
    looked = replace(selection(POOL, 0, ROWS[:6]), picks=tuple(pilots), use="pilot", num_rollouts=2, more=True)
    chosen = replace(selection(POOL, 0, ROWS[:3]), num_rollouts=2)
    with engine(cache) as policy, engine(cache) as other:
        trips = [(some, [came[name] for name in some.group_ids]) for some, came in played_in(policy, looked, chosen)]
        assert [len(group.rollouts) for _, groups in trips for group in groups] == [2] * 9
        before = weights(policy)
        joined = [replace(group, rollouts=pilot.rollouts + group.rollouts) for pilot, group in zip(trips[0][1], trips[1][1], strict=False)]
        written = [
            policy._written[pilot.group_id] + policy._written[pick.group_id] for pilot, pick in zip(pilots, chosen.picks, strict=False)
        ]
        policy.learn(joined)
        assert not torch.equal(weights(policy), before)
        assert policy.state_dict()["version"] == 1
        other.update(ROWS[:3], written, [group.rewards for group in joined])
        assert torch.equal(weights(policy), weights(other))
        assert policy._written == {}


def played_in(policy, *selections):
    """Each selection with its groups by id."""
    return [(some, {group.group_id: group for group in policy.play(some)}) for some in selections]


def test_trips_of_a_step_are_drawn_apart(cache):
    with engine(cache) as policy:
        chosen = selection(POOL, 0, ROWS[:4])
        plain, pilot, other = (
            replace(chosen, use=use, picks=tuple(replace(pick, group_id=f"{name}{pick.group_id}") for pick in chosen.picks))
            for use, name in (("train", ""), ("pilot", "a"), ("pilot", "b"))
        )
        ids = []
        for some in (plain, pilot, other, pilot):
            list(policy.play(some))
            ids.append([[c.ids for c in policy._written[name]] for name in some.group_ids])
        assert ids[1] == ids[3]
        assert ids[0] != ids[1] != ids[2] != ids[0]
        assert {*policy.timings} == {"generate", "play"}
        policy.learn([])
        assert {*policy.timings} == {"generate", "play", "learn"}


def test_the_state_restores_all(cache):
    with engine(cache) as whole:
        rounds(whole, 0, 1)
        file = io.BytesIO()
        torch.save(whole.state_dict(), file)
        expected = seen(rounds(whole, 2, 3))
        file.seek(0)
        with engine(cache) as restored:
            restored.load_state_dict(torch.load(file, weights_only=True))
            assert seen(rounds(restored, 2, 3)) == expected
            assert torch.equal(weights(restored), weights(whole))


def test_evaluation_changes_nothing(cache):
    held_out = [row for row, task in enumerate(POOL.tasks) if task.held_out]
    with engine(cache) as plain, engine(cache) as evaluated:
        expected = seen(rounds(plain, 0, 1))
        first = evaluated.evaluate(held_out[:6], 3)
        state = torch.random.get_rng_state()
        assert evaluated.evaluate(held_out[:6], 3) == first
        assert torch.equal(torch.random.get_rng_state(), state)
        played = seen(rounds(evaluated, 0))
        evaluated.evaluate(ROWS, 2)
        assert played + seen(rounds(evaluated, 1)) == expected
        assert torch.equal(weights(evaluated), weights(plain))
        assert [len(group) for group in first] == [3] * 6
        assert evaluated.evaluate(held_out[:1], 2) != [[None, None]]


def test_a_crash_masks_its_rollouts_alone(cache):
    """The tool is in many plans of one environment; the policy, taught before it broke, calls it in some rollouts and not in others."""
    with engine(cache) as whole:
        expected = rounds(whole, 0)[0]
        learned = weights(whole)
    with engine(cache) as policy:
        broken = breaking(POOL, "delete_client")
        policy.pool = policy._player._pool = broken
        groups = rounds(policy, 0)[0]
        changed = weights(policy)
    statuses = {rollout.status for group in groups for rollout in group.rollouts}
    assert "crashed" in statuses
    for group, other in zip(groups, expected, strict=True):
        for rollout, sound in zip(group.rollouts, other.rollouts, strict=True):
            assert rollout.reward == (None if rollout.status == "crashed" else sound.reward)
            assert "SystemExit" in rollout.detail or rollout.status != "crashed"
    assert any(None in group.rewards and set(group.rewards) != {None} for group in groups)
    assert torch.isfinite(changed).all()
    assert not torch.equal(changed, learned)


def test_the_policy_before_rl_does_not_depend_on_the_seed(tmp_path):
    short = replace(MODEL, warm_start_batches=25)
    with engine(tmp_path / "a", model=short, seed=1) as one, engine(tmp_path / "b", model=short, seed=2) as two:
        assert torch.equal(weights(one), weights(two))


def test_the_look_maps_rewards_to_the_unit_interval(cache):
    """Rewards from -1 to 1: nothing solved is 0, not 0.5, and a reward of 0 is one half."""
    tasks = tuple(replace(task, reward_range=(-1.0, 1.0)) for task in POOL.tasks)
    with engine(cache) as plain, engine(cache) as wide:
        share = plain._solved(plain.model)
        assert 0 < share < 1
        wide.pool = wide._player._pool = replace(POOL, tasks=tasks)
        assert wide._solved(wide.model) == pytest.approx(share, abs=1e-4)


def test_no_process_is_left(cache):
    before = set(psutil.Process().children(recursive=True))
    with engine(cache) as policy:
        rounds(policy, 0)
        assert set(psutil.Process().children(recursive=True)) - before
    assert not set(psutil.Process().children(recursive=True)) - before
    with pytest.raises(ConfigError):
        engine(cache, train=replace(TRAIN, kl=0.1))
    assert not set(psutil.Process().children(recursive=True)) - before


def test_a_task_too_long_to_read_is_refused(tmp_path):
    long = shop(["Sell it.", "word " * 2000])
    with pytest.raises(
        PoolError, match=r"task 'shop/t1': 2006 tokens with its tools; expected at most 1008 for the pocket model\. Shorten it"
    ):
        engine(tmp_path, pool=long)


def test_a_pool_with_nothing_to_train_on_is_refused(tmp_path):
    tasks = tuple(replace(task, info={**task.info, "held_out": True}) for task in POOL.tasks)
    with pytest.raises(PoolError, match=r"all tasks are held out or set aside to teach from; expected some to train on"):
        engine(tmp_path, pool=replace(POOL, tasks=tasks))


def test_an_engine_can_be_taken_back(cache):
    with engine(cache) as policy:
        state = copy.deepcopy(policy.state_dict())
        rounds(policy, 0)
        moved = weights(policy)
        policy.load_state_dict(state)
        assert not torch.equal(weights(policy), moved)
        rounds(policy, 0)
        assert torch.equal(weights(policy), moved)


def test_odd_pools_are_played(tmp_path):
    """Tools of odd names and schemas, prompts of all kinds, an environment that cannot be executed: the rest learns."""
    prompts = ["Open it.", "", "日本 \ud800 <end> ()", " and ".join(f'"Name {n}"' for n in range(100)), "9" * 5000]
    odd = shop(prompts, tools=(*SHOP_TOOLS, *HOSTILE_TOOLS))
    tasks = [replace(odd.tasks[0], ground_truth=[{"name": "open_door", "arguments": {}}], info={"taught": True, "held_out": True})]
    away = Environment(env_id="away", env_type="mcp", tools=SHOP_TOOLS)
    pool = replace(
        odd, environments=(*odd.environments, away), tasks=(*tasks, *odd.tasks[1:], Task(env_id="away", task_id="t", prompt="Go."))
    )
    for own_tools in (True, False):
        model = ModelConfig(hidden_size=16, layers=1, warm_start_batches=5, own_tools=own_tools)
        with engine(tmp_path, pool, model=model, train=replace(TRAIN, temperature=3.0)) as policy:
            groups = {group.key: group for group in policy.rollout(selection(pool, 0, range(1, 6)))}
            statuses = {key: {rollout.status for rollout in group.rollouts} for key, group in groups.items()}
            assert statuses.pop("away/t") == {"crashed"}
            assert set.union(*statuses.values()) <= {"ok", "truncated", "crashed"}
            assert all(rollout.reward is not None or rollout.status == "crashed" for group in groups.values() for rollout in group.rollouts)
            assert torch.isfinite(weights(policy)).all()
