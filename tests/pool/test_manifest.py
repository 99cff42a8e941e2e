"""The neutral manifest: exact round trips in both forms, and what is wrong with broken ones."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsched_gnn.errors import PoolError
from envsched_gnn.pool import Pool, read_envscaler, read_manifest, write_envscaler, write_manifest
from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier

text = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)  # lone surrogates included
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(text, json_values, max_size=3)
ranges = st.tuples(st.floats(-1e6, 0), st.floats(1e-3, 1e6))
tools = st.lists(text.map(lambda name: {"type": "function", "function": {"name": name, "parameters": {}}}), max_size=2).map(tuple)
seconds = st.floats(0.001, 1e6)
environments = st.builds(
    Environment,
    env_id=st.just(""),
    name=text,
    description=text,
    env_type=st.sampled_from(["python_class", "mcp", "openenv", "gym", "taskset", "bfcl"]),
    entry_point=text,
    source=text,
    tools=tools,
    rules=st.lists(text, max_size=2).map(tuple),
    state_schema=json_values,
    operations=st.lists(objects, max_size=2).map(tuple),
    reward_range=ranges,
    max_turns=st.integers(1, 10_000),
    timeouts=st.builds(Timeouts, setup=seconds, step=seconds, score=seconds),
    licence=text,
    revision=text,
)
checks = st.builds(Check, description=text, code=text, weight=st.floats(0, 1e6))
tasks = st.builds(
    Task,
    env_id=st.just(""),
    task_id=st.just(""),
    prompt=text,
    initial_state=json_values,
    verifier=st.builds(Verifier, kind=text, checks=st.lists(checks, max_size=3).map(tuple)),
    ground_truth=json_values,
    reward_range=st.none() | ranges,
    info=objects,
)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    names = draw(st.lists(text.filter(bool), min_size=1, max_size=3, unique=True))
    made = [draw(environments) for _ in names]
    ids = draw(st.lists(st.tuples(st.sampled_from(names), text.filter(bool)), min_size=1, max_size=4, unique_by="/".join))
    return Pool(
        environments=tuple(Environment(**{**vars(made[i]), "env_id": name}) for i, name in enumerate(names)),
        tasks=tuple(Task(**{**vars(draw(tasks)), "env_id": env_id, "task_id": task_id}) for env_id, task_id in ids),
    )


def _same(pool: Pool, back: Pool) -> None:
    assert back.environments == pool.environments
    assert back.tasks == pool.tasks
    assert back.content_hash == pool.content_hash


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(pools())
def test_every_pool_survives_every_format(pool: Pool) -> None:
    for form in ("jsonl", "parquet"):
        with tempfile.TemporaryDirectory() as folder:
            write_manifest(pool, folder, form)
            _same(pool, read_manifest(folder))
    if all(environment.env_type == "python_class" for environment in pool.environments):
        with tempfile.TemporaryDirectory() as folder:
            write_envscaler(pool, folder)
            _same(pool, read_envscaler(folder))


def _pool(**task: Any) -> Pool:
    return Pool(environments=(Environment(env_id="e"),), tasks=(Task(**{"env_id": "e", "task_id": "t", "prompt": "p"} | task),))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_difficult_text(tmp_path: Path, form: Any) -> None:
    pool = _pool(prompt="x\u2028y\r\n\0\ud800" + "long " * 400_000, ground_truth="\udfff", info={"\ud800": 1e-300, "n": 10**30})
    write_manifest(pool, tmp_path, form)
    _same(pool, Pool.load(tmp_path))


def test_fields_at_their_default_are_not_written(tmp_path: Path) -> None:
    write_manifest(_pool(), tmp_path)
    assert (tmp_path / "environments.jsonl").read_text() == '{"env_id": "e"}\n'
    assert (tmp_path / "tasks.jsonl").read_text() == '{"env_id": "e", "task_id": "t", "prompt": "p"}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environments.jsonl", "tasks.jsonl"]


def test_parquet_keeps_nested_fields_as_json_text(tmp_path: Path) -> None:
    write_manifest(_pool(info={"held_out": True}), tmp_path, "parquet")
    table = pq.read_table(tmp_path / "tasks.parquet")
    assert table.column_names == ["env_id", "task_id", "prompt", "info"]
    assert table.to_pylist() == [{"env_id": "e", "task_id": "t", "prompt": "p", "info": '{"held_out": true}'}]


def test_parquet_of_other_tools_may_nest(tmp_path: Path) -> None:
    pq.write_table(pa.table({"env_id": ["e"], "rules": [["a", "b"]], "max_turns": [9]}), tmp_path / "environments.parquet")
    rows = [
        {"env_id": "e", "task_id": "1", "prompt": "p", "verifier": {"checks": [{"code": "c"}]}},
        {"env_id": "e", "task_id": "2", "prompt": ""},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    pool = Pool.load(tmp_path)
    assert (pool.environments[0].rules, pool.environments[0].max_turns) == (("a", "b"), 9)
    assert [task.verifier.checks for task in pool.tasks] == [(Check(code="c"),), ()]


def test_the_two_tables_may_have_different_forms(tmp_path: Path) -> None:
    write_manifest(_pool(), tmp_path / "a", "jsonl")
    write_manifest(_pool(), tmp_path / "b", "parquet")
    (tmp_path / "a" / "tasks.jsonl").unlink()
    (tmp_path / "b" / "tasks.parquet").rename(tmp_path / "a" / "tasks.parquet")
    assert Pool.load(tmp_path / "a").keys == ("e/t",)


E_LINE = b'{"env_id": "e"}\n'
T_LINE = b'{"env_id": "e", "task_id": "t", "prompt": "p"}\n'


def _task_line(**fields: Any) -> bytes:
    return json.dumps({"env_id": "e", "task_id": "t", "prompt": "p"} | fields).encode()


@pytest.mark.parametrize(
    ("environments", "tasks", "said"),
    [
        (E_LINE + b"{", T_LINE, r"environments.jsonl:2: malformed .*expected JSON"),
        (E_LINE, b"\n\n[1]\n", r"tasks.jsonl:3: holds list; expected a JSON object a line"),
        (E_LINE, T_LINE + b'{"prompt": "\xe9"}', r"tasks.jsonl: byte 0xe9 at offset 59; expected UTF-8 text"),
        (E_LINE + E_LINE, T_LINE, r"environments.jsonl:2: environment 'e' stands already at .*environments.jsonl:1; .*Rename or drop"),
        (E_LINE, T_LINE + T_LINE, r"tasks.jsonl:2: task 'e/t' stands already at .*tasks.jsonl:1"),
        (E_LINE, _task_line(env_id="f"), r"tasks.jsonl:1: task 't' belongs to environment 'f', which is not in the pool"),
        (E_LINE, b'{"env_id": "e", "task_id": "t"}', r"tasks.jsonl:1: field 'prompt': missing; expected a string"),
        (E_LINE, _task_line(task_id=3), r"field 'task_id': found 3; expected a string"),
        (E_LINE, _task_line(task_id=""), "field 'task_id': found ''; expected a string that is not empty"),
        (E_LINE, _task_line(reward_range=[0, 1e999]), r"field 'reward_range': found \[0, inf\]; expected two finite numbers"),
        (E_LINE, _task_line(reward_range=[float("nan"), 1]), "field 'reward_range': found"),
        (E_LINE, _task_line(reward_range=[1, 1]), r"found \[1, 1\]; expected two finite numbers \[lowest, highest\]"),
        (E_LINE, _task_line(reward_range=[-1e308, 1e308]), r"expected two finite numbers \[lowest, highest\]"),
        (E_LINE, _task_line(reward_range=[0, 10**400]), r"field 'reward_range': found \[0, 1000"),
        (E_LINE, _task_line(reward_range=[-(10**400), 1 - 10**400]), "field 'reward_range': found"),
        (E_LINE, _task_line(info={"held_out": "no"}), "field 'info.held_out': found 'no'; expected true or false"),
        (E_LINE, _task_line(verifier={"checks": [{"weight": 10**400}]}), "field 'weight': found 1000"),
        (b'{"env_id": "e", "timeouts": {"step": 1' + b"0" * 400 + b"}}", T_LINE, "timeouts: field 'step': found 1000"),
        (E_LINE, _task_line(reward_range=[0, True]), "field 'reward_range'"),
        (E_LINE, _task_line(reward_range=1), "field 'reward_range': found 1"),
        (E_LINE, _task_line(info=[]), r"field 'info': found \[\]; expected an object"),
        (E_LINE, _task_line(verifer={}), "unknown field 'verifer'; .*Did you mean 'verifier'?"),
        (E_LINE, _task_line(split="train"), "unknown field 'split'; .*move it into 'info'"),
        (E_LINE, _task_line(verifier={"checks": [{"code": 1}]}), "tasks.jsonl:1, check 0: field 'code': found 1"),
        (E_LINE, _task_line(verifier={"checks": [{"weight": -1}]}), "field 'weight': found -1; expected a finite number of at least 0"),
        (E_LINE, _task_line(verifier={"checks": [{"weight": float("inf")}]}), "field 'weight': found inf"),
        (E_LINE, _task_line(verifier={"checks": 3}), "field 'checks': found 3"),
        (E_LINE, b"", "no tasks. A pool needs at least one task"),
        (b"", T_LINE, "which is not in the pool"),
        (b'{"env_id": "e", "env_type": "docker"}', T_LINE, "field 'env_type': found 'docker'; expected one of python_class, mcp"),
        (b'{"env_id": "e", "max_turns": 0}', T_LINE, "field 'max_turns': found 0; expected a whole number of at least 1"),
        (b'{"env_id": "e", "max_turns": true}', T_LINE, "field 'max_turns': found True"),
        (b'{"env_id": "e", "timeouts": {"step": 0}}', T_LINE, "timeouts: field 'step': found 0"),
        (b'{"env_id": "e", "timeouts": {"reset": 1}}', T_LINE, "unknown field 'reset'"),
        (b'{"env_id": "e", "tools": [{}]}', T_LINE, "field 'tools': found {}; expected a list of OpenAI function schemas"),
        (b'{"env_id": "e", "tools": "[1"}', T_LINE, "field 'tools': no JSON"),
        (b'{"env_id": "e", "rules": ["a", 1]}', T_LINE, "field 'rules': found 1; expected a list of strings"),
        (b'{"env_id": "e", "license": "MIT"}', T_LINE, "unknown field 'license'; .*Did you mean 'licence'?"),
        (b'{"env_id": "e", "reward_range": [0, 1e999]}', T_LINE, r"environments.jsonl:1: field 'reward_range': found \[0, inf\]"),
    ],
)
def test_bad_input_names_line_field_expectation_and_cure(tmp_path: Path, environments: bytes, tasks: bytes, said: str) -> None:
    (tmp_path / "environments.jsonl").write_bytes(environments)
    (tmp_path / "tasks.jsonl").write_bytes(tasks)
    with pytest.raises(PoolError, match=said):
        Pool.load(tmp_path)


def test_a_wrong_value_is_quoted_in_short(tmp_path: Path) -> None:
    (tmp_path / "environments.jsonl").write_bytes(E_LINE)
    (tmp_path / "tasks.jsonl").write_bytes(_task_line(info=["\ud800" * 100_000]))
    with pytest.raises(PoolError) as raised:
        Pool.load(tmp_path)
    assert len(str(raised.value)) < 400 + len(str(tmp_path))
    str(raised.value).encode("utf-8")


def test_broken_parquet(tmp_path: Path) -> None:
    (tmp_path / "environments.parquet").write_bytes(b"PAR1 but cut")
    (tmp_path / "tasks.jsonl").write_bytes(T_LINE)
    with pytest.raises(PoolError, match=r"environments.parquet: cannot be read .*expected a Parquet file"):
        Pool.load(tmp_path)
    (tmp_path / "environments.parquet").unlink()
    pq.write_table(pa.table({"env_id": ["e", "e2"], "tools": [None, "{"]}), tmp_path / "environments.parquet")
    with pytest.raises(PoolError, match=r"environments.parquet, row 1: field 'tools': no JSON"):
        Pool.load(tmp_path)


def test_text_that_is_no_utf8_in_parquet(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(T_LINE)
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(b"\x00\x00\x00\x00\x01\x00\x00\x00"), pa.py_buffer(b"\xff"))
    pq.write_table(pa.table({"env_id": bad}), tmp_path / "environments.parquet")
    with pytest.raises(PoolError, match="UTF-8"):
        Pool.load(tmp_path)


def test_both_forms_of_a_table_are_ambiguous(tmp_path: Path) -> None:
    write_manifest(_pool(), tmp_path)
    (tmp_path / "tasks.parquet").write_bytes(b"")
    with pytest.raises(PoolError, match=r"tasks.jsonl and tasks.parquet; expected one of the two"):
        Pool.load(tmp_path)
    with pytest.raises(PoolError, match="one of the two"):
        write_manifest(_pool(), tmp_path)


def test_writing_the_other_form_over_a_manifest_is_refused(tmp_path: Path) -> None:
    write_manifest(_pool(), tmp_path)
    with pytest.raises(PoolError, match=r"environments.jsonl is there; expected none but environments.parquet"):
        write_manifest(_pool(), tmp_path, "parquet")
    write_manifest(_pool(), tmp_path)


def test_one_table_alone(tmp_path: Path) -> None:
    (tmp_path / "environments.jsonl").write_bytes(E_LINE)
    with pytest.raises(PoolError, match=r"no tasks\.jsonl or tasks\.parquet"):
        Pool.load(tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_the_real_pool_survives(data_dir: Path, tmp_path: Path, form: Any) -> None:
    pool = Pool.load(data_dir / "envscaler")
    write_manifest(pool, tmp_path, form)
    _same(pool, Pool.load(tmp_path))
