"""Time the scheduler: select (predict and greedy apart), observe, graph build, peak memory, beside two floors of the same run; then peers.

`python -m envsched_gnn.eval.speed [--sizes 2550,100000,1000000] [--peers 2550,100000] [--threads 1,2] [--graphs FOLDER]`

Knows: what is timed, how often, and where the figures go. Every row runs in a process of its own, so that its peak memory is its own.
Does not know: pools (benchmarks.pools), how a peer is timed (benchmarks.peers).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch_geometric.data import HeteroData

from envsched_gnn.config import PredictConfig
from envsched_gnn.eval.benchmarks import peers
from envsched_gnn.eval.benchmarks.pools import BATCH, NUM_ROLLOUTS, ROUNDS, SIZES, history, random_graph, timed_graph
from envsched_gnn.files import write_atomic
from envsched_gnn.graph.io import load_graph, save_graph
from envsched_gnn.models.make import predictor_of
from envsched_gnn.policy_facts import NAMES
from envsched_gnn.schedule import EnvSched
from envsched_gnn.train.folder import commit

COLUMNS = (
    *("predictor", "environments", "records", "dimension", "tasks", "device", "threads"),
    *("predict_ms", "greedy_ms", "select_ms", "observe_ms", "observe_first_ms", "build_s", "peak_mb", "floor_sort_ms", "floor_gather_ms"),
)
PEERS = tuple(name for name in NAMES if name != "oracle")
"""Timed on random graphs with made-up prompt vectors, all alike; those of the predictors have features."""
PEER_ROUNDS = 8
PREDICTORS = {
    "paper": PredictConfig(preset="paper"),
    "default": PredictConfig(),
    "learned": PredictConfig(predictor="learned"),
}
"""Both presets, and the network in place of the mixture; `learned` observes and learns."""
EDGES_PER_TASK = 18
"""k_within + k_cross."""


def timed(device: str, work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Wall milliseconds of one call, and what it returned."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work(*arguments)
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start), result


def floors(tasks: int, device: str) -> dict[str, float]:
    """One sort of N floats, and one gather-and-add of float64 over 18 N edges."""
    values = torch.rand(tasks, dtype=torch.float64, device=device)
    source = torch.randint(tasks, (EDGES_PER_TASK * tasks,), device=device)
    target = torch.arange(tasks, device=device).repeat_interleave(EDGES_PER_TASK)

    def gather_add() -> torch.Tensor:
        return torch.zeros_like(values).scatter_add_(0, target, values[source])

    def median(work: Callable[..., Any], *arguments: Any) -> float:
        return statistics.median([timed(device, work, *arguments)[0] for _ in range(7)][1:])

    return {"floor_sort_ms": median(torch.sort, values), "floor_gather_ms": median(gather_add)}


def measure(graph: HeteroData, predictor: str, device: str, rounds: int) -> dict[str, Any]:
    """One row of one of PREDICTORS: fill the history, then time `rounds` rounds of select and observe; medians without the first.

    `observe_first_ms` is the slowest of the second to sixth observed round: the very first one also warms the process up.
    """
    sched = EnvSched(None, graph, batch_size=BATCH, seed=0, predict=PREDICTORS[predictor], predictor=predictor_of).to(device)
    first = [timed(device, sched.observe, groups)[0] for groups in history(graph, ROUNDS)]
    times: dict[str, list[float]] = {"predict_ms": [], "select_ms": [], "observe_ms": []}
    generator = torch.Generator().manual_seed(0)
    for step in range(ROUNDS, ROUNDS + rounds):
        times["predict_ms"].append(timed(device, sched.predicted, step)[0])
        select_ms, picks = timed(device, sched.select, step)
        rewards = torch.randint(2, (BATCH, NUM_ROLLOUTS), generator=generator).tolist()
        times["select_ms"].append(select_ms)
        times["observe_ms"].append(timed(device, sched.observe, picks, rewards)[0])
    row = {name: statistics.median(values[1:]) for name, values in times.items()}
    store = graph["task"]
    return {
        "predictor": predictor,
        "environments": len(graph.env_ids),
        "records": len(store.cross_vectors),
        "dimension": store.cross_vectors.shape[1],
        "tasks": store.env_index.numel(),
        "device": device,
        "threads": torch.get_num_threads(),
        **row,
        "greedy_ms": row["select_ms"] - row["predict_ms"],
        "observe_first_ms": max(first[1:6]),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **floors(store.env_index.numel(), device),
    }


def child(arguments: list[str], threads: int) -> dict[str, Any]:
    """Run this module in a fresh process and read the one line of JSON that it prints."""
    environment = os.environ | {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, "-m", "envsched_gnn.eval.speed", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Table:
    """The rows as people read them."""
    shown = Table(title=title)
    for column in columns:
        shown.add_column(column, justify="right")
    for row in rows:
        shown.add_row(*(f"{row[c]:.4g}" if isinstance(row[c], float) else str(row[c] if row[c] is not None else "-") for c in columns))
    return shown


def graph_of(number: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The graph of a size in `folder` and what building it took; built there unless it is there already."""
    path, about = (folder / f"graph-{SIZES[number].tasks}{suffix}" for suffix in (".pt", ".json"))
    if not about.exists():
        folder.mkdir(parents=True, exist_ok=True)
        about.write_text(json.dumps(child(["--build", str(number), str(path)], threads=1)), encoding="utf-8")
    built: dict[str, Any] = json.loads(about.read_text(encoding="utf-8"))
    return path, built


def of_predictors(sizes: list[int], devices: list[str], threads: list[int], rounds: int, graphs: Path) -> Iterator[dict[str, Any]]:
    """A row for every size, device, number of threads and predictor."""
    for number, size in enumerate(SIZES):
        if size.tasks not in sizes:
            continue
        path, built = graph_of(number, graphs)
        for device in devices:
            for count in threads if device == "cpu" else threads[:1]:
                for predictor in PREDICTORS:
                    print(f"{size.tasks} tasks, {predictor}, {device}, threads {count}", file=sys.stderr)
                    row = child(["--row", str(path), predictor, device, str(rounds)], count) | built
                    yield {column: row[column] for column in COLUMNS} | {
                        "select/floors": row["select_ms"] / (row["floor_sort_ms"] + row["floor_gather_ms"])
                    }


def of_peers(sizes: list[int], policies: list[str], threads: int, graphs: Path) -> Iterator[dict[str, Any]]:
    """A row for every size and policy, on the CPU."""
    for tasks in sizes:
        path = graphs / f"random-{tasks}.pt"
        save_graph(random_graph(peers.POOLS[tasks]), path)
        for name in policies:
            print(f"{tasks} tasks, {name}, threads {threads}", file=sys.stderr)
            yield child(["--peer", name, str(path)], threads)


def write(found: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """The result file: when, where, of which commit, and the rows, written after every one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}",
        "commit": commit(),
        "command": shlex.join(["python", "-m", "envsched_gnn.eval.speed", *sys.argv[1:]]),
    }
    write_atomic(out, (json.dumps(about | found, indent=1) + "\n").encode())


def main() -> None:
    """Parse the command line; `--build`, `--row` and `--peer` are what the processes of a run are called with."""
    parser = argparse.ArgumentParser(prog="python -m envsched_gnn.eval.speed")
    parser.add_argument("--sizes", default=",".join(str(size.tasks) for size in SIZES))
    parser.add_argument(
        "--peers", default=",".join(map(str, peers.POOLS)), help="sizes at which every policy is timed, with the last of --threads"
    )
    parser.add_argument("--policies", default=",".join(PEERS))
    parser.add_argument("--devices", default="cpu,cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("eval/results/speed.json"))
    parser.add_argument("--graphs", type=Path, help="keep built graphs and their times here, and use those that are there")
    parser.add_argument("--build", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--row", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    if arguments.build:
        graph, seconds = timed_graph(SIZES[int(arguments.build[0])])
        save_graph(graph, arguments.build[1])
        print(json.dumps({"build_s": seconds}))
    elif arguments.row:
        path, predictor, device, rounds = arguments.row
        print(json.dumps(measure(load_graph(path), predictor, device, int(rounds))))
    elif arguments.peer:
        name, path = arguments.peer
        print(json.dumps(peers.measure(name, load_graph(path), PEER_ROUNDS)))
    elif "cuda" in arguments.devices.split(",") and not torch.cuda.is_available():
        parser.error("--devices cuda: there is no GPU that torch can use here. Leave it out, or install a torch build for CUDA.")
    else:
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Measure, write, print."""
    sizes, of_peer_sizes, threads = (
        [int(n) for n in text.split(",") if n] for text in (arguments.sizes, arguments.peers, arguments.threads)
    )
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "peers": []}
    with tempfile.TemporaryDirectory() as temporary:
        graphs = arguments.graphs or Path(temporary)
        for row in of_predictors(sizes, arguments.devices.split(","), threads, arguments.rounds, graphs):
            found["rows"].append(row)
            write(found, arguments.out)
        for row in of_peers(of_peer_sizes, [name for name in arguments.policies.split(",") if name], threads[-1], Path(temporary)):
            found["peers"].append(row)
            write(found, arguments.out)
    console = Console(width=240)
    console.print(table("medians; milliseconds, seconds, megabytes", (*COLUMNS, "select/floors"), found["rows"]))
    console.print(table("medians of a round of each policy", peers.COLUMNS, found["peers"]))


if __name__ == "__main__":
    main()
