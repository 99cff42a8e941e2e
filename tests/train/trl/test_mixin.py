"""One selection a round, raw rewards back before the next, on both trainers and every way to spread a round over updates."""

import inspect

import pytest
from datasets import Dataset
from trl import GRPOTrainer, RLOOTrainer

from envsched_gnn.config import SelectConfig
from envsched_gnn.errors import ConfigError, EnvSchedError
from envsched_gnn.schedule import EnvSched, Uniform
from envsched_gnn.train.trl import mixin
from envsched_gnn.train.trl.mixin import EnvSchedMixin, attach
from tests.schedule.small import graph_of
from tests.train.trl import helpers as tiny
from tests.train.trl.helpers import ScheduledGRPO, ScheduledRLOO

BOTH = pytest.mark.parametrize("kind", [ScheduledGRPO, ScheduledRLOO])


class Diary(EnvSched):
    """Writes down in which order it is asked and told."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.entries = []

    def select(self, step, n=None, request_id=None):
        self.entries.append(("select", step, n))
        return super().select(step, n, request_id)

    def observe(self, groups, rewards=None):
        self.entries.append(("observe", groups[0].step, len(groups)))
        super().observe(groups, rewards)

    def cancel(self, group_ids):
        self.entries.append(("cancel", len(group_ids)))
        super().cancel(group_ids)


def diary():
    return Diary(None, graph_of(tiny.ENVIRONMENTS), batch_size=4, seed=3)


def rounds_of(folder, kind=ScheduledGRPO, **changes):
    """Train; the trainer and the rounds that it reported."""
    seen = []
    trainer = tiny.trainer(folder, kind, on_round=lambda *round_: seen.append(round_), **changes)
    trainer.train()
    return trainer, seen


@BOTH
def test_what_is_overridden_exists_in_trl_with_these_parameters(kind):
    base = kind.__mro__[2]
    assert base in (GRPOTrainer, RLOOTrainer)
    parameters = {
        "_get_train_sampler": ["self", "dataset"],
        "_generate_and_score_completions": ["self", "inputs"],
        "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        "_save_checkpoint": ["self", "model", "trial"],
        "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    }
    own = {name for name, value in vars(EnvSchedMixin).items() if inspect.isfunction(value) and not name.startswith("_envsched")}
    assert own == {"__init__", *parameters}
    for name, expected in parameters.items():
        assert list(inspect.signature(getattr(base, name)).parameters) == expected
        assert list(inspect.signature(getattr(EnvSchedMixin, name)).parameters) == expected


@BOTH
def test_attributes_of_trl_that_are_leaned_on(tmp_path, kind):
    trainer = tiny.trainer(tmp_path, kind)
    assert trainer._buffered_inputs is None
    assert (trainer._step, trainer.num_iterations, trainer.num_generations, trainer.max_completion_length) == (0, 1, 4, 6)
    assert (trainer.args.steps_per_generation, trainer.args.generation_batch_size) == (1, 16)
    assert trainer.eos_token_ids == [1]
    assert trainer.reward_weights.tolist() == [1.0]
    assert trainer._get_output_dir(trial=None) == str(tmp_path)
    source = inspect.getsource(kind.__mro__[2]._prepare_inputs)
    assert "self._step % generate_every == 0 or self._buffered_inputs is None" in source
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in source


@BOTH
def test_each_selection_knows_the_rewards_of_the_round_before(tmp_path, kind):
    scheduler = diary()
    trainer, seen = rounds_of(tmp_path, kind, scheduler=scheduler, dataloader_num_workers=0)
    expected = [(verb, step, 4) for step in range(3) for verb in ("select", "observe")]
    assert scheduler.entries == expected
    assert [selection.step for selection, _ in seen] == [0, 1, 2]
    assert [len(group.rollouts) for _, groups in seen for group in groups] == [4] * 12
    assert [group.group_id for group in seen[1][1]] == list(seen[1][0].group_ids)
    assert trainer.envsched_selection is seen[2][0]
    assert trainer.envsched_groups is seen[2][1]
    assert trainer.envsched_rounds == 3
    assert scheduler.problems() == ()
    assert scheduler.metrics()["envsched/in_flight"] == 0


@BOTH
def test_rewards_statuses_and_lengths_are_those_of_the_tasks_rollouts(tmp_path, kind):
    """The reward names the task it was asked for, so a row of another task would be seen."""
    order = sorted(tiny.rows()["task_id"])
    shares = {key: place / 16 for place, key in enumerate(order)}

    def by_task(completions, task_id, **_):
        return [shares[key] + (len(text) % 4) / 16 for key, text in zip(task_id, completions, strict=True)]

    _, seen = rounds_of(tmp_path, kind, reward_funcs=by_task)
    for selection, groups in seen:
        for pick, group in zip(selection.picks, groups, strict=True):
            assert group.key == pick.key
            assert all(0 <= reward - shares[pick.key] < 0.25 for reward in group.rewards)
            assert {rollout.tokens for rollout in group.rollouts} <= set(range(1, 7))
            for rollout in group.rollouts:
                assert rollout.status == "truncated" or rollout.tokens < 6 or rollout.status == "ok"
            assert {rollout.policy_version for rollout in group.rollouts} == {selection.step}


@pytest.mark.parametrize(
    ("changes", "versions"),
    [
        ({"max_steps": 4, "num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}, [0, 2]),
        ({"max_steps": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}, [0, 2]),
        ({"max_steps": 2, "steps_per_generation": 1, "gradient_accumulation_steps": 2}, [0, 0, 1, 1]),
        ({"max_steps": 3, "steps_per_generation": 3, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}, [0, 1]),
        ({"max_steps": 2, "generation_batch_size": 8, "per_device_train_batch_size": 8}, [0, 1]),
    ],
)
def test_rounds_are_counted_not_updates(tmp_path, changes, versions):
    """`versions`: optimiser updates before each round. RLOO counts as GRPO does, so it takes one of them."""
    kind = ScheduledRLOO if changes["max_steps"] == 3 else ScheduledGRPO
    trainer, seen = rounds_of(tmp_path, kind, scheduler=scheduler_of(changes), **changes)
    assert [groups[0].rollouts[0].policy_version for _, groups in seen] == versions
    assert [selection.step for selection, _ in seen] == list(range(len(versions)))
    size = trainer.args.generation_batch_size // 4
    assert [len(groups) for _, groups in seen] == [size] * len(versions)
    assert trainer.state.global_step == changes["max_steps"]


def scheduler_of(changes):
    tasks = {8: 2, None: 4}[changes.get("generation_batch_size")] if changes.get("steps_per_generation") != 3 else 3
    return EnvSched(None, graph_of(tiny.ENVIRONMENTS), batch_size=tasks, seed=3)


def test_a_small_pool_never_ends_an_epoch(tmp_path):
    graph = graph_of([0, 0, 1, 1, 1])
    trainer, seen = rounds_of(tmp_path, scheduler=Uniform(None, graph, batch_size=4), train_dataset=tiny.rows(graph), max_steps=7)
    assert trainer.state.global_step == len(seen) == 7
    assert trainer.state.epoch == 1.0


def test_evaluation_proposes_nothing(tmp_path):
    scheduler = diary()
    extra = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    held_out = Dataset.from_dict({"task_id": ["x/1", "x/2"], "prompt": ["One:", "Two:"]})
    trainer, _ = rounds_of(tmp_path, scheduler=scheduler, eval_dataset=held_out, **extra)
    assert [entry[0] for entry in scheduler.entries] == ["select", "observe"] * 3
    assert len([line for line in trainer.state.log_history if "eval_reward" in line]) == 3
    assert trainer.envsched_groups[0].env_id in ("e0", "e1", "e2")


def test_figures_go_through_the_trainers_logger(tmp_path):
    trainer, seen = rounds_of(tmp_path)
    lines = [line for line in trainer.state.log_history if "reward" in line]
    assert [line["envsched/rounds"] for line in lines] == [1.0, 2.0, 3.0]
    assert [line["envsched/total/groups"] for line in lines] == [4.0, 8.0, 12.0]
    mean = sum(reward for group in seen[0][1] for reward in group.rewards) / 16
    assert lines[0]["envsched/round/reward_mean"] == pytest.approx(mean)
    assert lines[0]["reward"] == pytest.approx(mean)


def test_reward_functions_are_combined_by_weight_and_absent_ones_left_out(tmp_path):
    def first(completions, **_):
        return [0.9, None, 0.1, None] * 4

    def second(completions, **_):
        return [1.0, 0.5, 0.0, None] * 4

    _, seen = rounds_of(tmp_path, reward_funcs=[first, second], reward_weights=[0.3, 0.7], max_steps=1)
    assert [group.rewards for group in seen[0][1]] == [(0.97, 0.35, 0.03, None)] * 4
    assert [rollout.status for rollout in seen[0][1][0].rollouts][3] == "crashed"
    assert seen[0][1][0].rollouts[3].detail == "no reward function gave a reward"


def test_a_failure_in_a_round_frees_its_tasks_and_the_round_can_be_repeated(tmp_path):
    scheduler, calls = diary(), []

    def fails_once(completion_ids, **_):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the judge is down")
        return tiny.share_low(completion_ids)

    seen = []
    trainer = tiny.trainer(tmp_path, reward_funcs=fails_once, scheduler=scheduler, on_round=lambda *r: seen.append(r))
    with pytest.raises(RuntimeError, match="the judge is down"):
        trainer.train()
    assert scheduler.entries[-1] == ("cancel", 4)
    assert scheduler.metrics()["envsched/in_flight"] == 0
    interrupted = trainer.envsched_selection
    assert interrupted.step == 1
    trainer.train()
    assert seen[1][0] == interrupted
    assert [selection.step for selection, _ in seen] == [0, 1, 2, 3]
    assert scheduler.metrics()["envsched/total/groups"] == 16
    assert scheduler.metrics()["envsched/total/selected"] == 16


def test_an_error_of_the_hook_ends_the_run(tmp_path):
    def full(selection, groups):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        tiny.trainer(tmp_path, on_round=full).train()


def test_rows_of_other_tasks_are_refused(tmp_path):
    class Shuffling(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            return super()._generate_and_score_completions(inputs[1:] + inputs[:1])

    trainer = attach(tiny.trainer(tmp_path, Shuffling), tiny.scheduler())
    with pytest.raises(EnvSchedError, match=r"row 3 of the generation batch of 16 rows is of task 'e\d/t\d+', selected was"):
        trainer.train()


def test_where_quarantine_leaves_too_few_tasks_some_are_repeated(tmp_path, caplog):
    graph = graph_of([0, 0, 1, 1])

    def one_crashes(completion_ids, task_id, **_):
        rewards = tiny.share_low(completion_ids)
        return [None if key == "e0/t1" else reward for key, reward in zip(task_id, rewards, strict=True)]

    scheduler = EnvSched(None, graph, seed=0, select=SelectConfig(batch_size=4, quarantine_after=1))
    with caplog.at_level("WARNING", logger=mixin.__name__):
        _, seen = rounds_of(tmp_path, reward_funcs=one_crashes, scheduler=scheduler, train_dataset=tiny.rows(graph), max_steps=2)
    assert sorted(len(group.rollouts) for group in seen[1][1]) == [4, 4, 8]
    assert "e0/t1" not in seen[1][0].task_ids
    assert "3 eligible tasks for 4 groups" in caplog.text


def test_no_eligible_task_is_an_error(tmp_path):
    graph = graph_of([0, 0, 1, 1])
    scheduler = EnvSched(None, graph, seed=0, select=SelectConfig(batch_size=4, quarantine_after=1))

    def crash(completion_ids, **_):
        return [None] * len(completion_ids)

    with pytest.raises(EnvSchedError, match=r"round 1: no task is eligible, expected 4.*Audit the pool"):
        rounds_of(tmp_path, reward_funcs=crash, scheduler=scheduler, train_dataset=tiny.rows(graph), max_steps=2)


# ---- attach ----


class Own(GRPOTrainer):
    """Somebody's own subclass."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list) / 2


@pytest.mark.parametrize("kind", [GRPOTrainer, RLOOTrainer])
def test_attach_does_what_the_mixin_does(tmp_path, kind):
    scheduled = {GRPOTrainer: ScheduledGRPO, RLOOTrainer: ScheduledRLOO}[kind]
    seen = []
    trainer = tiny.trainer(tmp_path / "attached", kind)
    assert attach(trainer, tiny.scheduler(), on_round=lambda *r: seen.append(r)) is trainer
    assert isinstance(trainer, kind)
    assert isinstance(trainer, EnvSchedMixin)
    trainer.train()
    assert seen == rounds_of(tmp_path / "mixed", scheduled)[1]


def test_attach_to_a_class_of_ones_own(tmp_path):
    trainer = attach(tiny.trainer(tmp_path, Own), tiny.scheduler())
    trainer.train()
    assert type(trainer).__name__ == "EnvSchedOwn"
    assert max(reward for group in trainer.envsched_groups for reward in group.rewards) <= 0.5
    assert trainer.envsched_rounds == 3


def test_attach_refuses_what_it_cannot_serve(tmp_path):
    with pytest.raises(ConfigError, match=r"dict has no _generate_and_score_completions; expected TRL's GRPOTrainer"):
        attach({}, tiny.scheduler())
    with pytest.raises(ConfigError, match=r"has a scheduler already"):
        attach(tiny.trainer(tmp_path), tiny.scheduler())
    plain = tiny.trainer(tmp_path, GRPOTrainer, max_steps=1, train_dataset=tiny.rows().remove_columns("task_id"))
    with pytest.raises(ConfigError, match="task_id"):
        attach(plain, tiny.scheduler())
    assert type(plain) is GRPOTrainer
    plain.train()
    with pytest.raises(ConfigError, match=r"has made 1 updates. Attach the scheduler before train"):
        attach(plain, tiny.scheduler())


# ---- shadow ----


def test_in_shadow_the_trainer_keeps_its_order_and_the_scheduler_learns(tmp_path):
    plain_order = []

    def note(completion_ids, task_id, **_):
        plain_order.append(tuple(task_id[::4]))
        return tiny.share_low(completion_ids)

    tiny.trainer(tmp_path / "plain", GRPOTrainer, note).train()
    scheduler = tiny.scheduler()
    _, seen = rounds_of(tmp_path / "shadow", scheduler=scheduler, shadow=True)
    assert [selection.task_ids for selection, _ in seen] == plain_order
    assert {pick.phase for selection, _ in seen for pick in selection.picks} == {"shadow"}
    assert scheduler.metrics()["envsched/total/observed"] == 12
    assert scheduler.metrics()["envsched/in_flight"] == 0


def test_a_scheduler_goes_on_with_another_trainer(tmp_path):
    scheduler = tiny.scheduler()
    rounds_of(tmp_path / "first", scheduler=scheduler)
    _, seen = rounds_of(tmp_path / "second", ScheduledRLOO, scheduler=scheduler)
    assert [selection.step for selection, _ in seen] == [3, 4, 5]
    assert scheduler.metrics()["envsched/total/groups"] == 24


def test_the_clock_ticks_as_long_as_the_run_lasts(tmp_path):
    trainer = tiny.trainer(tmp_path, max_steps=5, gradient_accumulation_steps=3)
    sampler = trainer._get_train_sampler()
    assert len(sampler) == len(list(sampler)) == 5 * 3 * 48
    assert len(trainer.get_train_dataloader()) == 15
