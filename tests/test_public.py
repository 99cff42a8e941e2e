"""The public surface is frozen: names, verbs and their arguments; importing it costs no torch."""

import inspect
import subprocess
import sys

import envsched_gnn
from envsched_gnn.schedule import EnvSched, Uniform

NAMES = [
    "Config",
    "EnvSched",
    "EnvSchedMixin",
    "Explanation",
    "LoadReport",
    "Pick",
    "Pool",
    "Prediction",
    "Rollout",
    "RolloutGroup",
    "ScriptedEngine",
    "Selection",
    "Uniform",
    "attach",
    "build_graph",
    "load_config",
    "newest_checkpoint",
]
VERBS = {
    "cancel": "(group_ids)",
    "explain": "(task_id, step)",
    "load_state_dict": "(saved)",
    "metrics": "()",
    "observe": "(groups, rewards)",
    "problems": "()",
    "release": "(task_ids)",
    "scores": "(step)",
    "select": "(step, n, request_id)",
    "shadow": "(step, task_ids)",
    "state_dict": "()",
    "to": "(device)",
}


def test_names():
    assert envsched_gnn.__all__ == NAMES
    assert set(NAMES) <= set(dir(envsched_gnn))
    assert all(inspect.isclass(getattr(envsched_gnn, name)) or callable(getattr(envsched_gnn, name)) for name in NAMES)
    assert not hasattr(envsched_gnn, "nothing_of_this_name")


def verbs_of(cls):
    methods = inspect.getmembers(cls, inspect.isfunction)
    return {name: f"({', '.join(list(inspect.signature(f).parameters)[1:])})" for name, f in methods if not name.startswith("_")}


def test_verbs():
    inner = {"predicted", "quotas", "rounds_before"}
    assert {name: arguments for name, arguments in verbs_of(EnvSched).items() if name not in inner} == VERBS
    assert verbs_of(Uniform) == {k: v for k, v in VERBS.items() if k not in ("explain", "release", "scores", "shadow")}


def test_constructor():
    assert list(inspect.signature(EnvSched).parameters) == [
        "pool",
        "graph",
        "batch_size",
        "seed",
        "preset",
        "select",
        "predict",
        "predictor",
    ]


def test_importing_the_package_imports_no_torch():
    code = "import envsched_gnn, sys; dir(envsched_gnn); envsched_gnn.load_config; envsched_gnn.Pool; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_scheduler_needs_no_trainer():
    code = "import sys; from envsched_gnn import EnvSched, newest_checkpoint; print({'trl', 'datasets'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
