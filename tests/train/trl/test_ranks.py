"""Two processes train one selection; what goes wrong on one ends both."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def launched(folder, task, *, seconds=200):
    """Run `trl_ranks` on two gloo processes, without a launcher that would end one when the other dies; what each wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.train.trl.ranks", str(folder), task]
    with ExitStack() as stack:
        ranks = []
        for rank in range(2):
            log = stack.enter_context((folder / f"stderr-{rank}").open("w"))
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(command, cwd=ROOT, env=os.environ | common | place, stdout=subprocess.DEVNULL, stderr=log)
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in ranks:
            process.wait(timeout=seconds)
    assert ranks[0].returncode == 0, (folder / "stderr-0").read_text()[-3000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_processes_train_the_same_selection(tmp_path):
    (whole, resumed), (other, other_resumed) = launched(tmp_path, "train")
    assert [seen["round"] for seen in whole["seen"]] == [seen["round"] for seen in other["seen"]]
    assert [seen["round"][0]["step"] for seen in whole["seen"]] == [0, 1, 2]
    for here, there in zip(whole["seen"], other["seen"], strict=True):
        picks = [f"{pick['env_id']}/{pick['task_id']}" for pick in here["round"][0]["picks"]]
        assert here["mine"] + there["mine"] == [key for key in picks for _ in range(4)]
        groups = here["round"][1]
        assert [len(group["rollouts"]) for group in groups] == [4] * 6
        assert [rollout["status"] for rollout in groups[5]["rollouts"]][3] == "crashed"
        assert there["advantages"][11] == 0.0
        assert sum(there["advantages"][8:11]) == pytest.approx(0, abs=1e-5)
    assert {rollout["policy_version"] for rollout in whole["seen"][1]["round"][1][0]["rollouts"]} == {2}
    assert (whole["told"], other["told"]) == ([0, 1, 2], [])
    assert (whole["asked"], other["asked"]) == (3, 0)
    assert resumed["weights"] == other_resumed["weights"] == whole["weights"] == other["weights"]
    assert resumed["seen"] == whole["seen"][2:]
    assert other_resumed["seen"] == other["seen"][2:]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_goes_wrong_on_one_process_ends_both(tmp_path):
    """Other rows on the second; a hook that fails on the first; the second is killed. Nobody waits longer than ddp_timeout."""
    first, second = launched(tmp_path, "break", seconds=200)
    assert [error.split(".")[0] for error in (first[0], second[0])] == [
        "ConfigError: train_dataset: its column task_id differs between processes"
    ] * 2
    assert first[1] == "OSError: [Errno 28] No space left on device"
    assert second[1:] == ["EnvSchedError: rank 0: OSError: [Errno 28] No space left on device"]
    assert "Error: " in first[2]
