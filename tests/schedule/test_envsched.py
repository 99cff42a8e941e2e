"""The scheduler as a whole: requests, reports, quotas, quarantine, state. Numbers themselves are checked in tests/test_agreement.py."""

import json
import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsched_gnn.config import SelectConfig
from envsched_gnn.errors import CheckpointError, GraphError, HistoryError
from envsched_gnn.graph.build import assemble_graph
from envsched_gnn.records import Rollout, RolloutGroup
from envsched_gnn.schedule import EnvSched, Uniform
from tests.schedule.small import graph_of, group, groups, own_rewards

PRESETS = pytest.mark.parametrize("preset", ["paper", "default"])
ENVIRONMENTS = [k % 5 for k in range(30)]


@pytest.fixture
def graph():
    return graph_of(ENVIRONMENTS, seed=3)


def practised(graph, preset="default", rounds=5, batch_size=6, **options):
    scheduler = EnvSched(None, graph, batch_size=batch_size, preset=preset, **options)
    for step in range(rounds):
        scheduler.observe(groups(scheduler.select(step)))
    return scheduler


# --- requests -------------------------------------------------------------------------------------------------------------------------
def test_the_same_request_returns_the_same_selection(graph):
    scheduler = EnvSched(None, graph, batch_size=6)
    first = scheduler.select(0)
    assert scheduler.select(0) is first
    assert scheduler.select(0, 6) is first
    scheduler.observe(groups(first))
    assert scheduler.select(0) is first
    scheduler.select(1)
    assert scheduler.select(0) is first
    other = scheduler.select(1, 6, "again")
    assert not set(other.task_ids) & set(scheduler.select(1).task_ids)
    assert scheduler.select(np.int64(1), np.int64(6), "again") is other


def test_a_new_request_of_an_earlier_step_is_refused(graph):
    scheduler = practised(graph, rounds=3)
    with pytest.raises(HistoryError, match="step 2 was selected already"):
        scheduler.select(1, 5)
    for step, n in ((-1, None), (3, -1)):
        with pytest.raises(HistoryError, match="expected numbers from 0 on"):
            scheduler.select(step, n)


def test_requests_of_a_step_share_its_quotas(graph):
    scheduler = EnvSched(None, graph, select=SelectConfig(batch_size=10, per_round=2))
    picks = [p for k in range(5) for p in scheduler.select(0, 2, f"worker {k}").picks]
    assert sorted(p.env_id for p in picks) == sorted(["e0", "e1", "e2", "e3", "e4"] * 2)
    assert len({p.key for p in picks}) == 10
    assert len(scheduler.select(0, 2, "one more").relaxations) == 2


@pytest.mark.parametrize(("share", "n", "coverage"), [(0.5, 6, 3), (0.5, 5, 2), (0.5, 1, 0), (1.0, 4, 4), (0.0, 4, 0), (0.3, 10, 3)])
def test_coverage_picks_come_first(graph, share, n, coverage):
    """round(rho n), Python's round: halves go to the even number."""
    scheduler = practised(graph, rounds=2, select=SelectConfig(batch_size=6, coverage_share=share))
    assert [p.phase for p in scheduler.select(2, n).picks] == ["coverage"] * coverage + ["exploitation"] * (n - coverage)


def test_a_preset_has_its_threshold_unless_one_is_given(graph):
    given = SelectConfig(penalty_threshold=0.7)
    found = [
        EnvSched(None, graph, preset=preset, select=select).redundancy.threshold
        for preset in ("paper", "default")
        for select in (None, given)
    ]
    assert found == [0.5, 0.7, 0.9, 0.7]


def test_of_embeddings_the_threshold_starts_at_their_mean_similarity():
    """Three tasks, two of one record at a right angle to the third's: mean vector (2/3, 1/3), m = 5/9, and 5/9 + .9 x 4/9 = 43/45."""
    graph = assemble_graph(
        env_ids=["a", "b"],
        env_index=torch.tensor([0, 1, 1]),
        task_ids=["0", "1", "2"],
        within_blocks=[torch.ones(1, 1), torch.ones(2, 2)],
        cross_vectors=torch.eye(2, dtype=torch.float64),
        record_index=torch.tensor([0, 0, 1]),
    )
    for similarity, thresholds in (("dense", [7 / 9, 43 / 45]), ("both", [0.5, 0.9]), ("tfidf", [0.5, 0.9])):
        graph.feature_config = {"similarity": similarity}
        found = [EnvSched(None, graph, preset=preset).redundancy.threshold for preset in ("paper", "default")]
        assert found == pytest.approx(thresholds)


def test_an_empty_request_is_empty(graph):
    scheduler = practised(graph, rounds=1)
    assert scheduler.select(1, 0).picks == ()
    assert len(scheduler.select(1).picks) == 6


def test_seeds_and_steps_give_different_cold_batches(graph):
    batches = {EnvSched(None, graph, batch_size=6, seed=seed).select(step).task_ids for seed in range(3) for step in range(3)}
    assert len(batches) == 9


def test_cold_until_something_is_observed(graph):
    scheduler = EnvSched(None, graph, batch_size=6)
    scheduler.observe(groups(scheduler.select(0), rewards=[None, None]))
    selection = scheduler.select(1)
    assert {p.phase for p in selection.picks} == {"cold"}
    scheduler.observe(groups(selection))
    assert {p.phase for p in scheduler.select(1, 2, "same step").picks} == {"cold"}
    assert {p.phase for p in scheduler.select(2).picks} == {"coverage", "exploitation"}


def test_held_out_tasks_are_never_selected():
    graph = graph_of(ENVIRONMENTS, held_out=[k % 3 == 0 for k in range(30)])
    scheduler = EnvSched(None, graph, batch_size=25)
    for step in range(3):
        selection = scheduler.select(step)
        assert sorted(p.task_index for p in selection.picks) == [k for k in range(30) if k % 3]
        scheduler.observe(groups(selection))


def test_every_task_held_out():
    scheduler = EnvSched(None, graph_of([0, 1], held_out=[True, True]), batch_size=4)
    assert scheduler.select(0).picks == ()
    assert EnvSched(None, graph_of([0, 1], held_out=[True, True]), batch_size=4).metrics()["envsched/seen/tasks"] == 0


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    env=st.lists(st.integers(0, 4), min_size=1, max_size=25),
    batch=st.integers(1, 12),
    per_round=st.sampled_from((None, 1, 2)),
    rolling=st.sampled_from((None, 1, 3)),
    consecutive=st.integers(1, 2),
    preset=st.sampled_from(("paper", "default")),
    reported=st.floats(0, 1),
)
def test_quotas_hold_or_are_reported(env, batch, per_round, rolling, consecutive, preset, reported):
    """Every broken quota has its entry, every entry a broken quota, and the batch is never shorter than what is eligible."""
    graph = graph_of(env, seed=len(env))
    config = SelectConfig(batch_size=batch, per_round=per_round, rolling=rolling, consecutive=consecutive)
    scheduler = EnvSched(None, graph, select=config, preset=preset)
    at = scheduler.quotas(0)
    rounds, in_flight = [], set()
    for step in range(6):
        selection = scheduler.select(step)
        rounds.append([(p.env_id, p.key) for p in selection.picks])
        assert len(set(selection.task_ids)) == len(selection.picks) == min(batch, len(env) - len(in_flight))
        broken = []
        for k, (e, key) in enumerate(rounds[-1]):
            before = rounds[-1][:k]
            if step >= consecutive and all(key in dict(map(reversed, r)) for r in rounds[-1 - consecutive : -1]):
                broken.append(("consecutive", key))
            if sum(other == e for r in [*rounds[-3:-1], before] for other, _ in r) >= at.rolling:
                broken.append(("rolling", key))
            if sum(other == e for other, _ in before) >= at.per_round:
                broken.append(("per_round", key))
        assert [(r.quota, f"{r.env_id}/{r.task_id}") for r in selection.relaxations] == broken
        done = groups(selection)[: math.ceil(reported * len(selection.picks))]
        scheduler.observe(done)
        in_flight |= set(selection.task_ids) - {g.key for g in done}


@PRESETS
def test_picks_follow_identities_not_rows(preset):
    """Tasks in another order: the same picks, as long as no similarity ties decide between neighbours."""
    generator = torch.Generator().manual_seed(1)
    within, cross = (torch.rand((30, 8), generator=generator, dtype=torch.float64) ** 3 for _ in range(2))

    def ordered(rows):
        return assemble_graph(
            env_ids=[f"e{k}" for k in range(5)],
            env_index=torch.tensor(ENVIRONMENTS)[rows],
            task_ids=[f"t{k}" for k in rows.tolist()],
            within_vectors=torch.nn.functional.normalize(within)[rows],
            cross_vectors=torch.nn.functional.normalize(cross)[rows],
            record_index=torch.arange(30),
        )

    straight, shuffled = ordered(torch.arange(30)), ordered(torch.randperm(30, generator=generator))
    a, b = EnvSched(None, straight, batch_size=6, preset=preset), EnvSched(None, shuffled, batch_size=6, preset=preset)
    for step in range(6):
        first, second = a.select(step), b.select(step)
        assert first.task_ids == second.task_ids
        a.observe(groups(first))
        b.observe(groups(second))


# --- reports --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", [list, np.array, torch.tensor, lambda rows: [tuple(row) for row in rows], iter])
def test_rewards_come_in_any_form(graph, form):
    by_group, by_rewards = EnvSched(None, graph, batch_size=6), EnvSched(None, graph, batch_size=6)
    selection = by_group.select(0)
    by_group.observe(groups(selection))
    by_rewards.select(0)
    by_rewards.observe(selection, form([own_rewards(p) for p in selection.picks]))
    assert by_group.select(1) == by_rewards.select(1)


def test_ragged_rewards_and_rows_without_any(graph):
    scheduler = EnvSched(None, graph, batch_size=6)
    scheduler.observe(scheduler.select(0), [None, [], [1.0], [0.0, None, 1.0], np.array([0.0, math.nan]), [0.5, 0.5]])
    metrics = scheduler.metrics()
    assert metrics["envsched/total/groups"] == 6
    assert metrics["envsched/total/observed"] == 2
    assert metrics["envsched/total/masked"] == 2
    assert metrics["envsched/in_flight"] == 0


def test_rows_must_fit_the_picks(graph):
    scheduler = EnvSched(None, graph, batch_size=6)
    with pytest.raises(HistoryError, match="2 rows for 6 picks"):
        scheduler.observe(scheduler.select(0), [[0.0], [1.0]])
    assert scheduler.metrics()["envsched/in_flight"] == 6


def test_bad_rewards_are_masked_and_named(graph, caplog):
    scheduler = EnvSched(None, graph, batch_size=6)
    selection = scheduler.select(0)
    with caplog.at_level(logging.WARNING):
        scheduler.observe([group(selection.picks[0], 0, [0.0, 1.0, 7.5, math.inf, "good", math.nan, None])])
    group_id = selection.group_ids[0]
    assert scheduler.problems() == (
        f"group {group_id!r}, rollout 4: reward 'good' is no number; masked",
        f"group {group_id!r}, rollout 2: reward 7.5 is outside [0.0, 1.0]; masked",
        f"group {group_id!r}, rollout 3: reward inf is outside [0.0, 1.0]; masked",
    )
    assert caplog.messages == list(scheduler.problems())
    assert scheduler.metrics()["envsched/total/masked"] == 5
    assert float(scheduler.scores(1)["weight_long"][selection.picks[0].task_index]) == pytest.approx(2 ** (-1 / 8))


def test_an_iterator_that_breaks_loses_nothing(graph):
    scheduler = EnvSched(None, graph, batch_size=6)
    selection = scheduler.select(0)

    def engine():
        yield from groups(selection)[:4]
        raise RuntimeError("the engine died")

    with pytest.raises(RuntimeError, match="the engine died"):
        scheduler.observe(engine())
    assert scheduler.metrics()["envsched/total/observed"] == 4
    scheduler.observe(groups(selection))
    assert scheduler.metrics()["envsched/total/observed"] == 6
    assert scheduler.metrics()["envsched/total/duplicates"] == 4


def test_what_is_no_group_is_named_and_the_others_count(graph):
    scheduler = EnvSched(None, graph, batch_size=6)
    selection = scheduler.select(0)
    scheduler.observe([None, *groups(selection)])
    assert scheduler.metrics()["envsched/total/observed"] == 6
    assert scheduler.problems() == ("NoneType None: expected a RolloutGroup; ignored",)
    with pytest.raises(HistoryError, match="got dict; expected RolloutGroup"):
        scheduler.observe([{"reward": 1.0}])


def test_a_group_that_nobody_proposed_is_evidence_and_exposure(graph):
    scheduler = practised(graph, rounds=2)
    before = scheduler.scores(5)
    rollouts = tuple(Rollout(reward=r) for r in (0.0, 1.0))
    scheduler.observe([RolloutGroup(group_id="mine", env_id="e0", task_id="t0", step=4, rollouts=rollouts)])
    after = scheduler.scores(5)
    assert int(after["num_selections"][0]) == int(before["num_selections"][0]) + 1
    assert float(after["weight_long"][0]) == pytest.approx(float(before["weight_long"][0]) + 2 ** (-1 / 8))
    assert scheduler.predictor.state_dict()["experts"]["rounds"].keys() == {0, 1}
    # it speaks of step 4: earlier steps do not know it
    assert float(scheduler.scores(4)["weight_long"][0]) == pytest.approx(float(before["weight_long"][0]) * 2 ** (1 / 8))
    assert len(scheduler.select(2).picks) == 6


def test_the_step_of_a_group_is_that_of_its_selection(graph):
    told, plain = EnvSched(None, graph, batch_size=6), EnvSched(None, graph, batch_size=6)
    selection = told.select(3)
    plain.observe(groups(plain.select(3)))
    wrong = [RolloutGroup(group_id=g.group_id, env_id=g.env_id, task_id=g.task_id, step=9, rollouts=g.rollouts) for g in groups(selection)]
    told.observe(wrong)
    assert told.select(4) == plain.select(4)
    assert told.metrics()["envsched/total/wrong_step"] == 6


def test_a_group_id_that_names_another_task_is_refused(graph):
    scheduler = EnvSched(None, graph, batch_size=6)
    first, second = scheduler.select(0).picks[:2]
    scheduler.observe([RolloutGroup(group_id=first.group_id, env_id=second.env_id, task_id=second.task_id, step=0, rollouts=())])
    assert "ignored" in scheduler.problems()[0]
    assert scheduler.metrics()["envsched/in_flight"] == 6


def test_group_ids_of_the_trainer_find_their_proposal(graph):
    ours, theirs = EnvSched(None, graph, batch_size=6), EnvSched(None, graph, batch_size=6)
    ours.observe(groups(ours.select(0)))
    named = [
        RolloutGroup(group_id=f"uuid-{k}", env_id=g.env_id, task_id=g.task_id, step=0, rollouts=g.rollouts)
        for k, g in enumerate(groups(theirs.select(0)))
    ]
    theirs.observe(named)
    theirs.observe(named)
    assert ours.select(1) == theirs.select(1)
    assert ours.predictor.state_dict() == theirs.predictor.state_dict()


def test_cancelled_tasks_are_free_again_but_were_exposed(graph):
    scheduler = EnvSched(None, graph, batch_size=30)
    first = scheduler.select(0)
    assert scheduler.select(1).picks == ()
    scheduler.cancel([*first.group_ids[:3], "0:nobody/knows"])
    scheduler.cancel(first.group_ids[0])
    assert scheduler.metrics()["envsched/total/cancelled"] == 3
    second = scheduler.select(2)
    assert sorted(second.task_ids) == sorted(first.task_ids[:3])
    assert float(scheduler.scores(3)["num_selections"][second.picks[0].task_index]) == 2
    scheduler.observe([groups(first)[0]])  # it reports after all
    assert scheduler.metrics()["envsched/total/observed"] == 1


def test_shadow_mode(graph):
    """The trainer's own order is predicted and learned from; unknown tasks and repeats are left out."""
    scheduler = EnvSched(None, graph, batch_size=6)
    keys = ["e1/t1", "e0/t0", "e0/nobody", "e1/t1"]
    selection = scheduler.shadow(0, keys)
    assert selection.task_ids == ("e1/t1", "e0/t0")
    assert {p.phase for p in selection.picks} == {"shadow"}
    assert scheduler.shadow(0, keys) is selection
    assert len(scheduler.problems()) == 2
    scheduler.observe(groups(selection))
    assert scheduler.metrics()["envsched/total/observed"] == 2
    assert set(scheduler.predictor.state_dict()["experts"]["rounds"]) == {0}
    assert {p.phase for p in scheduler.select(1).picks} == {"coverage", "exploitation"}


def test_shadowing_what_select_proposes_gives_the_same_beliefs(graph):
    chosen, shadowed = EnvSched(None, graph, batch_size=6), EnvSched(None, graph, batch_size=6)
    for step in range(4):
        selection = chosen.select(step)
        chosen.observe(groups(selection))
        shadowed.observe(groups(shadowed.shadow(step, selection.task_ids)))
    assert chosen.select(4) == shadowed.select(4)


# --- quarantine -----------------------------------------------------------------------------------------------------------------------
def test_a_task_that_keeps_failing_is_quarantined_and_released(graph):
    scheduler = EnvSched(None, graph, batch_size=30)
    for step in range(3):
        selection = scheduler.select(step)
        scheduler.observe(
            [group(p, step, [None] * 4, status="crashed") if p.key == "e0/t0" else group(p, step, own_rewards(p)) for p in selection.picks]
        )
    assert scheduler.problems() == ("task 'e0/t0': 3 failed groups in a row; quarantined",)
    assert scheduler.metrics()["envsched/quarantined"] == 1
    assert "e0/t0" not in scheduler.select(3).task_ids
    assert "quarantine" in scheduler.explain("e0/t0").caps
    scheduler.observe(groups(scheduler.select(3)))
    scheduler.release(["e0/t0"])
    assert "e0/t0" in scheduler.select(4).task_ids
    with pytest.raises(HistoryError, match="not in the pool"):
        scheduler.release(["e0/nobody"])


def test_a_quarantine_ends_by_itself(graph):
    scheduler = EnvSched(None, graph, select=SelectConfig(batch_size=30, quarantine_after=1))
    selection = scheduler.select(0)
    scheduler.observe([group(p, 0, [None], status="timeout") if p.rank == 1 else group(p, 0, own_rewards(p)) for p in selection.picks])
    out = selection.task_ids[0]
    away = []
    for step in range(1, 19):
        selection = scheduler.select(step)
        away.append(out not in selection.task_ids)
        scheduler.observe(groups(selection))
    assert away == [True] * 16 + [False] * 2


# --- state ----------------------------------------------------------------------------------------------------------------------------
def play(scheduler, steps, resume_at=None, graph=None, half=False):
    """Select and report, some groups a round late; at `resume_at` the state goes through JSON into a new scheduler."""
    late, picks = [], []
    for step in steps:
        if step == resume_at and not half:
            scheduler = resumed(scheduler, graph)
        selection = scheduler.select(step)
        picks.append(selection)
        if step == resume_at and half:
            scheduler = resumed(scheduler, graph)
        reports = groups(selection)
        scheduler.observe([*late, *reports[2:]])
        late = reports[1:2]
    return scheduler, picks


def resumed(scheduler, graph):
    state = json.loads(json.dumps(scheduler.state_dict()))
    new = type(scheduler)(None, graph, batch_size=6, seed=4, **({} if isinstance(scheduler, Uniform) else {"preset": scheduler.preset}))
    report = new.load_state_dict(state)
    assert (report.known, report.unknown, report.new) == (30, 0, 0)
    assert json.dumps(new.state_dict()) == json.dumps(state)
    return new


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", ["paper", "default", "uniform"])
@pytest.mark.parametrize("moment", [0, 1, 4])
def test_resume_is_bit_equal(graph, kind, moment, half):
    """Before a round, or between select and observe: everything after it is the same to the last bit."""

    def fresh():
        return Uniform(None, graph, batch_size=6, seed=4) if kind == "uniform" else EnvSched(None, graph, batch_size=6, seed=4, preset=kind)

    whole, expected = play(fresh(), range(7))
    again, got = play(fresh(), range(7), resume_at=moment, graph=graph, half=half)
    assert got == expected
    assert again.state_dict() == whole.state_dict()
    assert again.metrics() == whole.metrics()


def test_a_resumed_scheduler_remembers_requests_and_quarantine(graph):
    scheduler = practised(graph, rounds=2, select=SelectConfig(batch_size=6, quarantine_after=1))
    selection = scheduler.select(2)
    scheduler.observe([group(selection.picks[0], 2, [None], status="crashed")])
    new = EnvSched(None, graph, select=SelectConfig(batch_size=6, quarantine_after=1))
    new.load_state_dict(scheduler.state_dict())
    assert new.select(2) == selection
    assert new.metrics() == scheduler.metrics()
    assert new.problems() == scheduler.problems()
    new.observe(groups(selection))
    scheduler.observe(groups(selection))
    assert new.select(3) == scheduler.select(3)


def test_absent_tasks_come_back_with_everything(graph):
    """Selected, in flight, quarantined, observed: a pool without them keeps it all for the pool that has them again."""
    scheduler = EnvSched(None, graph, select=SelectConfig(batch_size=30, quarantine_after=1))
    selection = scheduler.select(0)
    done = [group(p, 0, [None], status="crashed") if p.key == "e4/t4" else group(p, 0, own_rewards(p)) for p in selection.picks]
    scheduler.observe([g for g in done if g.key != "e3/t3"])
    small = EnvSched(None, graph_of(ENVIRONMENTS[:3]), select=SelectConfig(batch_size=30, quarantine_after=1))
    report = small.load_state_dict(scheduler.state_dict())
    assert (report.known, report.unknown, report.new) == (3, 27, 0)
    small.observe(groups(small.select(1)))
    back = EnvSched(None, graph, select=SelectConfig(batch_size=30, quarantine_after=1))
    report = back.load_state_dict(json.loads(json.dumps(small.state_dict())))
    assert (report.known, report.unknown, report.new) == (30, 0, 0)
    picked = back.select(2)
    assert set(back.book.keys) - set(picked.task_ids) == {"e4/t4", "e3/t3"}
    back.observe([g for g in done if g.key == "e3/t3"])
    assert back.metrics()["envsched/in_flight"] == 28


@pytest.mark.parametrize("cls", [EnvSched, Uniform])
def test_a_damaged_state_changes_nothing(graph, cls):
    scheduler = cls(None, graph, batch_size=6)
    for step in range(2):
        scheduler.observe(groups(scheduler.select(step)))
    state = scheduler.state_dict()
    before = json.dumps(state)
    damage = [None, 3, {}, {**state, "version": 99}, {**state, "kind": "other"}]
    damage += [{k: v for k, v in state.items() if k != name} for name in state]
    damage += [{**state, name: 5} for name in state if name not in ("version", "kind", "last_step")]
    damage += [
        {**state, "exposure": [[1]]},
        {**state, "memo": [{}]},
        {**state, "in_flight": [{"tasks": []}]},
        {**state, "latest": {"x": 1}},
    ]
    for broken in damage:
        with pytest.raises(CheckpointError, match=r"Load what|Use an older"):
            scheduler.load_state_dict(broken)
        assert json.dumps(scheduler.state_dict()) == before


# --- graph ----------------------------------------------------------------------------------------------------------------------------
def test_an_empty_reward_range_is_refused():
    with pytest.raises(GraphError, match=r"'e0/t0': reward_range \[1.0, 1.0\]"):
        EnvSched(None, graph_of([0, 0], low=[1.0, 0.0], high=[1.0, 1.0]))


def test_the_given_graph_is_left_alone(graph):
    class Blind:
        """A predictor that only sees the graph: the more observed neighbours, the better."""

        def predict(self, graph, evidence, step):
            from envsched_gnn.ops import percentile_rank
            from envsched_gnn.records import Prediction

            degree = torch.zeros(30, dtype=torch.float64)
            edges = graph["task", "cross", "task"]
            degree.index_add_(0, edges.edge_index[1], edges.edge_weight.double())
            return Prediction(informativeness=percentile_rank(degree), predicted_variance=degree, p_informative=degree)

        def update(self, step, groups, before):
            pass

        def metrics(self):
            return {"envsched/blind": 1.0}

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    scheduler = EnvSched(None, graph, batch_size=6, predictor=Blind())
    scheduler.observe(groups(scheduler.select(0)))
    assert float(scheduler.scores(1)["predicted_variance"].sum()) > 0
    assert {p.phase for p in scheduler.select(1).picks} == {"coverage", "exploitation"}
    explanation = scheduler.explain("e0/t0")
    assert sum(value for _, value in explanation.terms) == explanation.value
    assert graph["task", "cross", "task"].edge_index.numel() == 0
    with pytest.raises(CheckpointError, match="no field 'predictor'"):
        scheduler.load_state_dict({k: v for k, v in scheduler.state_dict().items() if k != "predictor"})


def test_metrics_are_few_flat_and_finite(graph):
    scheduler = practised(graph)
    metrics = scheduler.metrics()
    assert len(metrics) <= 40
    assert all(key.startswith("envsched/") and type(value) is float and math.isfinite(value) for key, value in metrics.items())
    assert metrics["envsched/rounds"] == 5
    assert metrics["envsched/seen/tasks"] == len(set(scheduler.book.exposure.total.nonzero().flatten().tolist())) / 30
    assert metrics["envsched/batch/coverage"] == metrics["envsched/batch/exploitation"] == 3
    expected = [float(np.var(own_rewards(p))) for p in scheduler.select(4).picks]
    assert metrics["envsched/round/variance_mean"] == pytest.approx(np.mean(expected))
    assert metrics["envsched/round/variance_median"] == pytest.approx(np.median(expected))
    assert metrics["envsched/round/zero_variance_share"] == np.mean(np.array(expected) == 0)


def test_devices(graph, device):
    """The same picks wherever it runs, and after a move in the middle of a run."""
    here, there = EnvSched(None, graph, batch_size=6), EnvSched(None, graph, batch_size=6)
    for step in range(4):
        a, b = here.select(step), there.select(step)
        assert a.task_ids == b.task_ids
        there.to(device)
        here.observe(groups(a))
        there.observe(groups(b))
    assert there.graph["task"].env_index.device.type == device.type
    assert graph["task"].env_index.device.type == "cpu"
