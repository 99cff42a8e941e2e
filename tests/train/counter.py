"""An environment that counts, in which everything can go well or wrong, and messages that call its tools."""

import json
from typing import Any

from envsched_gnn.pool import Pool
from envsched_gnn.records import Check, Environment, Task, Timeouts, Verifier

SOURCE = """
import os, time
class Counter:
    def __init__(self, config):
        self.n = 0
    def add(self, k):
        if k < 0:
            raise ValueError("k must not be negative")
        self.n += k
        return {"n": self.n}
    def reset(self):
        self.n = 0
        return "zero"
    def leave(self):
        os._exit(1)
    def hang(self):
        time.sleep(60)
"""


def tool_schema(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


ADD = tool_schema("add", k={"type": "integer", "description": "How much."})
COUNTER = Environment(
    env_id="counter",
    name="Counter",
    description="A counter.",
    rules=("Only up.",),
    source=SOURCE,
    tools=(ADD, tool_schema("reset"), tool_schema("leave"), tool_schema("hang")),
    max_turns=4,
    timeouts=Timeouts(step=1.0),
)


def counter_task(task_id: str, env_id: str = "counter") -> Task:
    """Four points, for n = 1 to 4."""
    checks = tuple(Check(code=f"def check_func(s):\n    return s['n'] >= {n}", description=f"secret {n}") for n in (1, 2, 3, 4))
    return Task(
        env_id=env_id, task_id=task_id, prompt=f"Make it 4 [{env_id}/{task_id}].", initial_state={}, verifier=Verifier(checks=checks)
    )


def call(name: str, **arguments: Any) -> str:
    return "\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def counter_pool(*tasks: str, environment: Environment = COUNTER) -> Pool:
    return Pool(environments=(environment,), tasks=tuple(counter_task(name, environment.env_id) for name in tasks))
