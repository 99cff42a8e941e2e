"""The scripted engine: groups for a selection, deterministic, resumable, and no process left behind."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from envsched_gnn.errors import EnvSchedError
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Environment, Pick, RolloutGroup, Selection, Task, Timeouts, Verifier
from envsched_gnn.train.engine import ScriptedEngine

SOURCE = """
import os, time
class Shop:
    def __init__(self, config):
        self.stock = {}
    def set_stock(self, item, amount):
        if amount < 0:
            raise ValueError("negative")
        self.stock[item] = amount
        return "ok"
    def get_stock(self, item):
        return self.stock[item]
    def crash_shop(self):
        os._exit(9)
    def hang_shop(self):
        time.sleep(60)
"""
NAMES = ("set_stock", "get_stock", "crash_shop", "hang_shop")


def make_pool(environments: int = 4, tasks: int = 4) -> Pool:
    tools = tuple({"type": "function", "function": {"name": name, "parameters": {"properties": {}}}} for name in NAMES)
    worlds, jobs = [], []
    for e in range(environments):
        worlds.append(Environment(env_id=f"e{e}", name="Shop", source=SOURCE, tools=tools, timeouts=Timeouts(step=0.3)))
        for t in range(tasks):
            gold = [{"name": "set_stock", "arguments": {"item": f"i{n}", "amount": n + 1}} for n in range(t + 1)]
            checks = [Check(code=f"def check_func(s):\n    return s['stock'].get('i{n}') == {n + 1}") for n in range(t + 1)]
            jobs.append(
                Task(
                    env_id=f"e{e}",
                    task_id=f"t{t}",
                    prompt="p",
                    initial_state={},
                    verifier=Verifier(checks=tuple(checks)),
                    ground_truth=gold,
                )
            )
    return Pool(environments=tuple(worlds), tasks=tuple(jobs), source="shops")


def selection(pool: Pool, step: int, rows: range | list[int]) -> Selection:
    picks = []
    for rank, row in enumerate(rows, start=1):
        task = pool.tasks[row]
        group_id = f"{step}:{task.key}"
        picks.append(
            Pick(
                rank=rank,
                env_id=task.env_id,
                task_id=task.task_id,
                task_index=row,
                group_id=group_id,
                phase="uniform",
                score=0.0,
                predicted_variance=0.0,
                p_informative=0.0,
            )
        )
    return Selection(step=step, picks=tuple(picks))


def rewards(groups: list[RolloutGroup]) -> dict[str, tuple[float | None, ...]]:
    return {group.group_id: group.rewards for group in groups}


def test_a_round() -> None:
    pool = make_pool()
    with ScriptedEngine(pool, num_rollouts=8) as engine:
        groups = list(engine.rollout(selection(pool, 5, range(16))))
        assert sorted(group.group_id for group in groups) == sorted(f"5:{key}" for key in pool.keys)
        assert {(group.step, len(group.rollouts)) for group in groups} == {(5, 8)}
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        assert {(rollout.status, rollout.policy_version) for rollout in rollouts} == {("ok", 0)}
        assert all(0 < rollout.seconds < 10 for rollout in rollouts)
        assert engine.state_dict()["version"] == 1
        again = list(engine.rollout(selection(pool, 6, range(2))))
        assert {rollout.policy_version for group in again for rollout in group.rollouts} == {1}


def test_a_selection_says_how_many_rollouts_and_what_is_played_is_learned_later() -> None:
    pool = make_pool()
    few = dataclasses.replace(selection(pool, 0, range(4)), num_rollouts=2)
    with ScriptedEngine(pool, num_rollouts=4) as engine:
        groups = {group.group_id: group for group in engine.play(few)}
        assert [len(groups[group_id].rollouts) for group_id in few.group_ids] == [2] * 4
        assert engine.state_dict()["version"] == 0
        usual = rewards(list(engine.play(selection(pool, 0, range(4)))))
        assert {group_id: some[:2] for group_id, some in usual.items()} == rewards(list(groups.values()))
        assert engine.evaluate([0, 5], 3) == engine.evaluate([0, 5], 3)
        assert [len(some) for some in engine.evaluate([0, 5], 3)] == [3, 3]
        engine.learn(list(groups.values()))
        assert engine.state_dict()["version"] == 1


def test_full_skill_scores_one_and_no_skill_scores_zero() -> None:
    pool = make_pool()
    with ScriptedEngine(pool, num_rollouts=2, skill_start=1.0) as engine:
        assert {reward for group in engine.rollout(selection(pool, 0, range(16))) for reward in group.rewards} == {1.0}
    with ScriptedEngine(pool, num_rollouts=2, skill_start=0.0) as engine:
        assert {reward for group in engine.rollout(selection(pool, 0, range(16))) for reward in group.rewards} == {0.0}


def test_the_number_of_workers_and_the_order_of_picks_change_nothing() -> None:
    pool = make_pool()
    states, found = [], []
    for workers, rows in ((1, list(range(16))), (3, list(reversed(range(16))))):
        with ScriptedEngine(pool, num_rollouts=4, workers=workers, seed=7) as engine:
            found.append([rewards(list(engine.rollout(selection(pool, step, rows)))) for step in range(3)])
            states.append(engine.state_dict())
    assert found[0] == found[1]
    assert states[0] == states[1]
    assert len({reward for group in found[0][0].values() for reward in group}) > 3


def test_an_interrupted_round_is_completed_from_what_is_finished() -> None:
    pool = make_pool()
    picks = selection(pool, 0, range(16))
    with ScriptedEngine(pool, num_rollouts=4) as engine:
        whole = list(engine.rollout(picks))
        after = engine.state_dict()
    with ScriptedEngine(pool, num_rollouts=4) as engine:
        finished = [group for group, _ in zip(engine.rollout(picks), range(5), strict=False)]
        assert engine.state_dict()["version"] == 0
    with ScriptedEngine(pool, num_rollouts=4) as engine:
        rest = list(engine.rollout(picks, finished))
        assert len(rest) == 11
        assert rewards(finished + rest) == rewards(whole)
        assert engine.state_dict() == after
        engine.load_state_dict({"version": 0, "environments": {}, "tools": {}})
        assert list(engine.rollout(picks, whole)) == []
        assert engine.state_dict() == after


def test_failures_are_data() -> None:
    pool = make_pool(1, 3)
    crash, hang = ({"name": name, "arguments": {}} for name in ("crash_shop", "hang_shop"))
    tasks = [with_gold(pool.tasks[0], [crash]), with_gold(pool.tasks[1], [hang]), pool.tasks[2]]
    pool = Pool(environments=pool.environments, tasks=tuple(tasks))
    with ScriptedEngine(pool, num_rollouts=3, skill_start=1.0) as engine:
        groups = {group.task_id: group for group in engine.rollout(selection(pool, 0, range(3)))}
    assert [(r.status, r.reward) for r in groups["t0"].rollouts] == [("crashed", None)] * 3
    assert groups["t0"].rollouts[0].detail == "the process ended with exit code 9 during step"
    assert [(r.status, r.reward, r.detail) for r in groups["t1"].rollouts] == [("timeout", None, "step took longer than 0.3 s")] * 3
    assert groups["t2"].rewards == (1.0, 1.0, 1.0)


def test_more_calls_than_max_turns_is_truncated_and_scored() -> None:
    pool = make_pool(1, 4)
    pool = Pool(environments=(dataclasses.replace(pool.environments[0], max_turns=2),), tasks=pool.tasks)
    with ScriptedEngine(pool, num_rollouts=2, skill_start=1.0) as engine:
        groups = {group.task_id: group for group in engine.rollout(selection(pool, 0, range(4)))}
    assert [(r.status, r.reward) for r in groups["t1"].rollouts] == [("ok", 1.0)] * 2
    assert [(r.status, r.reward) for r in groups["t3"].rollouts] == [("truncated", 0.5)] * 2


def test_practice_raises_rewards() -> None:
    pool = make_pool()
    with ScriptedEngine(pool, num_rollouts=4, skill_gain=0.2) as engine:
        means = []
        for step in range(8):
            values = [r for group in engine.rollout(selection(pool, step, range(16))) for r in group.rewards if r is not None]
            means.append(sum(values) / len(values))
    assert means[-1] > means[0] + 0.2


def test_a_task_of_another_pool_is_refused() -> None:
    with (
        ScriptedEngine(make_pool(1, 1)) as engine,
        pytest.raises(EnvSchedError, match=r"task 'e3/t0' is not in the pool shops"),
    ):
        list(engine.rollout(selection(make_pool(), 0, [12])))


def test_an_empty_selection_is_an_empty_round() -> None:
    with ScriptedEngine(make_pool(1, 1)) as engine:
        assert list(engine.rollout(Selection(step=0, picks=()))) == []


def test_a_round_of_64_tasks_takes_about_a_second() -> None:
    """On an idle machine 0.3 s; the bound leaves room for a busy one."""
    pool = make_pool(16, 4)
    with ScriptedEngine(pool, num_rollouts=8) as engine:
        list(engine.rollout(selection(pool, 0, range(2))))
        began = time.monotonic()
        assert len(list(engine.rollout(selection(pool, 1, range(64))))) == 64
        assert time.monotonic() - began < 3


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from tests.train.test_engine import *
pool = make_pool()
tasks = tuple(with_gold(task, [{{"name": "hang_shop", "arguments": {{}}}}]) for task in pool.tasks)
environments = tuple(__import__("dataclasses").replace(e, timeouts=Timeouts(step=600)) for e in pool.environments)
engine = ScriptedEngine(Pool(environments=environments, tasks=tasks), skill_start=1.0)
groups = engine.rollout(selection(pool, 0, range(16)))
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "interrupt"),
    [
        ("print('go', flush=True)\nnext(groups)", True),
        ("with engine:\n    print('go', flush=True)\n    next(groups)", True),
        ("engine._workers.lease()\nprint('go', flush=True)\nraise RuntimeError('trainer bug')", False),
        ("engine._workers.lease()\nprint('go', flush=True)", False),
    ],
)
def test_no_process_is_left_after_ctrl_c_an_exception_or_the_end(ending: str, interrupt: bool) -> None:
    script = PROGRAM.format(root=str(Path(__file__).parents[2]), ending=ending)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "go\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        if interrupt:
            time.sleep(0.5)
            children = psutil.Process(parent.pid).children(recursive=True)
            assert len(children) == 2
            os.kill(parent.pid, signal.SIGINT)
        parent.wait(timeout=20)
    assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []


def with_gold(task: Task, gold: list[dict[str, object]]) -> Task:
    return dataclasses.replace(task, ground_truth=gold)
