"""One episode of a BFCL multi-turn task, executed in this process by the wheel's own code.

Knows: turns, tools that appear late, the wheel's executor and its state and response checkers.
Does not know: limits of time or memory (the workers set them), policies.

The wheel keeps instances in globals of its module, by model name and entry: every episode has a model name of its own and removes
its instances. Like the wheel, an episode carries out a call of a tool that is not shown yet (one gold answer makes such a call).
"""

from __future__ import annotations

import copy
import itertools
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from envsched_gnn.errors import EnvironmentFailureError
from envsched_gnn.pool.bfcl import INSTALL
from envsched_gnn.pool.episode import ToolError, tool_names
from envsched_gnn.records import Environment, Task

_numbers = itertools.count()
_FAILED = "Error during execution:"
"""How the wheel begins the result of a call that raised."""


class BfclEpisode:
    """New instances of the task's API classes; the same verbs as `Episode`, and `next_turn` and `close`.

    Raises:
        EnvironmentFailureError: the wheel cannot be imported, or its classes cannot take the initial state.
    """

    def __init__(self, environment: Environment, task: Task) -> None:
        self.environment = environment
        self.task = task
        self._name = f"envsched{next(_numbers)}_"
        self._checks = itertools.count()
        self.withheld = set(task.info["withheld_tools"])
        """Tools that the policy is not shown in the current turn."""
        self._tools = tool_names(environment)
        self._calls: list[list[str]] = [[]]
        try:
            self.close = weakref.finalize(self, _forget, self._name)
            self._instances = self._execute([], self._name)[1]
        except MemoryError:
            raise
        except Exception as error:
            raise EnvironmentFailureError(f"{task.key}: {type(error).__name__}: {error}. Is bfcl-eval whole? {INSTALL}") from error

    @property
    def turn(self) -> int:
        """Index of the current turn, from 0."""
        return len(self._calls) - 1

    def next_turn(self) -> list[str] | None:
        """End the current turn; the user's messages of the next one, or None after the last. Tools released with it are shown."""
        if len(self._calls) == len(self.task.info["turns"]):
            return None
        self._calls.append([])
        self.withheld -= set(self.task.info["released_tools"].get(str(self.turn), ()))
        return list(self.task.info["turns"][self.turn])

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Result of a call as text.

        Raises:
            ToolError: unknown tool, bad arguments, or the tool raised; the last counts as a call of this turn.
        """
        if tool not in self._tools:
            raise ToolError(f"Unknown tool {tool!r}. Available: {', '.join(sorted(self._tools - self.withheld))}.")
        if not isinstance(arguments, Mapping) or not all(isinstance(name, str) and name.isidentifier() for name in arguments):
            raise ToolError(f"Arguments of {tool} must be an object of named values, not {type(arguments).__name__}.")
        text = f"{tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
        self._calls[-1].append(text)
        result: str = self._execute([text], self._name)[0][0]
        if result.startswith(_FAILED):
            raise ToolError(result)
        return result

    def state(self) -> dict[str, dict[str, Any]]:
        """Deep copy of the public attributes of every class's instance."""
        return {
            name: copy.deepcopy({key: value for key, value in vars(instance).items() if not key.startswith("_")})
            for name, instance in self._instances.items()
        }

    def passed(self) -> list[bool]:
        """Whether each turn that asks for calls is right so far: calls made, state as the gold one, responses include the gold ones.

        All calls are executed again, in instances of their own, as the wheel's checker does.
        """
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker

        name = f"{self._name}check{next(self._checks)}_"
        passed, responses = [], []
        try:
            for turn, gold in enumerate(self.task.ground_truth):
                calls = self._calls[turn] if turn < len(self._calls) else []
                results, instances = self._execute(calls, f"{name}ours")
                gold_results, gold_instances = self._execute(gold, f"{name}gold")
                responses += results
                if gold:
                    same = bool(calls) and state_checker(instances, gold_instances)["valid"]
                    passed.append(same and response_checker(responses, gold_results, turn)["valid"])
        finally:
            _forget(name)
        return passed

    def score(self) -> float:
        """Reward in the task's range: share of turns right, rounded to 4 digits; with `info["reward"] == "binary"`, 1 only if all are."""
        passed = self.passed()
        complete = len(self._calls) == len(self.task.ground_truth)
        binary = self.task.info.get("reward") == "binary"
        share = float(complete and all(passed)) if binary else round(sum(passed) / len(passed), 4)
        low, high = self.task.reward_range_in(self.environment)
        return low + (high - low) * share

    def _execute(self, calls: list[str], model_name: str) -> tuple[list[str], dict[str, Any]]:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        results, instances = execute_multi_turn_func_call(
            func_call_list=calls,
            initial_config=self.task.initial_state,
            involved_classes=self.task.info["classes"],
            model_name=model_name,
            test_entry_id=self.task.task_id,
            long_context=self.task.info["category"] == "long_context",
        )
        return results, instances


def _forget(prefix: str) -> None:
    """Remove the wheel's instances whose name begins with `prefix`."""
    module = sys.modules.get("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    kept = vars(module) if module else {}
    for name in [name for name in kept if name.startswith(prefix)]:
        del kept[name]
