"""The memory plan: what a training run takes of each device, and whether it fits, before anything is loaded.

Knows: which parts a configuration has, which of them exist while rollouts are generated and while the policy is updated.
Does not know: the formulas of the parts, how a trainer is built.

A plan is an estimate on the safe side: every sequence is as long as it may be. Environment workers are other processes and not in it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from envsched_gnn.config import Config
from envsched_gnn.errors import ConfigError
from envsched_gnn.pool.episode import policy_view
from envsched_gnn.pool.pool import Pool
from envsched_gnn.records import Task
from envsched_gnn.train.memory.cures import cures
from envsched_gnn.train.memory.machine import GIB, Machine, machine_of
from envsched_gnn.train.memory.parts import (
    ENGINE_OVERHEAD,
    Batch,
    Part,
    Widths,
    activations,
    engine_cache,
    generation,
    log_probabilities,
    pocket_generation,
    scheduler,
)
from envsched_gnn.train.memory.sizes import ModelSize, size_of

RESERVE = 0.05
"""Share of a device that is left to fragmentation (ours)."""
PROCESS = {"cuda": GIB, "cpu": int(1.1 * GIB)}
"""Of a process beside all that: CUDA context and workspaces; on CPUs Python with torch, torch-geometric, transformers, trl (measured)."""
POCKET_PROCESS = int(0.75 * GIB)
"""The same of a process that trains the pocket model, without trl (measured)."""
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
"""Environment variable of vLLM: GiB of its KV cache on a CPU."""
CHARACTERS_A_TOKEN = 3.3
"""To reckon prompts with, before there is a tokenizer (ours): prompts with tool schemas have 3.6 to 3.7 with SmolLM2's tokenizer."""
PROMPT_EXTRA = 200
"""Tokens that a chat template adds to prompt and tools (ours)."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run takes of each device."""

    model: str
    """Setting and value that name it."""
    source: str
    """Where its sizes are from."""
    parameters: int
    trained: int
    """Parameters that the optimiser changes."""
    machine: Machine
    prompt_tokens: int
    sequence_tokens: int
    """Longest prompt and completion together."""
    parts: tuple[Part, ...]
    cache: tuple[int, int] | None
    """Bytes of vLLM's KV cache and of its longest sequence, on each device; None without vLLM."""
    problems: tuple[str, ...] = ()
    """Why it does not fit; empty if it does."""
    cures: tuple[str, ...] = ()
    """Settings with which it would fit."""

    @property
    def rollout(self) -> int:
        """Bytes of a device while rollouts are generated."""
        return sum(part.rollout for part in self.parts)

    @property
    def update(self) -> int:
        """Bytes of a device while the policy is updated."""
        return sum(part.update for part in self.parts)

    @property
    def sequences(self) -> int | None:
        """Longest sequences that vLLM generates at a time; shorter ones are more."""
        return None if self.cache is None else max(self.cache[0] // self.cache[1], 0)

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def cure(self) -> str:
        """What to do about problems, in a sentence."""
        return f"Set {', '.join(self.cures)}." if self.cures else "Choose a smaller model, shorter episodes or larger devices."

    def require(self) -> None:
        """ConfigError, with the cure, unless the plan fits."""
        if self.problems:
            raise ConfigError(
                f"{self.model} does not fit: {'; '.join(self.problems)}. {self.cure} `envsched doctor -c CONFIG` shows the plan."
            )


def memory_plan(config: Config, pool: Pool, machine: Machine) -> Plan:
    """What `config` takes of each device, and what to change if that is too much.

    Raises:
        ConfigError: the model's sizes cannot be known, or batch and devices do not divide.
    """
    size = _pocket_size(config, pool) if config.model.kind == "pocket" else size_of(config.model.path)
    prompt = config.train.max_prompt_tokens or _longest_prompt(config, pool)
    tasks = list(Counter(task.env_id for task in pool.tasks).values())

    def problems(changed: Config) -> list[tuple[str, int]]:
        return list(_problems(changed, _plan(changed, size, prompt, tasks, machine), size))

    plan = replace(_plan(config, size, prompt, tasks, machine), problems=tuple(text for text, _ in problems(config)))
    if plan.fits or config.model.kind == "pocket":
        return plan
    share, micro = share_of(config, machine.devices)
    gpus = machine.devices if machine.kind == "cuda" else 0
    found = cures(config, gpus, micro, share, lambda changed: sum(excess for _, excess in problems(changed)))
    return replace(plan, cures=found)


def share_of(config: Config, devices: int) -> tuple[int, int]:
    """Rollouts of a round on each device, and of one backward pass.

    Raises:
        ConfigError: the round cannot be divided so.
    """
    round_size = config.select.batch_size * config.rollout.num_rollouts
    if config.model.kind == "pocket":
        from envsched_gnn.train.pocket.update import MICRO_BATCH

        return round_size, min(MICRO_BATCH, round_size)
    spelled = f"select.batch_size x rollout.num_rollouts = {config.select.batch_size} x {config.rollout.num_rollouts} = {round_size}"
    if round_size % devices:
        raise ConfigError(f"{spelled}: expected a multiple of the {devices} devices. Change one of them.")
    share = round_size // devices
    micro = config.train.micro_batch or share
    if share % micro:
        raise ConfigError(
            f"train.micro_batch = {micro}: expected a divisor of the {share} rollouts on each of {devices} devices ({spelled})."
        )
    if config.vllm.mode == "colocate" and devices % config.vllm.tensor_parallel:
        raise ConfigError(f"vllm.tensor_parallel = {config.vllm.tensor_parallel}: expected a divisor of the {devices} devices.")
    return share, micro


def _plan(config: Config, size: ModelSize, prompt: int, tasks: list[int], machine: Machine) -> Plan:
    share, micro = share_of(config, machine.devices)
    batch = Batch(rollouts=share, micro=micro, prompt=prompt, completion=config.train.max_completion_tokens)
    rank = config.model.lora_rank
    trained = size.lora_parameters(rank) if rank else size.parameters
    parts = (
        Part.always("process", POCKET_PROCESS if config.model.kind == "pocket" else PROCESS[machine.kind]),
        *_model_parts(config, size, trained, machine),
        *_batch_parts(config, size, batch, machine),
        Part.always("graph and scheduler", scheduler(tasks), f"{sum(tasks):,} tasks"),
    )
    return Plan(
        model=f"model.path = {config.model.path!r}" if config.model.kind == "language_model" else "the pocket model",
        source=size.source,
        parameters=size.parameters,
        trained=trained,
        machine=machine,
        prompt_tokens=prompt,
        sequence_tokens=batch.length,
        parts=parts,
        cache=_cache(config, size, batch, machine),
    )


def _widths(config: Config, machine: Machine) -> Widths:
    weight = 2 if config.model.dtype == "bfloat16" else 4
    return Widths(weight=weight, compute=2 if machine.kind == "cuda" else weight)


def _model_parts(config: Config, size: ModelSize, trained: int, machine: Machine) -> Iterator[Part]:
    """Weights and what the optimiser keeps beside them."""
    widths, rank, sharded = (
        _widths(config, machine),
        config.model.lora_rank,
        config.train.shard and machine.devices > 1 and machine.kind == "cuda",
    )
    split = machine.devices if sharded else 1
    kept = 4 if rank else widths.weight
    yield Part.always("weights", (size.parameters * widths.weight + trained * 4 * bool(rank)) // split, config.model.dtype)
    if sharded:
        one = 2 * size.layer_parameters + size.head_parameters * (1 if size.tied else 2)
        yield Part.always("gathered weights", one * widths.compute, "two layers, embedding and head")
    elif widths.autocast and not rank:
        yield Part(name="bfloat16 copies", update=size.parameters * 2, note="of weights, by autocast")
    yield Part(name="gradients", update=trained * kept // split)
    if machine.devices > 1 and not sharded:
        yield Part.always("gradient buckets", trained * kept, "of data parallel training")
    yield Part.always("optimiser", 2 * trained * kept // split, f"AdamW, {trained / 1e6:,.1f} million weights")
    if config.train.kl > 0:
        reference = trained * 4 if rank else size.parameters * widths.weight
        yield Part.always("reference", reference // split, "train.kl > 0" + (", adapters alone" if rank else ""))


def _batch_parts(config: Config, size: ModelSize, batch: Batch, machine: Machine) -> Iterator[Part]:
    """What grows with rollouts and their length."""
    widths, kernel = _widths(config, machine), machine.kind == "cuda"
    checkpointing = config.train.gradient_checkpointing
    if config.model.kind == "pocket":
        yield from _pocket_parts(config, size, batch)
        return
    if config.vllm.mode == "colocate":
        taken = _engine_share(config, size, machine)
        asleep = ENGINE_OVERHEAD if config.vllm.sleep and kernel else taken
        yield Part(name="vLLM", rollout=taken, update=asleep, note="vllm.memory_share" + (", asleep in updates" if asleep < taken else ""))
    else:
        yield Part(name="generation", rollout=generation(size, widths, batch, top_p=config.train.top_p < 1), note="KV cache and sampling")
    yield Part(
        name="activations",
        update=activations(size, widths, batch, checkpointing=checkpointing),
        note=f"{batch.micro} x {batch.length:,} tokens" + (", checkpointed" if checkpointing else ""),
    )
    head = log_probabilities(size, widths, batch, kernel=kernel, trained_head=not config.model.lora_rank)
    yield Part(name="log-probabilities", update=head, note="a tile of logits, gradient of the head")
    yield Part.always("round", batch.rollouts * batch.length * 64, f"tokens, masks, log-probabilities of {batch.rollouts} rollouts")


def _pocket_parts(config: Config, size: ModelSize, batch: Batch) -> Iterator[Part]:
    """The pocket model generates a round, or an evaluation, at once, and computes whole logits, their softmax and its gradient."""
    samples, evaluated = config.rollout.num_rollouts, config.evaluate.tasks * config.evaluate.samples
    most = batch if batch.rollouts >= evaluated else replace(batch, rollouts=evaluated)
    taken = pocket_generation(size, most, samples if most is batch else config.evaluate.samples)
    yield Part(name="generation", rollout=taken, note=f"KV cache and sampling of {most.rollouts} rollouts")
    kept = activations(size, Widths(weight=4, compute=4), batch, checkpointing=False)
    yield Part(name="activations", update=kept, note=f"{batch.micro} x {batch.length:,} tokens")
    yield Part(name="log-probabilities", update=batch.micro * batch.completion * size.vocabulary * 12, note="whole logits")
    yield Part.always("round", batch.rollouts * batch.length * 64, f"tokens and log-probabilities of {batch.rollouts} rollouts")


def _engine_share(config: Config, size: ModelSize, machine: Machine) -> int:
    """Bytes of a device that vLLM takes: its share; on CPUs, where its own variable gives the KV cache a size, that and the weights."""
    space = os.environ.get(CPU_CACHE, "") if machine.kind == "cpu" else ""
    if space.isdecimal() and int(space):
        return int(space) * GIB + 2 * size.parameters + ENGINE_OVERHEAD
    return int(config.vllm.memory_share * machine.memory)


def _cache(config: Config, size: ModelSize, batch: Batch, machine: Machine) -> tuple[int, int] | None:
    """Bytes of the engine's KV cache and of its longest sequence, on each device; None without vLLM."""
    if config.vllm.mode == "off":
        return None
    together = config.vllm.tensor_parallel
    share = _engine_share(config, size, machine)
    cache = engine_cache(size, share, sequences=batch.rollouts * together, tensor_parallel=together)
    return cache, (config.vllm.max_model_length or batch.length) * size.kv_bytes(2) // together


def _problems(config: Config, plan: Plan, size: ModelSize) -> Iterator[tuple[str, int]]:
    """Why a plan does not fit, and by how many bytes; of a sequence that is too long, by a MiB a token."""
    room = int(plan.machine.free * (1 - RESERVE))
    tokens = config.train.max_completion_tokens
    for moment, taken in (("generating rollouts", plan.rollout), ("updating", plan.update)):
        if taken > room:
            has = f"{room / GIB:.1f} of {plan.machine.memory / GIB:.1f} can be used"
            yield f"{moment} takes {taken / GIB:.1f} GiB of each device, and {has}", taken - room
    if plan.sequence_tokens > size.positions:
        allowed = f"more than the {size.positions:,} positions of the model"
        excess = plan.sequence_tokens - size.positions << 20
        yield f"train.max_completion_tokens = {tokens} after prompts of {plan.prompt_tokens} tokens is {allowed}", excess
    if plan.cache is None:
        return
    cache, sequence = plan.cache
    if cache < sequence:
        what = f"its KV cache holds not one sequence of {plan.sequence_tokens:,} tokens" if cache >= 0 else "the weights take all of it"
        yield f"vllm.memory_share = {config.vllm.memory_share}: {what}", sequence - cache
    if 0 < config.vllm.max_model_length < plan.sequence_tokens:
        short = plan.sequence_tokens - config.vllm.max_model_length
        yield f"vllm.max_model_length = {config.vllm.max_model_length} is {short} tokens less than an episode", short << 20


def _longest_prompt(config: Config, pool: Pool) -> int:
    """Tokens of the longest prompt with its tools; words where the pocket model reads them."""
    longest: dict[str, Task] = {}
    for task in pool.tasks:
        if len(task.prompt) >= len(longest.get(task.env_id, task).prompt):
            longest[task.env_id] = task
    if config.model.kind == "pocket":
        from envsched_gnn.train.pocket.language import Language

        language = Language(pool)
        return max(len(language.read(pool.environment_of[task.env_id], task).ids) for task in longest.values())
    seen = (len(repr(policy_view(pool.environment_of[task.env_id], task))) for task in longest.values())
    return int(max(seen) / CHARACTERS_A_TOKEN) + PROMPT_EXTRA


def _pocket_size(config: Config, pool: Pool) -> ModelSize:
    """As train/pocket/model.py builds it."""
    from envsched_gnn.train.pocket.language import Language
    from envsched_gnn.train.pocket.model import HEAD, MAX_POSITION

    return ModelSize(
        hidden=config.model.hidden_size,
        intermediate=2 * config.model.hidden_size,
        layers=config.model.layers,
        heads=max(config.model.hidden_size // HEAD, 1),
        kv_heads=1,
        head_dim=HEAD,
        vocabulary=Language(pool).size,
        tied=True,
        positions=MAX_POSITION,
        source="the pocket model",
    )


def plan_for(config: Config, pool: Pool, *, devices: int | None = None, memory_gb: float | None = None) -> Plan:
    """The plan for this machine's devices, or assumed ones; see `machine_of`. The pocket model stays on the CPU."""
    device = "cpu" if config.model.kind == "pocket" else config.run.device
    return memory_plan(config, pool, machine_of(device, devices=devices, memory_gb=memory_gb))
