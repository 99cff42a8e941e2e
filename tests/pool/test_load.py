"""From a path to a pool, and what is said when there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.errors import PoolError
from envsched_gnn.pool import Pool, load_pool, write_envscaler, write_manifest
from envsched_gnn.records import Environment, Task

POOL = Pool(environments=(Environment(env_id="e"),), tasks=(Task(env_id="e", task_id="t", prompt="p"),))


def test_a_directory_is_recognised_by_its_files(tmp_path: Path) -> None:
    write_envscaler(POOL, tmp_path / "a")
    write_manifest(POOL, tmp_path / "b", "jsonl")
    write_manifest(POOL, tmp_path / "c", "parquet")
    (tmp_path / "b" / "README.md").write_text("ignored")
    for name in "abc":
        pool = load_pool(PoolConfig(path=str(tmp_path / name)))
        assert pool.content_hash == POOL.content_hash
        assert pool.source == str(tmp_path / name)


def test_the_options_of_toolworld_reach_the_generator() -> None:
    config = ToolWorldConfig(environments=3, tasks=4, seed=1)
    pool = load_pool(PoolConfig(path="toolworld", toolworld=config))
    assert (len(pool.environments), len(pool.tasks)) == (3, 12)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("toolwrld", "pool 'toolwrld': no such directory; expected a directory, or one of toolworld, bfcl. Did you mean 'toolworld'?"),
        ("BFCL", "Check the path"),
        ("{0}/pol", "Did you mean '{0}/pool'?"),
        ("{0}/nothing/here", "no such directory"),
        ("{0}/pool/tasks.jsonl", "is a file; expected a directory. Give its directory, '{0}/pool'"),
        ("{0}", "holds empty, near, pool; expected *env_metadata*.json and *scenario*.json (EnvScaler), or environments.jsonl"),
        ("{0}", "Did you mean '{0}/pool'?"),
        ("{0}/empty", "is empty"),
        ("{0}/near", "environments.json should perhaps be named environments.jsonl."),
    ],
)
def test_a_wrong_path_gets_a_hint(tmp_path: Path, path: str, said: str) -> None:
    write_manifest(POOL, tmp_path / "pool")
    (tmp_path / "empty").mkdir()
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "environments.json").write_text("[]")
    with pytest.raises(PoolError) as raised:
        Pool.load(path.format(tmp_path))
    assert said.format(tmp_path) in str(raised.value)


def test_two_formats_in_one_directory(tmp_path: Path) -> None:
    write_envscaler(POOL, tmp_path)
    write_manifest(POOL, tmp_path)
    with pytest.raises(
        PoolError, match=r"env_metadata.json and rl_scenario.json and environments.jsonl and tasks.jsonl; expected files of one"
    ):
        Pool.load(tmp_path)


def test_many_files_are_not_all_listed(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").touch()
    with pytest.raises(PoolError, match=r"holds 00.txt, .*07.txt and 12 more;"):
        Pool.load(tmp_path)


def test_pools_need_no_torch() -> None:
    code = "import sys, envsched_gnn.pool.episode, envsched_gnn.pool.show; assert not {'torch', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
