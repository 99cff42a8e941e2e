"""Small pools for tests of the pocket policy, and selections from them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from envsched_gnn.config import PoolConfig, ToolWorldConfig
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Check, Environment, Pick, Selection, Task, Verifier, group_id_of

SHOP = """
class Shop:
    def __init__(self, config):
        self.items, self.sold, self.opened = {}, [], 0
    def find_item(self, title):
        return [{"item_id": key, "title": name} for key, name in self.items.items() if name == title]
    def sell_item(self, item_id, amount=1, mode="whole"):
        self.sold.append([item_id, amount, mode])
        return {"success": item_id in self.items}
    def open_door(self):
        self.opened += 1
    def break_door(self):
        raise SystemExit
"""


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A schema."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


SHOP_TOOLS = (
    tool("find_item", title={"type": "string"}),
    tool("sell_item", item_id={"type": "string"}, amount={"type": "integer"}, mode={"type": "string", "enum": ["whole", "in_parts"]}),
    tool("open_door"),
    tool("break_door"),
)


def toolworld(**settings: Any) -> Pool:
    """3 environments of 12 tasks, half of which teach."""
    small: dict[str, Any] = {"environments": 3, "tasks": 12, "max_operations": 1, "impossible": 0.0, "trivial": 0.2}
    return load_pool(PoolConfig(path="toolworld", taught_share=0.5, toolworld=ToolWorldConfig(**small | settings)))


def shop(prompts: Sequence[str], **changes: Any) -> Pool:
    """One environment with a task for each prompt; a task is solved by selling the lamp."""
    environment = Environment(**{"env_id": "shop", "name": "Shop", "source": SHOP, "tools": SHOP_TOOLS} | changes)
    check = Check(code="def check_func(s):\n    return [sale[0] for sale in s['sold']] == ['I-1']")
    tasks = [
        Task(
            env_id="shop",
            task_id=f"t{number}",
            prompt=prompt,
            initial_state={"items": {"I-1": "Desk Lamp", "I-2": "Oak Chair"}},
            verifier=Verifier(checks=(check,)),
        )
        for number, prompt in enumerate(prompts)
    ]
    return Pool(environments=(environment,), tasks=tuple(tasks), source="shop")


def breaking(pool: Pool, name: str) -> Pool:
    """The same pool, where the tool `name` ends the process."""
    pattern = rf"(    def {name}\(self[^)]*\)[^:]*:\n)"
    environments = tuple(replace(e, source=re.sub(pattern, r"\1        raise SystemExit\n", e.source)) for e in pool.environments)
    return replace(pool, environments=environments)


def selection(pool: Pool, step: int, rows: Sequence[int]) -> Selection:
    """These rows of the pool."""
    picks = []
    for rank, row in enumerate(rows, start=1):
        task = pool.tasks[row]
        identity = {"env_id": task.env_id, "task_id": task.task_id, "group_id": group_id_of(step, task.env_id, task.task_id)}
        scores = {"score": 0.0, "predicted_variance": 0.0, "p_informative": 0.0}
        picks.append(Pick(rank=rank, task_index=row, phase="uniform", **identity, **scores))
    return Selection(step=step, picks=tuple(picks))
