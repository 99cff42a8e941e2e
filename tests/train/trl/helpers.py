"""A tiny random language model, rows and rewards for tests of TRL's trainers: an update takes a fraction of a second."""

import gc
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from envsched_gnn.ledger import Ledger
from envsched_gnn.schedule import EnvSched
from envsched_gnn.train.trl.mixin import EnvSchedMixin
from tests.schedule.small import graph_of

gc.freeze()  # accelerate collects garbage when a training begins; without the million objects of the libraries that is quick
ENVIRONMENTS = [0] * 5 + [1] * 4 + [2] * 3
"""Environment of each of 12 tasks."""


class ScheduledGRPO(EnvSchedMixin, GRPOTrainer):
    """GRPO on the scheduler's tasks."""


class ScheduledRLOO(EnvSchedMixin, RLOOTrainer):
    """RLOO on the scheduler's tasks."""


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, a pad token and an end token."""
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")


def model(seed: int = 0) -> Qwen3ForCausalLM:
    """Two layers, random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def rows(graph: Any = None) -> Dataset:
    """A row for every task of the graph."""
    graph = graph or graph_of(ENVIRONMENTS)
    keys = [f"{graph.env_ids[e]}/{task}" for e, task in zip(graph["task"].env_index.tolist(), graph.task_ids, strict=True)]
    return Dataset.from_dict({"task_id": keys, "prompt": [f"Do {key}:" for key in keys]})


def scheduler(**settings: Any) -> EnvSched:
    """Small and seeded."""
    return EnvSched(None, graph_of(ENVIRONMENTS), batch_size=4, seed=3, **settings)


def share_low(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Share of the first four tokens whose id is low: varies within most groups."""
    return [sum(token < 130 for token in ids[:4]) / 4 for ids in completion_ids]


def config(folder: Path, kind: type = GRPOConfig, **changes: Any) -> Any:
    """Four groups of four rollouts a round on one process, one update a round, no files but on demand."""
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 0.01,
        "beta": 0.0,
        "max_steps": 3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 5,
    }
    return kind(**settings | changes)


OWN = ("scheduler", "on_round", "shadow", "train_dataset", "eval_dataset", "rollout_func", "callbacks")


def trainer(folder: Path, kind: type = ScheduledGRPO, reward_funcs: Any = share_low, **changes: Any) -> Any:
    """A trainer on tiny parts; keywords that are no part of it change its configuration."""
    own = {name: changes.pop(name) for name in OWN if name in changes}
    policy = changes.pop("model", None) or model()
    if issubclass(kind, EnvSchedMixin):
        own.setdefault("scheduler", scheduler())
    own.setdefault("train_dataset", rows())
    arguments = config(folder, RLOOConfig if issubclass(kind, RLOOTrainer) else GRPOConfig, **changes)
    return kind(model=policy, reward_funcs=reward_funcs, args=arguments, processing_class=tokenizer(), **own)


def keep_in(ledger: Ledger) -> Any:
    """An `on_round` that writes the ledger."""

    def on_round(selection: Any, groups: Any) -> None:
        ledger.write_selection(selection)
        for group in groups:
            ledger.write_group(group)

    return on_round
