"""Recorded episodes of real environments replay in the workers: 21 of 25 rewards exactly, 4 that depend on uuid or clock."""

from pathlib import Path

import pytest

from envsched_gnn.errors import PoolError
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Environment, Task
from envsched_gnn.train.environments import play
from envsched_gnn.train.policies.references import recorded, references
from envsched_gnn.train.workers import Job, WorkerPool

DIFFER = {
    "env_143_rl/env_143_rl-task_5",
    "env_154_rl/env_154_rl-task_2",
    "env_155_rl/env_155_rl-task_3",
    "env_173_rl/env_173_rl-task_1",
}
"""Their later calls name an id that uuid4 made in the recording, or a check compares with the clock."""


@pytest.mark.data
def test_recorded_rewards_are_reproduced(data_dir: Path) -> None:
    pool = Pool.load(data_dir / "envscaler")
    environments = {environment.env_id: environment for environment in pool.environments}
    episodes = recorded(pool)
    assert len(episodes) == 25
    jobs = []
    for key, (turns, _) in episodes.items():
        task = pool.tasks[pool.index_of[key]]
        environment = environments[task.env_id]
        jobs.append(Job(environment=environment, task=task, requests=[play(turns, environment.max_turns)[0]]))
    with WorkerPool(2, memory_mb=1024) as workers:
        outcomes = {index: outcome.unwrap() for index, _, outcome in workers.run(jobs)}
    replayed = {key: outcomes[index]["reward"] for index, key in enumerate(episodes)}
    exact = {key for key, (_, reward) in episodes.items() if replayed[key] == reward}
    assert set(episodes) - exact == DIFFER
    assert len(exact) == 21
    for key in DIFFER:
        source = environments[key.split("/")[0]].source
        assert "uuid4" in source or "now()" in source or "time.time" in source
    assert set(references(pool)) == set(episodes)


def test_a_malformed_recording_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "my_reference_rollouts_2.jsonl"
    path.write_text('{"task_id": "t", "env_id": "e", "actions": [], "recorded_reward": 0.5}\n{"task_id": "t"}\n', encoding="utf-8")
    pool = Pool(environments=(Environment(env_id="e"),), tasks=(Task(env_id="e", task_id="t", prompt=""),), source=str(tmp_path))
    with pytest.raises(PoolError, match=r"my_reference_rollouts_2.jsonl:2: KeyError\('actions'\)"):
        recorded(pool)
