"""vLLM beside the trainer on the same devices: the engine wakes, gets the weights and sleeps once a round.

Knows: what a generation round of TRL is; TRL's vLLM object; how weights reach an engine; the seeds of sampling.
Does not know: schedulers, environments, how much memory there is.

TRL alone puts the engine to sleep after each turn of a tool loop, and pushes all weights again before the next. Here a round is one call
of the trainer's `_generate`, tool loop or `rollout_func` included:

    wake -> weights -> turn 1 .. turn n -> sleep -> rewards, log-probabilities, optimiser

Every round gets the weights, also where the optimiser has not moved (evaluation, gradient accumulation over several rounds): sleep has
discarded them, the number of a step does not tell whether they changed (a loaded checkpoint, a second `train()`), and all ranks must agree.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from envsched_gnn.config_training import VllmConfig
from envsched_gnn.errors import ConfigError, EngineError, message

SLEEP_LEVEL = 2
"""Gives back the memory of weights and KV cache; what they held is lost."""


@dataclass
class EngineCounts:
    """What an engine has been told to do so far. An engine that cannot sleep (on CPUs) is told as often, and stays awake."""

    wakes: int = 0
    syncs: int = 0
    """Times the engine got all weights."""
    turns: int = 0
    """Calls that generate; several in a round with tools."""
    sleeps: int = 0
    seconds_wake: float = 0.0
    seconds_sync: float = 0.0
    seconds_generate: float = 0.0
    seconds_sleep: float = 0.0


def engine_arguments(vllm: VllmConfig, *, max_model_length: int, device: str) -> dict[str, Any]:
    """The arguments of `GRPOConfig` and `RLOOConfig` that say which engine generates; hand the trainer to `colocate` afterwards.

    Call it before the trainer is made: on CPUs it also sees to it that vLLM can start.

    Args:
        max_model_length: tokens of the longest prompt and completion together; `vllm.max_model_length` goes before it.
        device: type of the trainer's device, "cuda" or "cpu"; on "cpu" the engine does not sleep.

    Raises:
        ConfigError: vLLM is wanted and not installed.
    """
    if vllm.mode == "off":
        return {"use_vllm": False}
    if importlib.util.find_spec("vllm") is None:
        cure = "pip install 'envsched-gnn[vllm]' on GPUs, see `make test-vllm` for CPUs, or set vllm.mode = 'off'."
        raise ConfigError(message("vllm.mode = 'colocate'", "there is no package vllm", "an installed engine", cure))
    if device == "cpu":
        _tame_llvmlite()
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": vllm.memory_share,
        "vllm_tensor_parallel_size": vllm.tensor_parallel,
        "vllm_max_model_length": vllm.max_model_length or max_model_length,
        "vllm_enable_sleep_mode": vllm.sleep and device != "cpu",
    }


def _tame_llvmlite() -> None:
    """Let vLLM 0.32 start on CPUs beside torch-geometric.

    It looks at `__dict__` of everything in every loaded module, and torch-geometric loads numba, whose llvmlite has an object that answers
    to any name with a function.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        ffi.lib._fntab.setdefault("__dict__", {})


def colocate(trainer: Any) -> RoundEngine:
    """Make the engine of `trainer` wake, get the weights and sleep once a round; call it once, before `train()`.

    Also puts the generators of this process back to the run's seed: vLLM has set them to the number of the rank, whatever the seed.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer (or subclass) with `use_vllm=True, vllm_mode="colocate"`.

    Raises:
        ConfigError: the trainer has no engine of its own.
    """
    from accelerate.utils import set_seed

    if not getattr(trainer, "use_vllm", False) or trainer.vllm_mode != "colocate":
        found = f"vllm_mode={trainer.vllm_mode!r}" if getattr(trainer, "use_vllm", False) else "use_vllm=False"
        cure = "Build its configuration with use_vllm=True, vllm_mode='colocate', or leave colocate() out."
        raise ConfigError(message("colocate(trainer)", found, "an engine inside the trainer's process", cure))
    engine = RoundEngine(trainer)
    set_seed(trainer.args.seed, device_specific=True)
    return engine


class RoundEngine:
    """The engine of a trainer, taken over by `colocate`.

    Attributes:
        counts: what the engine was told to do since `colocate`.
        can_sleep: whether it gives memory back between rounds.
    """

    def __init__(self, trainer: Any) -> None:
        self.counts = EngineCounts()
        self._trainer = trainer
        self._generation = trainer.vllm_generation
        self.can_sleep = bool(self._generation.enable_sleep_mode)
        self._generation.enable_sleep_mode = False  # TRL neither wakes the engine nor puts it to sleep from here on
        self._rounds: Counter[tuple[int, bool]] = Counter()
        self._serving = False
        self._broken = False
        self._push, self._turn, self._generate = self._generation.sync_weights, self._generation.generate, trainer._generate
        self._generation.sync_weights = self._sync_if_serving
        self._generation.generate = self.generate
        trainer._generate = self._generate_in_round

    @contextmanager
    def round(self) -> Iterator[None]:
        """A round: the engine is awake and has the trainer's weights inside the block. A round in a round is the same round.

        What the block draws from Python's, NumPy's or torch's generators follows from the run's seed, the rank, the optimiser step and the
        round's place in it (ours): a resumed run samples what the whole run would have sampled. Evaluations draw alike at all steps. The
        generators are put back afterwards.

        Raises:
            EngineError: the engine failed in this round, or in one before.
        """
        if self._serving:
            yield
            return
        if self._broken:
            raise self._error("the engine failed in an earlier round", "a working engine")
        before = asdict(self.counts)
        with _generators(self._seed(), self._generation.accelerator.device):
            self._wake()
            self._serving = True
            try:
                yield
            finally:
                self._serving = False
                if not self._broken:
                    self._sleep()
        self._log({name: value - before[name] for name, value in asdict(self.counts).items()})

    def generate(self, prompts: list[list[int]], images: list[Any] | None, num_generations: int, profiler: Any = None) -> tuple[Any, ...]:
        """TRL's `VLLMGeneration.generate`; outside a round it is a round of its own."""
        with self.round(), self._told("generate"):
            self.counts.turns += 1
            return self._turn(prompts, images, num_generations, profiler)

    def _generate_in_round(self, prompts: list[Any]) -> Any:
        with self.round():
            return self._generate(prompts)

    def _wake(self) -> None:
        """Memory for the weights first, for the KV cache once they are there: the two peaks do not add up."""
        with self._told("wake"):
            self.counts.wakes += 1
            self._resume("weights")
        self._sync()
        with self._told("wake"):
            self._resume("kv_cache")
        self._trainer._last_loaded_step = self._trainer.state.global_step

    def _resume(self, memory: str) -> None:
        from trl.generation.vllm_generation import empty_cache

        if self.can_sleep:
            empty_cache()
            self._generation.llm.wake_up(tags=[memory])

    def _sleep(self) -> None:
        with self._told("sleep"):
            self.counts.sleeps += 1
            if self.can_sleep:
                self._generation.llm.sleep(level=SLEEP_LEVEL)

    def _sync(self) -> None:
        with self._told("sync"):
            self.counts.syncs += 1
            llm = self._generation.llm
            runner = llm.llm_engine.model_executor.driver_worker.model_runner
            if runner.device.type != "cpu":
                self._push()
                return
            # On CPUs vLLM repacks weights when it has loaded them, and only a reload undoes that. It keeps tensors that it is given.
            weights = ((name, parameter.detach().clone()) for name, parameter in self._generation._iter_named_params())
            runner.reload_weights(weights_iterator=weights)
            llm.reset_prefix_cache()

    def _sync_if_serving(self) -> None:
        """In place of TRL's `sync_weights`: an engine at rest cannot take weights, and gets them when its round begins."""
        if self._serving:
            self._sync()

    @contextmanager
    def _told(self, action: str) -> Iterator[None]:
        """Time a command to the engine; one that does not come back leaves an engine that cannot be used.

        Raises:
            EngineError: it failed.
            torch.OutOfMemoryError: it found no memory; other settings would help.
        """
        begin = time.perf_counter()
        self._broken = True
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            found = f"{type(error).__name__} at '{action}': {str(error).strip().partition(chr(10))[0]}"
            raise self._error(found, "an engine that answers") from error
        self._broken = False
        name = f"seconds_{action}"
        setattr(self.counts, name, getattr(self.counts, name) + time.perf_counter() - begin)

    def _error(self, found: str, expected: str) -> EngineError:
        where = f"vLLM in the round of optimiser step {self._trainer.state.global_step}"
        return EngineError(message(where, found, expected, "Give the same command again: it goes on from the last checkpoint."))

    def _seed(self) -> int:
        step, training = place = self._trainer.state.global_step, self._trainer.model.training
        self._rounds[place] += 1
        generation = self._generation
        group = generation.accelerator.process_index // generation.tensor_parallel_size
        return round_seed(self._trainer.args.seed, group, step if training else 0, training, self._rounds[place])

    def _log(self, counts: dict[str, float]) -> None:
        mode = "train" if self._trainer.model.training else "eval"
        for name, value in counts.items():
            self._trainer._metrics[mode][f"engine/{name}"].append(value)


def round_seed(seed: int, group: int, step: int, training: bool, nth: int) -> int:
    """The seed of a round, from those of the run and engine (one for the ranks of a tensor-parallel group) and the round's place."""
    return int(np.random.SeedSequence((seed, group, step, int(training), nth)).generate_state(1)[0])


@contextmanager
def _generators(seed: int, device: torch.device) -> Iterator[None]:
    """vLLM draws from the process's own generators: the NumPy one for the seeds of requests, the torch ones for tokens."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
