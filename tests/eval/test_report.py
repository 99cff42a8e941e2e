"""The report is one file that holds every figure, whatever the run looked like."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from envsched_gnn.errors import HistoryError
from envsched_gnn.eval.metrics import bins, first_and_last, read_run, spearman
from envsched_gnn.eval.report import write_report
from envsched_gnn.ledger import Ledger
from envsched_gnn.records import Phase, Pick, Relaxation, Rollout, RolloutGroup, Selection

Rewards = Callable[[int, int], tuple[float | None, ...]]


def rising(step: int, task: int) -> tuple[float | None, ...]:
    """Rewards of 4 rollouts that differ more often as steps go by; the last task always crashes."""
    if task == 11:
        return (None, None, None, None)
    share = (step + 1) / 30 * (task % 4) / 3
    return tuple(float(round(min(1.0, share * (k + 1) / 2), 4)) for k in range(4))


def run_folder(folder: Path, *, steps: int, environments: int, batch: int, rewards: Rewards = rising, policy: str = "envsched") -> Path:
    """A run folder as a run of `steps` rounds leaves it."""
    folder.mkdir(parents=True)
    name = folder.name
    (folder / "resolved.toml").write_text(
        f'[run]\nname = "{name}"\nfolder = "runs"\npolicy = "{policy}"\nsteps = {steps}\nseed = 0\n'
        f"[select]\nbatch_size = {batch}\n[rollout]\nnum_rollouts = 4\n[predict]\nv_floor = 1e-6\n"
    )
    (folder / "versions.json").write_text(json.dumps({"envsched_gnn": "0.1.0", "python": "3.11", "torch": "2.13.0", "commit": "abc"}))
    entries = [{"env_id": f"env<{e}>", "tasks": 3, "tools": 5} for e in range(environments)]
    pool = {"source": "a pool", "content_hash": "0", "tasks": 3 * environments, "environments": entries, "reward_ranges": {}}
    (folder / "pool.json").write_text(json.dumps(pool))
    with Ledger(folder / "ledger.sqlite", name) as ledger:
        lines = [json.dumps(one_round(ledger, step, environments, batch, rewards, policy)) for step in range(steps)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def one_round(ledger: Ledger, step: int, environments: int, batch: int, rewards: Rewards, policy: str) -> dict[str, float | None]:
    picks, groups = [], []
    for rank in range(batch):
        env, task = f"env<{(rank + step * batch) % environments}>", f"t{(rank + step) % 12}"
        spread = rewards(step, (rank + step) % 12)
        cold = step == 0
        phase: Phase = "uniform" if policy == "uniform" else "cold" if cold else "coverage"
        guess = 0.0 if policy == "uniform" else 0.05 if cold else 0.01 * ((rank + step) % 4) + 0.001 * step
        pick = Pick(
            rank=rank + 1, env_id=env, task_id=task, task_index=0, group_id=f"{step}:{env}/{task}", phase=phase,
            score=0.5, predicted_variance=guess, p_informative=min(1.0, guess * 12),
        )  # fmt: skip
        picks.append(pick)
        rollouts = tuple(
            Rollout(reward=r, status="crashed" if r is None else "ok", detail="" if r is not None else "<boom>") for r in spread
        )
        groups.append(RolloutGroup(group_id=pick.group_id, env_id=env, task_id=task, step=step, rollouts=rollouts))
    relaxed = (Relaxation(quota="rolling", env_id=picks[0].env_id, task_id="t0"),) if step % 5 == 4 else ()
    ledger.write_selection(Selection(step=step, picks=tuple(picks), relaxations=relaxed))
    for group in groups:
        ledger.write_group(group)
    variances = [float(np.var([r for r in g.rewards if r is not None])) for g in groups if None not in g.rewards]
    means = [float(np.mean([r for r in g.rewards if r is not None])) for g in groups if None not in g.rewards]
    figure = {
        "variance_mean": float(np.mean(variances)) if variances else None,
        "variance_median": float(np.median(variances)) if variances else None,
        "reward_median": float(np.median(means)) if means else None,
        "zero_variance_share": float(np.mean(np.array(variances) <= 1e-12)) if variances else None,
    }
    seconds = {"seconds_select": 0.01, "seconds_rollout": 1.5, "seconds_observe": 0.02, "seconds_save": 0.004}
    return {"step": step, **figure, "environments": len({p.env_id for p in picks}), "tools": 40, "rollouts": 4 * batch, **seconds}


class Links(HTMLParser):
    """Everything an HTML file would load, and its element ids."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "srcset") and value and not value.startswith(("#", "data:")):
                self.loads.append(value)
            if name == "id" and value:
                self.ids.append(value)
        if tag in ("script", "link", "iframe"):
            self.loads.append(tag)


def check_whole(path: Path) -> str:
    """The report loads nothing, has no id twice, and every section."""
    html = path.read_text(encoding="utf-8")
    links = Links()
    links.feed(html)
    assert links.loads == []
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert len(links.ids) == len(set(links.ids))
    for title in (
        "Realised variance", "Wasted groups and reward", "Environments and tools in a batch", "Where the rollouts went",
        "Predicted against realised", "Quota relaxations", "Dead or failing tasks", "Seconds by stage", "How to reproduce",
    ):  # fmt: skip
        assert f">{title}" in html
    return html


def test_a_full_run(tmp_path: Path) -> None:
    path = write_report(run_folder(tmp_path / "full", steps=30, environments=20, batch=12))
    html = check_whole(path)
    assert path == tmp_path / "full" / "report.html"
    assert html.count("<svg") == 10
    assert "360 tasks" not in html
    assert "60 tasks in 20 environments" in html
    assert "6 times a pick broke a quota" in html
    assert "&lt;boom&gt;" in html
    assert "<boom>" not in html
    assert "crashed" in html
    assert "reward always 0.00" in html
    assert "envsched run -c runs/full/resolved.toml -s run.name=full-again" in html
    assert "Spearman rank correlation 0." in html


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "same", steps=3, environments=4, batch=4)
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()


def test_one_round(tmp_path: Path) -> None:
    html = check_whole(write_report(run_folder(tmp_path / "one", steps=1, environments=1, batch=2)))
    assert "in the only round" in html
    assert "No group was predicted" in html


def test_no_informative_group(tmp_path: Path) -> None:
    html = check_whole(
        write_report(run_folder(tmp_path / "flat", steps=50, environments=5, batch=5, rewards=lambda step, task: (0.5,) * 4))
    )
    assert "was 1.00 over the first 10 and 1.00 over the last 10 rounds" in html
    assert "none is defined" in html


def test_no_observation_at_all(tmp_path: Path) -> None:
    html = check_whole(
        write_report(run_folder(tmp_path / "mute", steps=4, environments=5, batch=5, rewards=lambda step, task: (None,) * 4))
    )
    assert "never measured" in html


@pytest.mark.parametrize(("policy", "said"), [("uniform", "uniform selection predicts nothing"), ("dps", "the peer dps predicts nothing")])
def test_some_policies_predict_nothing(tmp_path: Path, policy: str, said: str) -> None:
    html = check_whole(write_report(run_folder(tmp_path / policy, steps=4, environments=5, batch=5, policy=policy)))
    assert said in html
    assert "None: this policy has no quotas." in html


def test_ten_thousand_environments_are_capped_and_it_says_so(tmp_path: Path) -> None:
    path = write_report(run_folder(tmp_path / "wide", steps=6, environments=10_000, batch=64))
    html = check_whole(path)
    assert "Only the 120 most selected of 10,000 environments are shown" in html
    assert path.stat().st_size < 3_000_000


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"not a run folder \(no resolved.toml\)"):
        write_report(tmp_path)
    folder = run_folder(tmp_path / "early", steps=1, environments=1, batch=1)
    (folder / "metrics.jsonl").write_text('{"step": 0, "varia')
    with pytest.raises(HistoryError, match="no finished round yet"):
        write_report(folder)
    (folder / "metrics.jsonl").write_text('{"step": 0\n{"step": 1}\n')
    with pytest.raises(HistoryError, match=r"metrics\.jsonl, line 1: not JSON"):
        write_report(folder)


def test_rounds_not_yet_in_the_metrics_are_left_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "cut", steps=3, environments=4, batch=4)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    run = read_run(folder)
    assert [r["step"] for r in run.rounds] == [0, 1]
    assert {step for step, _, _ in run.selected} == {0, 1}
    assert set(run.groups.step.tolist()) == {0, 1}


def test_spearman() -> None:
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 40, 30])) == pytest.approx(0.8)
    assert spearman(np.array([1.0, 2, 3, np.nan]), np.array([3.0, 2, 1, 9])) == pytest.approx(-1)
    assert np.isnan(spearman(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])))
    assert np.isnan(spearman(np.array([1.0, 2]), np.array([1.0, 2])))


def test_bins() -> None:
    found = bins(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.0, 1, 1, 1]), count=2)
    assert [(b.predicted, b.realised, b.size) for b in found] == [(pytest.approx(0.15), 0.5, 2), (pytest.approx(0.35), 1.0, 2)]
    assert [b.size for b in bins(np.full(5, 0.3), np.ones(5))] == [5]
    assert bins(np.array([np.nan]), np.array([1.0])) == []


def test_first_and_last() -> None:
    assert first_and_last(np.arange(10.0)) == (0.5, 8.5, 2)
    assert first_and_last(np.array([3.0])) == (3.0, 3.0, 1)


@pytest.mark.slow
def test_a_browser_draws_it(tmp_path: Path) -> None:
    browser = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no headless browser (chromium, google-chrome)")
    path = write_report(run_folder(tmp_path / "seen", steps=30, environments=20, batch=12))
    picture = tmp_path / "report.png"
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--window-size=1200,3600",
        f"--user-data-dir={tmp_path}/profile",
    ]
    subprocess.run([browser, *options, f"--screenshot={picture}", path.as_uri()], check=True, capture_output=True, timeout=100)
    from matplotlib.image import imread

    pixels = imread(picture)
    assert pixels.shape[:2] == (3600, 1200)
    painted = (np.ptp(pixels[..., :3], axis=2) > 0.2).mean()
    assert painted > 0.005, "coloured lines and points are on the page"
