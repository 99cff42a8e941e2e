"""One episode of a `python_class` environment, executed in this process.

Knows: how a class is instantiated from an initial state, how a tool is called, how checks become a reward.
Does not know: limits of time or memory (the workers set them), trajectories, policies.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
import types
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from envsched_gnn.errors import EnvironmentFailureError
from envsched_gnn.records import Environment, Task

UNCOMPILED = "does not compile"
"""How the fault of a check that is no Python begins."""
MAX_FAULT = 300
"""Characters of an exception that a fault quotes (ours)."""

_numbers = itertools.count()


class ToolError(Exception):
    """A tool call failed: unknown tool, bad arguments, or the tool raised. An observation for the policy, never the end of an episode."""


class Episode:
    """A new instance of the environment's class, set to the task's initial state.

    Raises:
        EnvironmentFailureError: the source does not run, the class is missing, or no instance can be made.
    """

    def __init__(self, environment: Environment, task: Task) -> None:
        self.environment = environment
        self.task = task
        self._tools = tool_names(environment)
        self._instance = _instantiate(environment, _initial_state(task))

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return value of the tool, which may be part of the live state: copy or print it before the next call.

        Raises:
            ToolError: with the text that the policy should see. MemoryError and SystemExit pass through: they end the episode.
        """
        method = self._method(tool)
        if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
            raise ToolError(f"Arguments of {tool} must be an object of named values, not {type(arguments).__name__}.")
        try:
            return method(**copy.deepcopy(dict(arguments)))
        except MemoryError:
            raise
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    def _method(self, tool: str) -> Any:
        """Only listed public tools can be called; attributes and private methods cannot."""
        method = getattr(self._instance, tool, None) if tool in self._tools and not tool.startswith("_") else None
        if not callable(method):
            raise ToolError(f"Unknown tool {tool!r}. Available: {', '.join(sorted(self._tools))}.")
        return method

    def state(self) -> dict[str, Any]:
        """Deep copy of the instance's attributes without dunder names."""
        try:
            return copied({name: value for name, value in vars(self._instance).items() if not _is_dunder(name)})
        except MemoryError:
            raise
        except Exception as error:
            raise EnvironmentFailureError(f"{self.task.key}: the state cannot be copied ({type(error).__name__}: {error}).") from error

    def passed(self) -> list[bool]:
        """Whether each check of the task holds in the current state; a check that raises or returns no bool does not."""
        final_state, initial_state = self.state(), _initial_state(self.task)
        return [run_check(check.code, final_state, initial_state) for check in self.task.verifier.checks]

    def score(self) -> float:
        """Reward of the current state, in the task's reward range.

        Raises:
            EnvironmentFailureError: the task has no checks, or none of positive weight: no state can be scored.
        """
        low, high = self.task.reward_range_in(self.environment)
        return low + (high - low) * share_passed(self.task, self.passed())


def share_passed(task: Task, passed: list[bool]) -> float:
    """`round(sum(weight of passed) / sum(weight), 4)`, in [0, 1]; with `info["reward"] == "binary"`, 1 only if all pass."""
    weights = [check.weight for check in task.verifier.checks]
    if not sum(weights) > 0:
        raise EnvironmentFailureError(f"{task.key}: no checks of positive weight, so no state can be scored. Add checks or drop the task.")
    if task.info.get("reward") == "binary":
        return float(all(passed))
    return round(sum(weight for weight, ok in zip(weights, passed, strict=True) if ok) / sum(weights), 4)


def tool_names(environment: Environment) -> frozenset[str]:
    """Names of the tools that a policy may call."""
    return frozenset(tool["function"]["name"] for tool in environment.tools)


def policy_view(environment: Environment, task: Task) -> dict[str, Any]:
    """All that a policy may see of a task before it acts: prompt, description, rules, tools.

    Nothing of the verifier, the ground truth, the initial state, the source or the rest of `info`. Of a task with several user turns
    (`info["turns"]`) the prompt is the first; tools named in `info["withheld_tools"]`, which come later, are left out.
    """
    withheld = set(task.info.get("withheld_tools", ()))
    return {
        "prompt": "\n".join(task.info["turns"][0]) if "turns" in task.info else task.prompt,
        "description": environment.description,
        "rules": list(environment.rules),
        "tools": [copy.deepcopy(tool) for tool in environment.tools if tool["function"]["name"] not in withheld],
    }


def run_check(code: str, final_state: dict[str, Any], initial_state: dict[str, Any]) -> bool:
    """Run `check_func(final_state)` of `code`, which may read a global `initial_state`; True only if it returns True itself."""
    try:
        return _verdict(code, final_state, initial_state) is True
    except MemoryError:
        raise
    except (Exception, SystemExit):
        return False


def check_fault(code: str, final_state: dict[str, Any], initial_state: dict[str, Any]) -> str:
    """Why a check cannot judge a state: it does not compile (begins with UNCOMPILED), raises, or returns no bool; empty if it can."""
    try:
        _compiled_check(code)
    except (SyntaxError, ValueError) as error:
        return f"{UNCOMPILED}: {str(error)[:MAX_FAULT]}"
    try:
        result = _verdict(code, final_state, initial_state)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        return f"raises {type(error).__name__}: {str(error)[:MAX_FAULT]}"
    return "" if isinstance(result, bool) else f"returns {type(result).__name__}, not bool"


def _verdict(code: str, final_state: dict[str, Any], initial_state: dict[str, Any]) -> Any:
    """What `check_func(final_state)` returns; whatever it raises goes on."""
    scope: dict[str, Any] = {"__name__": "envsched_check", "initial_state": initial_state}
    exec(_compiled_check(code), scope)
    return scope["check_func"](final_state)


def copied(value: dict[str, Any]) -> dict[str, Any]:
    """Deep copy; by pickling where that works, as it does for plain data, in a fifth of the time."""
    try:
        return pickle.loads(pickle.dumps(value))
    except MemoryError:
        raise
    except Exception:
        return copy.deepcopy(value)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _initial_state(task: Task) -> dict[str, Any]:
    """A copy of the task's initial state; no state is an empty one."""
    if task.initial_state is None:
        return {}
    if not isinstance(task.initial_state, Mapping):
        found = type(task.initial_state).__name__
        raise EnvironmentFailureError(f"{task.key}: initial_state is {found}; expected an object of attributes. Correct the task.")
    return copied(dict(task.initial_state))


def _instantiate(environment: Environment, initial_state: dict[str, Any]) -> Any:
    """`cls(initial_state)`, else `cls({})`, else `cls()`; then every key of the initial state becomes an attribute."""
    cls = _load_class(environment)
    first: Exception | None = None
    for arguments in ((copied(initial_state),), ({},), ()):
        try:
            instance = cls(*arguments)
            break
        except MemoryError:
            raise
        except Exception as error:
            first = first or error
    else:
        raise EnvironmentFailureError(f"{environment.env_id}: {environment.name} cannot be instantiated ({type(first).__name__}: {first}).")
    try:
        for name, value in initial_state.items():
            setattr(instance, name, value)
    except Exception as error:
        raise EnvironmentFailureError(f"{environment.env_id}: attribute {name!r} cannot be set ({error}).") from error
    return instance


def _load_class(environment: Environment) -> Any:
    """The class, from its source run in a module of its own; the module is registered only while its source runs, as dataclasses need."""
    module = types.ModuleType(f"envsched_environment_{next(_numbers)}")
    sys.modules[module.__name__] = module
    try:
        exec(_compiled_source(environment.source), module.__dict__)
    except MemoryError:
        raise
    except Exception as error:
        raise EnvironmentFailureError(f"{environment.env_id}: the source does not run ({type(error).__name__}: {error}).") from error
    finally:
        del sys.modules[module.__name__]
    cls = getattr(module, environment.name, None)
    if not isinstance(cls, type):
        raise EnvironmentFailureError(f"{environment.env_id}: the source defines no class {environment.name!r}. Correct its name.")
    return cls


@lru_cache(maxsize=256)
def _compiled_source(source: str) -> types.CodeType:
    return compile(source, "<environment>", "exec", dont_inherit=True)


@lru_cache(maxsize=16384)
def _compiled_check(code: str) -> types.CodeType:
    return compile(code, "<check>", "exec", dont_inherit=True)
