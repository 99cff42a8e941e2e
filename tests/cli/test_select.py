"""`select` and `explain` on a graph and a history: forms, determinism, what a history may hold."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from envsched_gnn.cli.main import app
from envsched_gnn.cli.select import COLUMNS
from envsched_gnn.errors import HistoryError
from envsched_gnn.graph.build import build_graph
from envsched_gnn.graph.io import load_graph, save_graph
from envsched_gnn.schedule import EnvSched
from envsched_gnn.schedule.envsched import EXPOSURE_SCALE
from envsched_gnn.schedule.replay import next_step, read_history, replay
from tests.train.test_run import tiny_pool

POOL = tiny_pool(environments=4, tasks=6)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.pt"
    save_graph(build_graph(POOL), path)
    return path


def line(step: int, env: int, task: int, rewards: list[float | None], **more: Any) -> dict[str, Any]:
    return {"step": step, "env_id": f"s{env}", "task_id": f"t{task}", "rewards": rewards, **more}


HISTORY = [
    line(0, 0, 0, [0.0, 1.0, 0.5]),
    line(0, 1, 1, [1.0, 1.0, 1.0], status="ok", seconds=[0.5, 0.25, 1], policy_version=3, group_id="mine"),
    line(1, 0, 0, [0.0, None, 1.0], status=["ok", "crashed", "truncated"]),
    line(1, 2, 3, [None, None, None], status="timeout"),
    line(2, 3, 5, [0.25, 0.5, float("nan")]),
]


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in lines))
    return path


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def selected(*arguments: object) -> dict[str, Any]:
    result = invoke("select", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def rows_of(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as file:
        return {f"{row['env_id']}/{row['task_id']}": row for row in csv.DictReader(file)}


def test_the_json_form(graph: Path, tmp_path: Path) -> None:
    history = written(tmp_path / "h.jsonl", HISTORY)
    answer = selected(graph, "--history", history, "--batch-size", 5)
    assert list(answer) == ["step", "preset", "picks", "relaxations"]
    assert (answer["step"], answer["preset"], len(answer["picks"])) == (3, "paper", 5)
    for rank, pick in enumerate(answer["picks"], start=1):
        assert list(pick) == ["rank", "env_id", "task_id", "group_id", "phase", "score"]
        assert pick["rank"] == rank
        assert pick["group_id"] == f"3:{pick['env_id']}/{pick['task_id']}"
    assert [pick["phase"] for pick in answer["picks"]] == ["coverage"] * 2 + ["exploitation"] * 3
    assert selected(graph, "--history", history, "--batch-size", 5) == answer, "deterministic"


def test_without_history_the_batch_is_cold(graph: Path, tmp_path: Path) -> None:
    answer = selected(graph, "--batch-size", 3)
    assert answer["step"] == 0
    assert {pick["phase"] for pick in answer["picks"]} == {"cold"}
    assert selected(graph, "--batch-size", 3, "--history", written(tmp_path / "h.jsonl", [])) == answer
    assert selected(graph, "--batch-size", 3, "--seed", 1) != answer
    assert len(selected(graph)["picks"]) == 24, "a pool smaller than the batch is selected whole"


def test_quotas_that_break_are_listed(graph: Path) -> None:
    relaxations = selected(graph, "--batch-size", 24, "--history", "/dev/null")["relaxations"]
    assert all(list(entry) == ["quota", "env_id", "task_id"] for entry in relaxations)


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_scores(graph: Path, tmp_path: Path, preset: str) -> None:
    history, path = written(tmp_path / "h.jsonl", HISTORY), tmp_path / "scores.csv"
    answer = selected(graph, "--history", history, "--preset", preset, "--batch-size", 5, "--scores", path)
    text = path.read_text()
    assert text.splitlines()[0] == (
        "env_id,task_id,weight_long,variance_long,mean_long,dispersion_long,predicted_variance,informativeness,coverage_score,"
        "exploitation_score,num_selections,phase,rank,p_informative"
    )
    assert text.splitlines()[0] == ",".join(COLUMNS)
    rows = rows_of(path)
    assert list(rows) == list(POOL.keys), "a row a task, in pool order"
    picked = {f"{pick['env_id']}/{pick['task_id']}": pick for pick in answer["picks"]}
    assert {key for key, row in rows.items() if row["phase"]} == set(picked)
    for key, row in rows.items():
        assert (row["phase"], row["rank"]) == ((picked[key]["phase"], str(picked[key]["rank"])) if key in picked else ("", ""))
        assert repr(float(row["predicted_variance"])) == repr(float(f"{float(row['predicted_variance']):.17g}"))
    # Observed at steps 0 and 1, seen from 3: 2^(-3/8) + 2^(-2/8). Selected twice; masked groups count as selections, not as evidence.
    assert float(rows["s0/t0"]["weight_long"]) == pytest.approx(2 ** (-3 / 8) + 2 ** (-2 / 8), abs=1e-12)
    assert {key: row["num_selections"] for key, row in rows.items() if row["num_selections"] != "0"} == {
        "s0/t0": "2", "s1/t1": "1", "s2/t3": "1", "s3/t5": "1",
    }  # fmt: skip
    assert float(rows["s2/t3"]["weight_long"]) == 0
    q = np.array([float(row["informativeness"]) for row in rows.values()])
    assert q.min() > 0
    assert q.max() < 1
    count = np.array([float(row["num_selections"]) for row in rows.values()])
    exploitation = np.array([float(row["exploitation_score"]) for row in rows.values()])
    np.testing.assert_allclose(exploitation, q / np.sqrt(1 + count / EXPOSURE_SCALE[preset]), atol=1e-12)


def test_only_steps_before_t_are_used(graph: Path, tmp_path: Path) -> None:
    whole, part = written(tmp_path / "whole.jsonl", HISTORY), written(tmp_path / "part.jsonl", HISTORY[:2])
    assert selected(graph, "--history", whole, "--step", 1) == selected(graph, "--history", part)
    assert selected(graph, "--history", whole, "--step", 0) == selected(graph)


def test_order_and_repetition_change_nothing(graph: Path, tmp_path: Path) -> None:
    straight = selected(graph, "--history", written(tmp_path / "a.jsonl", HISTORY), "--preset", "default")
    result = invoke(
        "select", graph, "--history", written(tmp_path / "b.jsonl", [*HISTORY[::-1], HISTORY[1]]), "--preset", "default", "--json"
    )
    assert json.loads(result.stdout) == straight
    assert "1 lines" in result.stderr
    assert "repeat a group of an earlier line" in result.stderr


def test_ids_that_begin_anew_every_step_lose_no_group(graph: Path, tmp_path: Path) -> None:
    """A trainer that numbers the groups of each step from 0: an id, a step and a task together name a group."""
    lines = [line(s, t % 4, t, [0.0, 1.0, t / 5], group_id=str(t)) for s in range(3) for t in (s, s + 1)]
    plain = selected(graph, "--history", written(tmp_path / "a.jsonl", [{k: v for k, v in e.items() if k != "group_id"} for e in lines]))
    renumbered = [{**entry, "group_id": str(n % 2)} for n, entry in enumerate(lines)]
    result = invoke("select", graph, "--history", written(tmp_path / "b.jsonl", [*renumbered, renumbered[5]]), "--json")
    assert json.loads(result.stdout) == plain
    assert "1 lines of" in result.stderr
    assert "4 lines of" in result.stderr
    assert "first '0'; used as groups of their own" in result.stderr


def test_problems_are_counted_in_full_and_logging_is_left_as_it_was(graph: Path, tmp_path: Path) -> None:
    import logging

    logger = logging.getLogger("envsched_gnn")
    before = (logger.level, logger.propagate, list(logger.handlers))
    lines = [line(s, s % 4, s % 6, [9.0, 0.5, 0.5]) for s in range(300)]
    result = invoke("select", graph, "--history", written(tmp_path / "h.jsonl", lines), "--json")
    assert result.stderr.count("reward 9.0 is outside") == 5
    assert "group '0:s0/t0', rollout 0" in result.stderr, "the first ones, not the last"
    assert "295 more problems" in result.stderr
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_a_step_that_no_tensor_can_hold_is_wrong_usage(graph: Path, tmp_path: Path) -> None:
    assert selected(graph, "--history", written(tmp_path / "h.jsonl", [{**HISTORY[0], "step": 2**53 - 1}]))["step"] == 2**53
    for verb in (["select"], ["explain", "--task", "s0/t0"]):
        assert invoke(*verb, graph, "--step", 2**70).exit_code == 2


def test_unknown_tasks_and_bad_rewards_are_counted(graph: Path, tmp_path: Path) -> None:
    bad = [line(0, 9, 9, [1.0]), line(2, 9, 8, [1.0]), line(1, 1, 2, [0.5, 0.5, 7.0, float("inf")])]
    result = invoke("select", graph, "--history", written(tmp_path / "h.jsonl", [*HISTORY, *bad]), "--json")
    assert result.exit_code == 0
    assert "2 lines of" in result.stderr
    assert "first s9/t9; left out" in result.stderr
    assert "reward 7.0 is outside [0.0, 1.0]; masked" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads(result.stdout)["step"] == 3


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("{", "not JSON"),
        ("[1]", "a list"),
        ({"env_id": "s0", "task_id": "t0", "rewards": [1]}, "step = None"),
        (line(-1, 0, 0, [1.0]), "step = -1"),
        ({**line(0, 0, 0, [1.0]), "step": 1.5}, "step = 1.5"),
        ({**line(0, 0, 0, [1.0]), "step": True}, "step = True"),
        ({**line(0, 0, 0, [1.0]), "env_id": 3}, "env_id = 3"),
        ({**line(0, 0, 0, [1.0]), "task_id": ""}, "task_id = ''"),
        ({**line(0, 0, 0, [1.0]), "rewards": 1.0}, "rewards = 1.0"),
        ({**line(0, 0, 0, [1.0]), "rewards": [True]}, "rewards = [True]"),
        ({**line(0, 0, 0, [1.0]), "rewards": ["1"]}, "rewards = ['1']"),
        (line(0, 0, 0, [1.0], status="lost"), "status 'lost'"),
        (line(0, 0, 0, [1.0], status="crashed"), "carries reward 1.0"),
        (line(0, 0, 0, [1.0], status=["ok", "ok"]), "2 values of status"),
        (line(0, 0, 0, [1.0], seconds="long"), "seconds 'long'"),
        (line(0, 0, 0, [1.0], policy_version="a"), "policy_version = 'a'"),
    ],
)
def test_a_malformed_line_is_named(graph: Path, tmp_path: Path, entry: Any, found: str) -> None:
    history = written(tmp_path / "h.jsonl", [*HISTORY, "", entry])
    result = invoke("select", graph, "--history", history, "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"h.jsonl, line 7: {found}" in result.stderr or (f"{found}" in result.stderr and "line 7" in result.stderr)
    assert "; expected " in result.stderr


def test_text_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").write_bytes(json.dumps(HISTORY[0]).encode() + b'\n{"step": 0, "env_id": "\xff"}\n')
    with pytest.raises(HistoryError, match=r"h\.jsonl, line 2: not JSON"):
        read_history(tmp_path / "h.jsonl")


def test_a_history_in_utf_16_is_named(tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").write_bytes("\n".join(map(json.dumps, HISTORY[:2])).encode("utf-16"))
    with pytest.raises(HistoryError, match=r"h\.jsonl: UTF-16 text; expected UTF-8"):
        read_history(tmp_path / "h.jsonl")


def test_numbers_at_the_edge(tmp_path: Path) -> None:
    big = "9" * 400
    (tmp_path / "h.jsonl").write_text('{"step": 0, "env_id": "s0", "task_id": "t0", "rewards": [NaN, Infinity, 1e999, null, 1]}\n')
    assert read_history(tmp_path / "h.jsonl")[0].rewards == (None, float("inf"), float("inf"), None, 1.0)
    for text in (f'"rewards": [{big}]', f'"rewards": [1], "policy_version": {big}'):
        (tmp_path / "h.jsonl").write_text(f'{{"step": 0, "env_id": "s0", "task_id": "t0", {text}}}\n')
        with pytest.raises(HistoryError, match="line 1"):
            read_history(tmp_path / "h.jsonl")


def test_a_replay_equals_the_run_that_wrote_it(graph: Path) -> None:
    """A scheduler that picks for itself, and one that is told of the same groups afterwards, go on alike."""
    loaded = load_graph(graph)
    live = EnvSched(None, loaded, batch_size=4, preset="default")
    groups = []
    for step in range(6):
        picks = live.select(step)
        dice = np.random.default_rng(step)
        rewards = dice.integers(0, 2, size=(len(picks.picks), 3)).astype(float)
        live.observe(picks, rewards)
        from envsched_gnn.schedule.groups import groups_of

        groups += groups_of(picks, rewards)
    told = EnvSched(None, loaded, batch_size=4, preset="default")
    report = replay(told, groups, next_step(groups))
    assert (report.replayed, report.unknown, report.repeated) == (24, 0, 0)
    assert told.select(6) == live.select(6)


def test_two_groups_of_a_task_at_one_step_both_count(graph: Path) -> None:
    from envsched_gnn.records import Rollout, RolloutGroup

    def group(group_id: str, *rewards: float) -> RolloutGroup:
        return RolloutGroup(group_id=group_id, env_id="s0", task_id="t0", step=0, rollouts=tuple(Rollout(reward=r) for r in rewards))

    scheduler = EnvSched(None, load_graph(graph), batch_size=4, preset="paper")
    replay(scheduler, [group("a", 0.0, 1.0), group("b", 1.0, 1.0)], 1)
    scores = scheduler.scores(1)
    assert float(scores["weight_long"][0]) == pytest.approx(2 * 2 ** (-1 / 8))
    assert int(scores["num_selections"][0]) == 2


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_explain_adds_up(graph: Path, tmp_path: Path, preset: str) -> None:
    history, path = written(tmp_path / "h.jsonl", HISTORY), tmp_path / "scores.csv"
    options = ("--history", history, "--preset", preset)
    selected(graph, *options, "--scores", path)
    row = rows_of(path)["s0/t0"]
    result = invoke("explain", graph, *options, "--task", "s0/t0", "--json")
    assert result.exit_code == 0, result.output
    explanation = json.loads(result.stdout)
    assert (explanation["task"], explanation["step"], explanation["preset"]) == ("s0/t0", 3, preset)
    column = "predicted_variance" if preset == "paper" else "p_informative"
    assert explanation["value"] == float(row[column])
    assert sum(value for _, value in explanation["terms"]) == pytest.approx(explanation["value"], abs=1e-9)
    assert explanation["scores"] == {"coverage": float(row["coverage_score"]), "exploitation": float(row["exploitation_score"])}
    assert [entry["step"] for entry in explanation["history"]] == [0, 1]
    text = invoke("explain", graph, *options, "--task", "s0/t0")
    assert text.exit_code == 0
    assert "s0/t0" in text.stdout


def test_explain_of_an_unknown_task(graph: Path) -> None:
    result = invoke("explain", graph, "--task", "s0/none")
    assert result.exit_code == 1
    assert "task 's0/none' is not in the pool of 24 tasks" in result.stderr


def test_scores_that_cannot_be_written(graph: Path, tmp_path: Path) -> None:
    result = invoke("select", graph, "--scores", tmp_path / "none" / "scores.csv")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def test_a_learned_predictor_learns_from_the_history_and_explains_itself(graph: Path, tmp_path: Path) -> None:
    lines = [line(step, e, t, [0.0, float((e + t) % 2)]) for step in range(4) for e in range(4) for t in range(5)]
    history = written(tmp_path / "h.jsonl", lines)
    plain, learned = (
        selected(graph, "--history", history, "--preset", "default", "--predictor", name) for name in ("heuristic", "learned")
    )
    assert [pick["score"] for pick in plain["picks"]] != [pick["score"] for pick in learned["picks"]]
    explained = invoke("explain", graph, "--history", history, "--task", "s0/t1", "--predictor", "ensemble").stdout
    assert "gate = n / (n + 200), n groups learned from" in explained
    assert "weight of learned among all experts" in explained
    few = invoke("explain", graph, "--task", "s0/t1", "--predictor", "learned").stdout
    assert "fewer than 50 groups, the graph prior alone" in few
    missing = invoke("select", graph, "--predictor", "learned", "--weights", tmp_path / "none.pt")
    assert (missing.exit_code, "none.pt: no such file. Write one with `envsched fit" in missing.stderr) == (1, True)
