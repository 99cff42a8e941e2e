"""What a long run meets: broken rewards, groups that come twice, late or never, changed pools, cut checkpoints. Nothing is lost."""

import dataclasses
import itertools
import math

import pytest
import torch

from envsched_gnn.config import PredictConfig, ToolWorldConfig
from envsched_gnn.errors import CheckpointError
from envsched_gnn.graph.build import build_graph
from envsched_gnn.pool.pool import Pool
from envsched_gnn.pool.toolworld import generate
from envsched_gnn.records import Rollout, RolloutGroup
from envsched_gnn.schedule import EnvSched
from envsched_gnn.train import checkpoint

PRESETS = pytest.mark.parametrize("preset", ["paper", "default"])
COLUMNS = ("weight_long", "variance_long", "predicted_variance", "informativeness", "p_informative", "num_selections")
MIXED = (0.0, 0.25, 0.25, 1.0)


@pytest.fixture(scope="module")
def pool():
    return generate(ToolWorldConfig(environments=4, tasks=6, seed=5))


@pytest.fixture(scope="module")
def graph(pool):
    return build_graph(pool)


def group_of(pick, step, rewards, status="ok"):
    rollouts = tuple(Rollout(reward=reward, status=status) for reward in rewards)
    return RolloutGroup(group_id=pick.group_id, env_id=pick.env_id, task_id=pick.task_id, step=step, rollouts=rollouts)


def varied(selection):
    """One group a pick; rewards that differ between tasks, the same on every call."""
    return [group_of(p, selection.step, [(p.task_index * 7 + k * (p.task_index % 4)) % 5 / 4 for k in range(4)]) for p in selection.picks]


def columns(scheduler, step):
    scores = scheduler.scores(step)
    return {name: torch.as_tensor(scores[name]).tolist() for name in COLUMNS}


def same(scheduler_a, scheduler_b, step):
    """Equal beliefs up to the order of summation, and equal picks."""
    a, b = columns(scheduler_a, step), columns(scheduler_b, step)
    for name in COLUMNS:
        assert a[name] == pytest.approx(b[name], abs=1e-12), name
    assert scheduler_a.select(step).task_ids == scheduler_b.select(step).task_ids


def all_finite(scheduler, step):
    return all(math.isfinite(x) for column in columns(scheduler, step).values() for x in column)


# --- rewards --------------------------------------------------------------------------------------------------------------------------
BAD = (math.nan, None, math.inf, -math.inf, -0.01, 1.01, 1e300)


@PRESETS
def test_bad_rewards_are_masked_one_by_one(pool, graph, preset):
    """A group with bad rewards says what its good ones say; groups are ragged by nature."""
    clean = EnvSched(pool, graph, batch_size=8, preset=preset)
    dirty = EnvSched(pool, graph, batch_size=8, preset=preset)
    picks = clean.select(0)
    assert dirty.select(0).task_ids == picks.task_ids
    clean.observe([group_of(p, 0, MIXED[: 2 + p.rank % 3]) for p in picks.picks])
    dirty.observe([group_of(p, 0, (*BAD[: p.rank % 8], *MIXED[: 2 + p.rank % 3], *BAD)) for p in picks.picks])
    assert all_finite(dirty, 1)
    same(clean, dirty, 1)


@PRESETS
@pytest.mark.parametrize("rewards", [(None,) * 4, (math.nan,) * 4, (math.inf, -1.0), (), (0.5,), (0.5, None, None)])
def test_a_group_without_two_rewards_teaches_nothing_but_counts_as_exposure(pool, graph, preset, rewards):
    scheduler = EnvSched(pool, graph, batch_size=4, preset=preset)
    fresh = columns(scheduler, 1)
    picks = scheduler.select(0)
    scheduler.observe([group_of(p, 0, rewards) for p in picks.picks])
    after = columns(scheduler, 1)
    chosen = {p.task_index for p in picks.picks}
    assert after.pop("num_selections") == [float(i in chosen) for i in range(24)]
    assert all(after[name] == fresh[name] for name in after)
    assert {p.phase for p in scheduler.select(1).picks} == {"cold"}


def test_a_masked_task_is_free_again(pool, graph):
    scheduler = EnvSched(pool, graph, batch_size=24)
    picks = scheduler.select(0)
    scheduler.observe([group_of(p, 0, (None, None)) for p in picks.picks])
    assert sorted(scheduler.select(1).task_ids) == sorted(pool.keys)


@PRESETS
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1e6, 1e6), (0.0, 1e-3), (100.0, 101.0)])
def test_equal_rewards_with_float_noise_have_no_variance(pool, preset, low, high):
    """Noise is measured against the range: ten times 1e-13 of it is nothing, whatever the scale."""
    ranged = Pool(environments=pool.environments, tasks=tuple(dataclasses.replace(t, reward_range=(low, high)) for t in pool.tasks))
    graph = build_graph(ranged)
    strict = PredictConfig(v_floor=0.0)  # any variance at all would count
    exact, noisy = (EnvSched(ranged, graph, batch_size=8, preset=preset, predict=strict) for _ in range(2))
    picks = exact.select(0)
    noisy.select(0)
    middle, span = low + 0.3 * (high - low), high - low
    exact.observe([group_of(p, 0, (middle,) * 4) for p in picks.picks])
    noisy.observe([group_of(p, 0, [middle + k * 1e-13 * span for k in range(4)]) for p in picks.picks])
    seen = [p.task_index for p in picks.picks]
    assert [noisy.scores(1)["variance_long"][i] for i in seen] == pytest.approx([0.0] * 8, abs=1e-12)
    assert columns(exact, 1)["p_informative"] == pytest.approx(columns(noisy, 1)["p_informative"], abs=1e-12)
    assert max(columns(noisy, 1)["p_informative"]) < 0.5
    assert noisy.metrics()["envsched/round/zero_variance_share"] == 1.0


# --- groups ---------------------------------------------------------------------------------------------------------------------------
@PRESETS
def test_a_group_reported_twice_counts_once(pool, graph, preset):
    once, twice = EnvSched(pool, graph, batch_size=6, preset=preset), EnvSched(pool, graph, batch_size=6, preset=preset)
    picks = once.select(0)
    twice.select(0)
    once.observe(varied(picks))
    twice.observe([*varied(picks), *varied(picks)])
    twice.observe([group_of(p, 0, (0.0, 1.0)) for p in picks.picks])  # the first report stands
    same(once, twice, 1)


@PRESETS
def test_the_order_of_reports_does_not_matter(pool, graph, preset):
    """Groups of three rounds, reported in order of their rounds, backwards, or each round a step late: the same beliefs in the end."""
    forward = EnvSched(pool, graph, batch_size=5, preset=preset)
    backward = EnvSched(pool, graph, batch_size=5, preset=preset)
    rounds = [forward.select(step) for step in range(3)]
    assert [backward.select(step).task_ids for step in range(3)] == [s.task_ids for s in rounds]
    assert len({key for s in rounds for key in s.task_ids}) == 15  # in flight: never proposed twice
    for selection in rounds:
        forward.observe(varied(selection))
    for reports in reversed([g for selection in rounds for g in varied(selection)]):
        backward.observe([reports])
    same(forward, backward, 3)


@PRESETS
def test_a_late_group_counts_at_the_step_of_its_selection(pool, graph, preset):
    scheduler = EnvSched(pool, graph, batch_size=4, preset=preset)
    first = scheduler.select(0)
    late, *punctual = varied(first)
    scheduler.observe(punctual)
    for step in range(1, 5):
        selection = scheduler.select(step)
        assert first.task_ids[0] not in selection.task_ids
        scheduler.observe(varied(selection))
    scheduler.observe([late])
    assert columns(scheduler, 8)["weight_long"][first.picks[0].task_index] == pytest.approx(0.5)


def test_a_group_that_never_reports_blocks_nothing_but_its_task(pool, graph):
    scheduler = EnvSched(pool, graph, batch_size=4)
    lost = scheduler.select(0)
    seen = set()
    for step in range(1, 30):
        selection = scheduler.select(step)
        assert len(selection.picks) == 4
        seen |= set(selection.task_ids)
        scheduler.observe(varied(selection))
    assert seen == set(pool.keys) - set(lost.task_ids)
    scheduler.cancel(lost.group_ids)
    assert set(lost.task_ids) & set(scheduler.select(30, 24).task_ids) == set(lost.task_ids)


@PRESETS
def test_groups_of_unknown_tasks_change_nothing(pool, graph, preset):
    plain, told = EnvSched(pool, graph, batch_size=6, preset=preset), EnvSched(pool, graph, batch_size=6, preset=preset)
    picks = plain.select(0)
    told.select(0)
    rollouts = (Rollout(reward=0.0), Rollout(reward=1.0))
    strange = [
        RolloutGroup(group_id=f"0:{env}/{task}", env_id=env, task_id=task, step=0, rollouts=rollouts)
        for env, task in (("nowhere", "t"), (pool.environments[0].env_id, "no such task"), ("", ""), ("ünï/cödé", "\udcff"))
    ]
    plain.observe(varied(picks))
    told.observe([*strange, *varied(picks), *strange])
    same(plain, told, 1)


@PRESETS
def test_fifty_rounds_without_variance(pool, graph, preset):
    """Nothing to learn from: batches stay full and diverse, numbers finite, and the default preset knows that it expects nothing."""
    scheduler = EnvSched(pool, graph, batch_size=6, preset=preset)
    seen = set()
    for step in range(50):
        selection = scheduler.select(step)
        assert len(set(selection.task_ids)) == 6
        seen |= set(selection.task_ids)
        scheduler.observe([group_of(p, step, (float(p.task_index % 2),) * 8) for p in selection.picks])
    assert seen == set(pool.keys)
    assert all_finite(scheduler, 50)
    after = columns(scheduler, 50)
    assert max(after["predicted_variance"]) < 1e-9
    assert max(after["p_informative"]) < 0.1
    assert all(math.isfinite(value) for value in scheduler.metrics().values())
    # and it is not stuck: the first variance is noticed
    selection = scheduler.select(50)
    scheduler.observe([group_of(p, 50, (0.0, 1.0) * 4 if p.rank == 1 else (0.0,) * 8) for p in selection.picks])
    best = selection.picks[0].task_index
    assert columns(scheduler, 51)["p_informative"][best] == max(columns(scheduler, 51)["p_informative"])


# --- sizes ----------------------------------------------------------------------------------------------------------------------------
@PRESETS
def test_one_environment_smaller_than_the_batch(pool, preset):
    """One environment, six tasks, a batch of 64, quotas that cannot hold: all six come every round, and every broken quota is reported."""
    only = pool.environments[0]
    small = Pool(environments=(only,), tasks=tuple(t for t in pool.tasks if t.env_id == only.env_id))
    scheduler = EnvSched(small, build_graph(small), batch_size=64, preset=preset)
    for step in range(6):
        selection = scheduler.select(step)
        assert sorted(selection.task_ids) == sorted(small.keys)
        broken = [(r.quota, f"{r.env_id}/{r.task_id}") for r in selection.relaxations]
        assert sorted(broken) == (sorted(("consecutive", key) for key in small.keys) if step >= 2 else [])
        scheduler.observe(varied(selection))


# --- a pool that changes between save and load ----------------------------------------------------------------------------------------
def practised(pool, graph, preset, rounds=6):
    scheduler = EnvSched(pool, graph, batch_size=8, preset=preset)
    for step in range(rounds):
        scheduler.observe(varied(scheduler.select(step)))
    return scheduler


def own_history(scheduler, step):
    """Identity -> what a task's own groups say."""
    scores, graph = scheduler.scores(step), scheduler.graph
    keys = [f"{graph.env_ids[e]}/{t}" for e, t in zip(graph["task"].env_index.tolist(), graph.task_ids, strict=True)]
    return {key: (float(w), float(c)) for key, w, c in zip(keys, scores["weight_long"], scores["num_selections"], strict=True)}


def renamed(pool, old, new):
    """The pool with one environment renamed."""
    environments = tuple(dataclasses.replace(e, env_id=new) if e.env_id == old else e for e in pool.environments)
    tasks = tuple(dataclasses.replace(t, env_id=new) if t.env_id == old else t for t in pool.tasks)
    return Pool(environments=environments, tasks=tasks)


def changed_pools(pool):
    first, *rest = pool.environments
    bigger = generate(ToolWorldConfig(environments=6, tasks=6, seed=6))
    extra = dataclasses.replace(bigger.environments[0], env_id="newcomer")
    newcomers = tuple(dataclasses.replace(t, env_id="newcomer") for t in bigger.tasks if t.env_id == bigger.environments[0].env_id)
    by_env = [[t for t in pool.tasks if t.env_id == e.env_id] for e in pool.environments]
    interleaved = tuple(itertools.chain(*zip(*by_env, strict=True)))
    return {
        "task removed": (Pool(environments=pool.environments, tasks=pool.tasks[1:]), (23, 1, 0)),
        "task renamed": (
            Pool(environments=pool.environments, tasks=(dataclasses.replace(pool.tasks[0], task_id="renamed"), *pool.tasks[1:])),
            (23, 1, 1),
        ),
        "environment removed": (Pool(environments=tuple(rest), tasks=tuple(t for t in pool.tasks if t.env_id != first.env_id)), (18, 6, 0)),
        "environment renamed": (renamed(pool, first.env_id, "another name"), (18, 6, 6)),
        "environment added in front": (Pool(environments=(extra, *pool.environments), tasks=(*newcomers, *pool.tasks)), (24, 0, 6)),
        "order reversed": (Pool(environments=pool.environments[::-1], tasks=pool.tasks[::-1]), (24, 0, 0)),
        "order interleaved": (
            Pool(environments=pool.environments, tasks=interleaved),
            (24, 0, 0),
        ),
    }


@PRESETS
@pytest.mark.parametrize(
    "change",
    [
        "task removed",
        "task renamed",
        "environment removed",
        "environment renamed",
        "environment added in front",
        "order reversed",
        "order interleaved",
    ],
)
def test_a_changed_pool_keeps_the_history_of_every_task_that_is_still_there(pool, graph, preset, change, tmp_path):
    """(known, unknown, new) are reported, survivors keep their history, newcomers start empty, and the way back loses nothing."""
    new_pool, expected = changed_pools(pool)[change]
    old = practised(pool, graph, preset)
    checkpoint.save(tmp_path, 6, old.state_dict())
    state, problems = checkpoint.load_newest(tmp_path)
    assert problems == []
    new = EnvSched(new_pool, build_graph(new_pool), batch_size=8, preset=preset)
    report = new.load_state_dict(state)
    assert (report.known, report.unknown, report.new) == expected
    before, after = own_history(old, 6), own_history(new, 6)
    assert all(after[key] == before.get(key, (0.0, 0.0)) for key in after)
    assert all_finite(new, 6)

    selection = new.select(6)
    assert len(set(selection.task_ids)) == 8
    assert set(selection.task_ids) <= set(new_pool.keys)
    new.observe(varied(selection))
    back = EnvSched(pool, graph, batch_size=8, preset=preset)
    back.load_state_dict(new.state_dict())
    kept = own_history(back, 6)
    absent = set(pool.keys) - set(new_pool.keys)
    assert all(kept[key] == before[key] for key in absent)


@PRESETS
def test_groups_in_flight_wait_for_their_environment_to_return(pool, graph, preset):
    """A batch in flight, a resume without one environment, another with it: the late reports count as if nothing had been."""
    old = practised(pool, graph, preset)
    flying = old.select(6)
    gone = flying.picks[0].env_id
    smaller = Pool(environments=pool.environments, tasks=tuple(t for t in pool.tasks if t.env_id != gone))
    between = EnvSched(smaller, build_graph(smaller), batch_size=8, preset=preset)
    between.load_state_dict(old.state_dict())
    back = EnvSched(pool, graph, batch_size=8, preset=preset)
    back.load_state_dict(between.state_dict())
    for scheduler in (old, back):
        assert not set(flying.task_ids) & set(scheduler.select(7).task_ids)
        scheduler.observe(varied(flying))
    same(old, back, 8)


@PRESETS
def test_a_reordered_pool_picks_the_same_tasks(pool, graph, preset):
    """Identity is the string, never the row."""
    old = practised(pool, graph, preset)
    shuffled = Pool(environments=pool.environments[::-1], tasks=pool.tasks[::-1])
    new = EnvSched(shuffled, build_graph(shuffled), batch_size=8, preset=preset)
    new.load_state_dict(old.state_dict())
    assert new.select(6).task_ids == old.select(6).task_ids


# --- checkpoints ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_half_written_checkpoint_is_passed_over(pool, graph, share, tmp_path):
    """The newest whole one is used, and the run goes on exactly as it did."""
    scheduler = practised(pool, graph, "default", rounds=3)
    checkpoint.save(tmp_path, 3, scheduler.state_dict())
    scheduler.observe(varied(scheduler.select(3)))
    newest = checkpoint.save(tmp_path, 4, scheduler.state_dict())
    content = newest.read_bytes()
    newest.write_bytes(content[: int(len(content) * share)])
    (tmp_path / "step-000005.pt.tmp").write_bytes(content[:100])
    with pytest.raises(CheckpointError, match="half-written or damaged"):
        checkpoint.load(newest)
    state, problems = checkpoint.load_newest(tmp_path)
    assert len(problems) == 1
    assert "step-000004.pt" in problems[0]
    resumed = EnvSched(pool, graph, batch_size=8)
    resumed.load_state_dict(state)
    resumed.observe(varied(resumed.select(3)))
    assert resumed.select(4) == scheduler.select(4)


def test_no_whole_checkpoint_is_a_fresh_start_with_a_reason(tmp_path):
    (tmp_path / "step-000001.pt").write_bytes(b"")
    state, problems = checkpoint.load_newest(tmp_path)
    assert state is None
    assert len(problems) == 1


@pytest.mark.parametrize("state", [{}, {"version": 10**9}, {"tasks": "nonsense"}])
def test_a_state_that_is_none_is_refused(pool, graph, state):
    scheduler = practised(pool, graph, "default", rounds=2)
    before = columns(scheduler, 2)
    with pytest.raises(CheckpointError):
        scheduler.load_state_dict(state)
    assert columns(scheduler, 2) == before
