"""A pool as TRL environments: one class an environment, its tools as methods, each episode in a worker process.

Knows: what TRL's `environment_factory` and tool loop want, which limits of the trainer truncate, the rows of the data set.
Does not know: schedulers, how an episode is played, how a tool becomes a method.

    factories = environment_factories(pool, workers, config.train)
    trainer = GRPOTrainer(..., train_dataset=dataset_of(pool), environment_factory=factories, reward_funcs=[environment_reward])
    attach_environments(trainer)

TRL runs the tool calls of one rollout after those of the other. Once attached, the first call of a turn starts the calls of all rollouts,
so that a turn takes as long as its slowest call; an environment that hangs costs its timeout once, however many rollouts hang in it.

Processes: a rollout gets a worker process at its first call, or when it is scored without any, and keeps it until it is scored; 64 x 8
rollouts that all call tools need 512 processes of 12 MB (BFCL: 15 MB) each, 6 GB (8 GB) in all, of which ACTIVE work at a time, whatever
`rollout.workers` says. Starting them takes up to 80 ms each on two busy cores, once: they serve the next round too, where a turn of all 512
takes under a second. Episodes are never replayed to save processes: an environment that draws identifiers or reads the clock would
contradict what the policy has seen (ours).
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from envsched_gnn import records
from envsched_gnn.config_training import TrainConfig
from envsched_gnn.errors import ConfigError, PoolError, message
from envsched_gnn.pool.episode import policy_view
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Task
from envsched_gnn.train.trl.tool_environment import Floor, ToolEnvironment
from envsched_gnn.train.trl.tool_methods import END_TURN, Schema, name_of, tool_methods, tool_schemas
from envsched_gnn.train.workers import WorkerPool

if TYPE_CHECKING:
    from datasets import Dataset

EXECUTABLE = ("python_class", "bfcl")
FILES = 8192
"""Open files that this process may want: three a worker (ours)."""


async def environment_reward(environments: Sequence[Any], **batch: Any) -> list[float | None]:  # TRL hands over every column
    """TRL reward function: the verifier's reward of every rollout, None where it failed; one column of metrics for all environments.

    Raises:
        EnvSchedError: worker processes do not start: no rollout can be judged.
    """
    rewards = await asyncio.gather(*(environment._score() for environment in environments))
    for environment in environments:
        if environment._floor.fatal is not None:
            raise environment._floor.fatal
    return rewards


def environment_factories(pool: Pool, workers: WorkerPool, train: TrainConfig) -> dict[str, Callable[[], ToolEnvironment]]:
    """What TRL's `environment_factory` takes: a factory for each environment that has tasks, by the data set's column `environment`.

    The name is the env_id. Where tasks of an environment show different tools at first (`info["withheld_tools"]`), each such set has a
    name of its own; the hidden tools come into view with a later turn of the user.

    Raises:
        PoolError: an environment cannot be executed here, or two of its tools have one name.
    """
    _allow_files()
    floor = Floor(pool=pool, workers=workers, tool_error_budget=train.tool_error_budget)
    several = {task.env_id for task in pool.tasks if len(task.info.get("turns", ())) > 1}
    empty = set(pool.empty_environments)
    used = [environment for environment in pool.environments if environment.env_id not in empty]
    schemas = {e.env_id: _checked(e, e.env_id in several) for e in used}
    classes = {e.env_id: _class(floor, e, schemas[e.env_id], e.env_id in several) for e in used}
    factories: dict[str, Callable[[], ToolEnvironment]] = {}
    for task in pool.tasks:
        name = environment_name(task)
        if name not in factories:
            hidden = set(task.info.get("withheld_tools", ()))
            shown = tuple(tool for tool in schemas[task.env_id] if name_of(tool) not in hidden)
            factories[name] = partial(classes[task.env_id], shown)
    return factories


def environment_name(task: Task) -> str:
    """A task's value in the column `environment`: its env_id, and the tools that it hides at first."""
    hidden = sorted(task.info.get("withheld_tools", ()))
    return f"{task.env_id} without {', '.join(hidden)}" if hidden else task.env_id


def _checked(environment: records.Environment, several_turns: bool) -> tuple[Schema, ...]:
    if environment.env_type not in EXECUTABLE:
        where = f"environment {environment.env_id!r}"
        raise PoolError(message(where, f"env_type {environment.env_type!r}", " or ".join(EXECUTABLE), "Others cannot be executed here."))
    return tool_schemas(environment, several_turns)


def _class(floor: Floor, environment: records.Environment, schemas: tuple[Schema, ...], several_turns: bool) -> type[ToolEnvironment]:
    """A class whose public methods are the tools: TRL reads them there."""
    methods = tool_methods(schemas, {*dir(ToolEnvironment), "get_reward"}, ToolEnvironment._answer)
    names = frozenset(map(name_of, schemas))
    shared = {"_floor": floor, "_environment": environment, "_names": names, "_several_turns": several_turns}
    return type(environment.env_id, (ToolEnvironment,), {**methods, **shared})


def _allow_files() -> None:
    """Raise this process's own limit of open files as far as FILES: 512 workers need more than the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def dataset_of(pool: Pool) -> Dataset:
    """All tasks in pool order: `task_id` (env_id/task_id), `prompt` (chat messages), `environment` (see `environment_name`).

    The system message is the environment's description and rules, the user's the instruction; of a task with several user turns, the first.
    Nothing of the verifier, the gold trajectory or the initial state is in it.
    """
    from datasets import Dataset

    bare = {environment.env_id: replace(environment, tools=()) for environment in pool.environments}
    prompts = [_prompt(policy_view(bare[task.env_id], task), len(task.info.get("turns", ())) > 1) for task in pool.tasks]
    names = [environment_name(task) for task in pool.tasks]
    return Dataset.from_dict({"task_id": list(pool.keys), "prompt": prompts, "environment": names})


def _prompt(view: dict[str, Any], several_turns: bool) -> list[dict[str, str]]:
    rules = "\n".join(["Rules:", *(f"- {rule}" for rule in view["rules"])]) if view["rules"] else ""
    turns = f"When you have done all that the user asked for, call {END_TURN}: it returns what the user says next." if several_turns else ""
    system = "\n\n".join(filter(None, (view["description"], rules, turns)))
    user = {"role": "user", "content": view["prompt"]}
    return [{"role": "system", "content": system}, user] if system else [user]


def attach_environments(trainer: Any) -> None:
    """Let a trainer with `environment_factories` show the pool's own schemas, run a turn's calls side by side, and mark what was cut short.

    Call it once, before `train()`.

    Raises:
        ConfigError: the trainer has no such environments; TRL's RLOOTrainer takes none.
    """
    instances = {name: held[0] for name, held in getattr(trainer, "_environment_pool", {}).items()}
    if not instances or not all(isinstance(instance, ToolEnvironment) for instance in instances.values()):
        cure = "Build a GRPOTrainer with environment_factory=environment_factories(...); RLOO has no environments in TRL."
        raise ConfigError(message("attach_environments(trainer)", type(trainer).__name__, "a trainer with this pool's environments", cure))
    for name, instance in instances.items():
        trainer._env_tools[name] = [*trainer._standalone_tools, *instance._shown]
    floor = next(iter(instances.values()))._floor
    loop = trainer._tool_call_loop

    def together(prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *rest: Any) -> Any:
        floor.followed = list(zip(trainer.environments, completions, strict=True))
        output = loop(prompts, prompt_ids, completion_ids, completions, *rest)
        _, messages, ids, *_ = output
        ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
        for environment, said, tokens in zip(trainer.environments, messages, ids, strict=True):
            cut = _cut_short(said[-1], tokens, ends)
            if cut:
                environment._truncate(cut)
        return output

    trainer._tool_call_loop = together
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """TRL prints prompt and completion of a rollout without reward in each round; here such rollouts are masked, and counted in metrics."""
    return "All reward functions returned None" not in record.getMessage()


def _cut_short(newest: dict[str, Any], tokens: Sequence[int], ends: set[int]) -> str:
    """By which limit an episode ended, empty if by the policy itself."""
    if newest["role"] != "assistant" or newest.get("tool_calls"):
        return "the limit of tokens or turns was reached before the policy's calls were answered"
    return "" if tokens and tokens[-1] in ends else "the limit of tokens was reached in the midst of a message"
