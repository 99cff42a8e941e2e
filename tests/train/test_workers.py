"""Hostile environment code costs one rollout with a status: never the run, never a reward of 0."""

import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from envsched_gnn.errors import EnvSchedError
from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier
from envsched_gnn.train.limits import SYSTEM_CALLS
from envsched_gnn.train.worker import sweep
from envsched_gnn.train.workers import Job, Outcome, RolloutFailure, WorkerPool

HEAD = """
import builtins, ctypes, os, signal, sys, threading, time, subprocess
class World:
    def __init__(self, config=None):
        self.n = 0
    def add(self, k=1):
        self.n += k
        return {"n": self.n}
    def act(self):
"""


def environment(body: str = "        return 1", timeouts: Timeouts | None = None, source: str | None = None) -> Environment:
    tools = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "act"))
    return Environment(
        env_id="e",
        name="World",
        source=source or HEAD + body,
        tools=tools,
        timeouts=timeouts or Timeouts(setup=2.0, step=1.0, score=1.0),
    )


def task(*codes: str) -> Task:
    codes = codes or ("def check_func(final_state):\n    return final_state['n'] == 3", "def check_func(final_state):\n    return True")
    checks = tuple(Check(code=code) for code in codes)
    return Task(env_id="e", task_id="t", prompt="Add.", initial_state={"n": 1}, verifier=Verifier(checks=checks))


def play(*names: str) -> dict[str, object]:
    return {"op": "play", "turns": [[{"name": name, "arguments": {}} for name in names]]}


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    with WorkerPool(2, memory_mb=400) as pool:
        yield pool


def one_lost_in_three(workers: WorkerPool, body: str, timeouts: Timeouts | None = None) -> Outcome:
    """A hostile call between two honest rollouts, and honest ones after it in the same pool."""
    job = Job(environment=environment(body, timeouts), task=task(), requests=[play("add"), play("add", "act"), play("add", "add")])
    outcomes = {number: outcome for _, number, outcome in workers.run([job])}
    assert [outcomes[0].reply["reward"], outcomes[2].reply["reward"]] == [0.5, 1.0]
    assert "reward" not in outcomes[1].reply
    after = Job(environment=environment(), task=task(), requests=[play("add", "add")] * 4)
    assert [outcome.reply["reward"] for _, _, outcome in workers.run([after])] == [1.0] * 4
    return outcomes[1]


CRASHES = {
    "os_exit": ("        os._exit(3)", "exit code 3"),
    "exit_zero": ("        os._exit(0)", "exit code 0"),
    "sys_exit": ("        sys.exit('bye')", "SystemExit: bye"),
    "base_exception": ("        raise KeyboardInterrupt('no')", "KeyboardInterrupt"),
    "signal": ("        os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "abort": ("        os.abort()", "SIGABRT"),
    "kill_parent": ("        os.kill(os.getppid(), signal.SIGKILL)", "os.kill"),
    "kill_group": ("        os.killpg(0, signal.SIGKILL)", "os.killpg"),
    "caught_fork": ("        try:\n            os.fork()\n        except Exception:\n            pass", "os.fork"),
    "shell": ("        os.system('true')", "os.system"),
    "subprocess": ("        subprocess.run(['sleep', '100'])", "subprocess.Popen"),
    "close_fds": ("        os.closerange(0, 200)", "environment code closed|Bad file descriptor|exit code"),
    "channel_garbage": (
        "        for fd in range(3, 400):\n            try: os.write(fd, b'\\0\\0\\0\\5hello')\n            except OSError: pass",
        "no reply",
    ),
    "channel_flood": (
        "        for fd in range(3, 400):\n            try: os.write(fd, b'\\xff' * 4096)\n            except OSError: pass",
        "over 1048576 bytes",
    ),
    "channel_pickle": (
        "        import json\n        b = json.dumps({'id': 1, 'done': {'reward': 99}}).encode()\n"
        "        for fd in range(3, 400):\n"
        "            try: os.write(fd, len(b).to_bytes(4, 'big') + b)\n            except OSError: pass",
        "no reply|reward 99",
    ),
    "forged_reply": (
        "        import gc\n        found = {type(o).__name__: o for o in gc.get_objects() if type(o).__name__ in ('Channel', 'Player')}\n"
        "        found['Channel'].send({'id': found['Player']._request, 'done': {}})",
        "no reply",
    ),
    "native": ("        import ctypes\n        ctypes.string_at(0)", "SIGSEGV"),
    "thread": ("        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "left a thread"),
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_costs_one_rollout(workers: WorkerPool, name: str) -> None:
    body, detail = CRASHES[name]
    outcome = one_lost_in_three(workers, body, Timeouts(step=20.0))
    assert outcome.status == "crashed"
    assert re.search(detail, outcome.detail), outcome.detail


HANGS = {
    "loop": "        while True: pass",
    "sleep": "        time.sleep(60)",
    "c_loop": "        return 10 ** 10 ** 9",
    "swallows_everything": "        while True:\n            try: time.sleep(60)\n            except BaseException: pass",
    "fork_bomb": "        while True:\n            try: os.fork()\n            except Exception: pass",
    "blocks_signals": "        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n        while True: pass",
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_costs_one_rollout_and_its_own_limit(workers: WorkerPool, name: str) -> None:
    began = time.monotonic()
    outcome = one_lost_in_three(workers, HANGS[name], Timeouts(setup=30.0, step=0.3, score=30.0))
    assert (outcome.status, outcome.detail) == ("timeout", "step took longer than 0.3 s")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "body",
    [
        "        return 'x' * 10**9",
        "        return [0] * 10**9",
        "        self.grow = []\n        while True: self.grow.append(bytearray(2**20))",
    ],
)
def test_a_memory_bomb_costs_one_rollout(workers: WorkerPool, body: str) -> None:
    outcome = one_lost_in_three(workers, body, Timeouts(step=10.0))
    assert (outcome.status, outcome.detail) == ("out_of_memory", "the memory limit was reached")


@pytest.mark.parametrize(
    "body",
    [
        "        print('garbage' * 10**5); sys.stderr.write('noise'); os.write(1, b'{}'); return 1",
        "        return 'x' * 10**7",
        "        raise RuntimeError('y' * 10**7)",
        "        return self.act()",
        "        class Bad:\n            def __str__(self): raise ValueError('no')\n        return Bad()",
        "        return '\\ud800'",
    ],
)
def test_noise_and_tool_errors_cost_nothing(workers: WorkerPool, body: str) -> None:
    job = Job(environment=environment(body), task=task(), requests=[{**play("add", "act", "add"), "inspect": True}] * 2)
    assert [outcome.reply["reward"] for _, _, outcome in workers.run([job])] == [1.0, 1.0]


def test_an_observation_is_cut_to_65536_characters(workers: WorkerPool) -> None:
    worker, job = workers.lease(), Job(environment=environment("        return 'x' * 10**7"), task=task(), requests=[])
    worker.ask(job, {"op": "reset"}).unwrap()
    reply = worker.ask(job, {"op": "call", "name": "act", "arguments": {}}).unwrap()
    assert reply == {"text": "x" * 65536, "error": False}
    workers.release(worker)


@pytest.mark.parametrize(
    ("source", "status", "detail"),
    [
        (
            "import time\nclass World:\n    def __init__(self, c=None): time.sleep(60)",
            "timeout",
            "setup took longer than 0.3 s",
        ),
        ("import time\ntime.sleep(60)", "timeout", "setup took longer than 0.3 s"),
        ("import os\nos._exit(1)", "crashed", "the process ended with exit code 1 during setup"),
        ("raise SystemExit", "crashed", "SystemExit: "),
        ("this is no Python", "crashed", "e: the source does not run (SyntaxError: invalid syntax (<environment>, line 1))."),
        ("def f(): f()\nf()", "crashed", "e: the source does not run (RecursionError: maximum recursion depth exceeded)."),
        ("x = 'x' * 10**9", "out_of_memory", "the memory limit was reached"),
    ],
)
def test_setup_that_fails(workers: WorkerPool, source: str, status: str, detail: str) -> None:
    job = Job(environment=environment(source=source, timeouts=Timeouts(setup=0.3)), task=task(), requests=[play()])
    outcomes = [outcome for _, _, outcome in workers.run([job])]
    assert [(outcome.status, outcome.detail) for outcome in outcomes] == [(status, detail)]


@pytest.mark.parametrize(
    ("check", "status", "detail"),
    [
        ("def check_func(s):\n    while True: pass", "timeout", "score took longer than 0.3 s"),
        ("def check_func(s):\n    import os\n    os._exit(0)", "crashed", "the process ended with exit code 0 during score"),
        ("def check_func(s):\n    import os\n    return os.fork() == 0", "crashed", "may not start or signal processes"),
        ("def check_func(s):\n    return len('x' * 10**9) > 0", "out_of_memory", "the memory limit was reached"),
    ],
)
def test_a_check_that_fails_hard(workers: WorkerPool, check: str, status: str, detail: str) -> None:
    job = Job(environment=environment(timeouts=Timeouts(score=0.3)), task=task(check), requests=[play()])
    (outcome,) = [outcome for _, _, outcome in workers.run([job])]
    assert outcome.status == status
    assert detail in outcome.detail


def test_a_task_without_checks_is_a_failure_not_a_zero(workers: WorkerPool) -> None:
    bare = Task(env_id="e", task_id="t", prompt="p")
    (outcome,) = [o for _, _, o in workers.run([Job(environment=environment(), task=bare, requests=[play()])])]
    assert outcome.status == "crashed"
    assert "no checks of positive weight" in outcome.detail
    with pytest.raises(RolloutFailure, match="no checks"):
        outcome.unwrap()


def test_a_task_that_is_no_json_is_a_failure_of_its_own(workers: WorkerPool) -> None:
    odd = Task(env_id="e", task_id="odd", prompt="p", initial_state={"n": {1, 2}})
    jobs = [Job(environment=environment(), task=what, requests=[play("add", "add")]) for what in (odd, task())]
    outcomes = {job: outcome for job, _, outcome in workers.run(jobs)}
    assert outcomes[0].status == "crashed"
    assert outcomes[0].detail.startswith("e/odd: environment, task or call is not plain JSON")
    assert outcomes[1].reply["reward"] == 1.0


LOOK = """        import resource
        return [dict(os.environ), sys.argv, os.getcwd(), os.getsid(0) == os.getpid(), resource.getrlimit(resource.RLIMIT_AS)[0],
                resource.getrlimit(resource.RLIMIT_CORE)[0], 'torch' in sys.modules, 'numpy' in sys.modules]"""


def test_the_worker_is_clean(workers: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("PYTHONSTARTUP", "/nowhere")
    with WorkerPool(1, memory_mb=400) as pool:
        worker, job = pool.lease(), Job(environment=environment(LOOK), task=task(), requests=[])
        worker.ask(job, {"op": "reset"}).unwrap()
        environ, argv, folder, own_session, memory, core, torch, numpy = eval(
            worker.ask(job, {"op": "call", "name": "act", "arguments": {}}).unwrap()["text"]
        )
    assert set(environ) - {"LC_CTYPE", "LD_LIBRARY_PATH"} == {
        *("PATH", "LANG", "TZ", "HOME", "TMPDIR", "PYTHONPATH", "PYTHONHASHSEED", "ENVSCHED_WORKER"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    }
    assert "hunter2" not in str(environ)
    assert len(argv) == 1
    assert folder == environ["HOME"] == environ["TMPDIR"]
    assert not Path(folder).exists()
    assert (own_session, memory, core, torch, numpy) == (True, 400 * 2**20, 0, False, False)


NATIVE = """        libc = ctypes.CDLL(None, use_errno=True)
        tried = [libc.fork(), libc.vfork(), libc.kill(os.getppid(), 9), libc.kill(-1, 9), libc.execv(b'/bin/true', 0)]
        tried.append(-(libc.system(b'true') != 0))
        thread = threading.Thread(target=tried.append, args=('a thread',))
        thread.start()
        thread.join()
        return tried"""


@pytest.mark.skipif(platform.machine() not in SYSTEM_CALLS or sys.platform != "linux", reason="no system call filter for this machine")
def test_native_code_starts_no_process_and_kills_nobody_even_as_root(workers: WorkerPool) -> None:
    worker, job = workers.lease(), Job(environment=environment(NATIVE), task=task(), requests=[])
    worker.ask(job, {"op": "reset"}).unwrap()
    reply = worker.ask(job, {"op": "call", "name": "act", "arguments": {}}).unwrap()
    assert reply == {"text": "[-1, -1, -1, -1, -1, -1, 'a thread']", "error": False}
    workers.release(worker)


def test_descendants_that_left_the_session_are_swept_up() -> None:
    """What a worker might have started where there is no filter: it carries the worker's token."""
    mine, other = (
        subprocess.Popen(["sleep", "60"], env={"ENVSCHED_WORKER": token}, start_new_session=True) for token in ("a" * 32, "b" * 32)
    )
    sweep("a" * 32)
    assert mine.wait(timeout=5) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_worker_that_is_told_to_write_too_much_gets_an_error(workers: WorkerPool) -> None:
    body = "        with open('big', 'wb') as file:\n            for _ in range(200): file.write(b'x' * 2**20)"
    job = Job(environment=environment(body, Timeouts(step=20.0)), task=task(), requests=[play("add", "act", "add")])
    (outcome,) = [o for _, _, o in workers.run([job])]
    assert outcome.reply["reward"] == 1.0
    assert outcome.reply["errors"] == ["OSError: [Errno 27] File too large"]


def test_nothing_of_an_episode_reaches_the_next(workers: WorkerPool) -> None:
    source = "SEEN = []\n" + HEAD + "        SEEN.append(1)\n        self.n = len(SEEN)\n        World.extra = 5"
    job = Job(environment=environment(source=source), task=task("def check_func(s):\n    return s['n'] == 1"), requests=[play("act")] * 6)
    assert [o.reply["reward"] for _, _, o in workers.run([job])] == [1.0] * 6


SLOW_ADD = """
    def add(self, k=1):
        time.sleep(0.6)
        self.n = 3 * (os.getcwd() == os.environ["HOME"])"""


@pytest.mark.parametrize("body", ["signal.alarm(1)", "sys.setrecursionlimit(60)", "os.chdir('/')"])
def test_what_an_episode_sets_does_not_outlive_it(body: str) -> None:
    job = Job(environment=environment(f"        {body}{SLOW_ADD}"), task=task(), requests=[play("act"), play("add"), play("add")])
    with WorkerPool(1, memory_mb=400) as pool:
        assert [outcome.status for _, _, outcome in pool.run([job])] == ["ok"] * 3
        assert [outcome.reply["reward"] for _, _, outcome in pool.run([job])] == [0.5, 1.0, 1.0]


def test_a_worker_that_dies_between_episodes_costs_nothing(workers: WorkerPool) -> None:
    job = Job(environment=environment(), task=task(), requests=[play("add", "add")] * 6)
    victims = [workers.lease() for _ in range(2)]
    assert [worker.ask(job, job.requests[0]).reply["reward"] for worker in victims] == [1.0, 1.0]
    for worker in victims:
        workers.release(worker)
        os.kill(worker.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert [outcome.reply["reward"] for _, _, outcome in workers.run([job])] == [1.0] * 6


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_copy_of_the_parent_kills_nobody(workers: WorkerPool) -> None:
    worker = workers.lease()
    child = os.fork()
    if child == 0:
        worker.kill()
        os._exit(0)
    os.waitpid(child, 0)
    job = Job(environment=environment(), task=task(), requests=[])
    assert worker.ask(job, play("add", "add")).reply["reward"] == 1.0
    workers.release(worker)


def test_closing_kills_and_an_abandoned_run_leaves_nothing_busy() -> None:
    before = _workers_alive()
    with WorkerPool(2, memory_mb=400) as pool:
        slow = Job(environment=environment("        time.sleep(0.5)"), task=task(), requests=[play("act")] * 6)
        for _ in pool.run([slow]):
            break
        quick = Job(environment=environment(), task=task(), requests=[play("add", "add")] * 3)
        assert [o.reply["reward"] for _, _, o in pool.run([quick])] == [1.0] * 3
        assert len(_workers_alive() - before) == 2
    assert _workers_alive() - before == set()
    with pytest.raises(EnvSchedError, match="closed"):
        pool.lease()


def test_workers_that_cannot_start_are_an_error_not_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with WorkerPool(1, memory_mb=400) as pool:
        job = Job(environment=environment(), task=task(), requests=[play()] * 5)
        with pytest.raises(EnvSchedError, match=r"^3 worker processes in a row ended before they were ready .memory limit 400 MiB"):
            list(pool.run([job]))


PARENT = """
import sys
sys.path.insert(0, {root!r})
from tests.train.test_workers import *
pool = WorkerPool(2, memory_mb=400)
job = Job(environment=environment("        while True: pass", Timeouts(step=600.0)), task=task(), requests=[play("act")] * 4)
worker = pool.lease()
print(worker.pid, flush=True)
{ending}
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_parent_that_dies_takes_its_hanging_workers_along(how: signal.Signals) -> None:
    script = PARENT.format(root=str(Path(__file__).parents[2]), ending="worker.ask(job, job.requests[0])")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.7)
        assert child.is_running()
        os.kill(parent.pid, how)
        parent.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(timeout=3)
    assert not child.is_running()


def test_a_worker_starts_in_half_a_second() -> None:
    with WorkerPool(1, memory_mb=400) as pool:
        seconds = []
        for _ in range(3):
            began = time.monotonic()
            worker = pool.lease()
            worker.ask(Job(environment=environment(), task=task(), requests=[]), play()).unwrap()
            seconds.append(time.monotonic() - began)
            pool.release(worker, reusable=False)
    assert min(seconds) < 0.5


def _workers_alive() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if "envsched_gnn.train.worker_main" in child.cmdline()}
