"""An engine with the face of `vllm.LLM` that TRL uses, in plain transformers: its own weights, which it loses in its sleep, and a log.

TRL's `VLLMGeneration` and trainers run on it unchanged where vllm is not installed. It refuses what a real engine cannot do: generate, or
take weights, while their memory is given back.
"""

from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

CAN_SLEEP = ("weights", "kv_cache")


class CountingLLM:
    """Samples from its own copy of the model with torch's generator, as vLLM does.

    Attributes:
        calls: everything it was told, in order.
        seeds: of torch's generator, at each call that generates.
        opening: tokens that the answers of the first two turns consist of; empty: all turns are sampled.
        longest: tokens that a sampled answer has at most.
        device: what the engine says it runs on; decides how weights are handed over.
        dies_at: number of the `generate` call that raises `dies_of`.
    """

    calls: list[str]
    seeds: list[int]
    opening: tuple[int, ...] = ()
    longest = 4
    device = "cuda"
    dies_at = 0
    dies_of: type[Exception] = RuntimeError

    def __init__(self, *, model: str, seed: int, enable_sleep_mode: bool, max_model_len: int | None, **_: object) -> None:
        self.calls, self.seeds = [], []
        self.model = AutoModelForCausalLM.from_pretrained(model).eval()
        self.names = dict(self.model.named_parameters())
        self.asleep: set[str] = set()
        runner = SimpleNamespace(
            device=torch.device(self.device), reload_weights=self._reload, model=SimpleNamespace(load_weights=self._load)
        )
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=executor, model_config=SimpleNamespace(max_model_len=max_model_len or 2048))
        torch.manual_seed(seed)  # as vLLM does to the process that it lives in

    def sleep(self, level: int) -> None:
        assert level == 2
        self.calls.append("sleep")
        self.asleep = set(CAN_SLEEP)
        with torch.no_grad():
            for parameter in self.names.values():
                parameter.fill_(torch.nan)

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {tags[0]}")
        self.asleep -= set(tags)

    def reset_prefix_cache(self) -> None:
        self.calls.append("forget prefixes")

    def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        """One parameter, as TRL's own way on GPUs."""
        assert "weights" not in self.asleep
        ((name, value),) = weights
        if name == "model.embed_tokens.weight":
            self.calls.append("weights")
        with torch.no_grad():
            self.names[name].copy_(value)

    def _reload(self, weights_iterator: Any) -> None:
        for name, value in weights_iterator:
            self._load([(name, value)])

    def generate(self, prompts: list[dict[str, list[int]]], sampling_params: SimpleNamespace, use_tqdm: bool) -> list[SimpleNamespace]:
        assert not self.asleep
        self.calls.append("generate")
        self.seeds.append(torch.initial_seed())
        if self.calls.count("generate") == self.dies_at:
            raise self.dies_of("the engine core stopped\nand left a long trace")
        return [self._answer(prompt["prompt_token_ids"], sampling_params) for prompt in prompts]

    @torch.no_grad()
    def _answer(self, prompt: list[int], sampling: SimpleNamespace) -> SimpleNamespace:
        turns = sum(tuple(prompt[n : n + len(self.opening)]) == self.opening for n in range(len(prompt)))
        answer = list(self.opening) if self.opening and turns < 2 else self._sample(prompt, min(self.longest, sampling.max_tokens))
        logprobs = self._logp(prompt + answer)[len(prompt) - 1 : -1].gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()
        scored = [{token: SimpleNamespace(logprob=logprob, rank=1)} for token, logprob in zip(answer, logprobs, strict=True)]
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[SimpleNamespace(token_ids=answer, logprobs=scored)])

    def _sample(self, prompt: list[int], longest: int) -> list[int]:
        answer: list[int] = []
        while len(answer) < longest and self.model.config.eos_token_id not in answer:
            answer.append(int(torch.multinomial(self._logp(prompt + answer)[-1].exp(), 1)))
        return answer

    def _logp(self, ids: list[int]) -> torch.Tensor:
        """[tokens, vocabulary]"""
        return self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
