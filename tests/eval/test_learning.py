"""The report of a training run shows its learning curves; one without evaluations has none."""

import json
from pathlib import Path
from typing import Any

from envsched_gnn.eval.report import summary, write_report
from tests.eval.test_report import check_whole, run_folder

STEPS = 12


def part(tasks: int, reward: float | None) -> dict[str, Any]:
    return {"tasks": tasks, "reward": reward, "solved": 0.0, "failed": 0 if reward is not None else 2 * tasks}


def evaluation(step: int, inside: float | None, outside: float | None, tasks: int = 250) -> dict[str, Any]:
    both = part(2 * tasks, inside) | {"failed": 3}
    parts = {"held_out_tasks": part(tasks, inside), "held_out_environments": part(tasks, outside)}
    return {"step": step, "seconds": 2.5, "samples": 2, "all": both, **parts}


def trained(folder: Path, evaluations: list[dict[str, Any]], kind: str = "pocket") -> Path:
    """A run folder as a training of 12 rounds leaves it, killed in the evaluation after the next."""
    run_folder(folder, steps=STEPS, environments=8, batch=6)
    settings = folder / "resolved.toml"
    settings.write_text(settings.read_text() + f'[model]\nkind = "{kind}"\npath = "smollm2"\n[train]\nalgorithm = "grpo"\n')
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"seconds_generate": 1.0, "seconds_update": 2.0, "seconds_rollout": 0.1, "seconds_save": 0.2 if line["step"] == 9 else None}
        line["envsched/round/rank_correlation"] = None if line["step"] == 0 else -0.1 + 0.05 * line["step"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluations) + '{"step": 1')
    return folder


def test_learning_curves(tmp_path: Path) -> None:
    curve = [evaluation(0, 0.2, 0.1), evaluation(10, 0.45, None), evaluation(12, 0.5, 0.3), evaluation(20, 0.9, 0.9)]
    folder = trained(tmp_path / "t", curve)
    html = check_whole(write_report(folder))
    assert html.count("<svg") == 12
    assert "chose 6 tasks a round for 12 rounds of GRPO on the pocket model from a pool" in html
    assert "Reward on 250 held-out tasks x 2 rollouts went from 0.20 after 0 rounds to 0.50 after 12." in html
    assert "Reward on 250 tasks of held-out environments x 2 rollouts went from 0.10 after 0 rounds to 0.30 after 12." in html
    assert "9 rollouts of evaluations ended without a reward" in html
    assert "<b>0.20 → 0.50</b><span>reward on held-out tasks</span>" in html
    assert "Spearman&#39;s correlation was 0.20 on average over the 11 rounds that have one." in html
    assert "Left: rollout 1.2 s, generate 12.0 s, update 24.0 s in all. Right: what the scheduler adds, 1.5 % of the time" in html
    assert "select 10 ms, observe 20 ms, save 17 ms a round" in html
    assert "envsched train -c runs/t/resolved.toml -s run.name=t-again" in html
    assert [line["held_out_environments"] for line in summary(folder)["evaluations"]] == [0.1, None, 0.3]
    assert summary(folder)["seconds_a_round"]["update"] == 2.0


def test_one_evaluation_of_one_kind(tmp_path: Path) -> None:
    html = check_whole(write_report(trained(tmp_path / "t", [evaluation(12, 0.25, None, 30)], "language_model")))
    assert "Reward on 30 held-out tasks x 2 rollouts was 0.25 after 12 rounds." in html
    assert "of GRPO on smollm2 from" in html
    assert "<b>0.25</b><span>reward on held-out tasks</span>" in html


def test_what_is_held_out_is_not_missed(tmp_path: Path) -> None:
    folder = trained(tmp_path / "t", [])
    pool = json.loads((folder / "pool.json").read_text())
    for number, environment in enumerate(pool["environments"]):
        environment["trained"] = 0 if number == 7 else 2
    (folder / "pool.json").write_text(json.dumps(pool))
    html = check_whole(write_report(folder))
    assert "of 7 environments selected" in html
    assert "of 14 tasks selected" in html
    assert "of 7 environments on average" in html


def test_no_reward_in_any_evaluation(tmp_path: Path) -> None:
    html = check_whole(write_report(trained(tmp_path / "t", [evaluation(12, None, None)])))
    assert "3 rollouts of evaluations ended without a reward and are left out." in html


def test_a_training_without_evaluations(tmp_path: Path) -> None:
    folder = trained(tmp_path / "t", [])
    html = check_whole(write_report(folder))
    assert "Learning curve" not in html
    assert "of GRPO on the pocket model" in html
    assert summary(folder)["evaluations"] == []
