"""The same greedy generation by our CPU executor and by transformers, with times of both phases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from engines.hand_made_launches import HandMadeLaunches
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, StoppingCriteriaList
from transformers.utils import logging as transformers_logging

from pdmux_actor.executor.lanes import PinnedThreads
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.launch import ComputeLaunch
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.devices import laptop_cpu

Clock = Callable[[], float]

POOL_BYTES = 512 * 1024**2
BLOCK_BYTES = 16 * 1024  # the fleet file's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    tokens: list[list[int]]
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


class Ours:
    def __init__(
        self,
        folder: Path,
        dtype: str,
        clock: Clock,
        weights: str | None = None,
        threads: PinnedThreads | None = None,
    ) -> None:
        """`threads` None: its own. Several of one process share them: otherwise all sleep between two products, which
        those of a unit's one engine do not.
        """
        self._clock = clock
        num_cores = torch.get_num_threads()
        self._executor = TorchCpuExecutor(
            kv_pool_bytes=POOL_BYTES,
            block_bytes=BLOCK_BYTES,
            num_cores=num_cores,
            device=laptop_cpu(num_cores=num_cores, memory_bytes=8 * 1024**3),
            threads=threads,
        )
        info = self._executor.load_model(ModelSource(model="m", source=str(folder), dtype=dtype, weights=weights))
        self._launches = HandMadeLaunches(self._executor, info, shuffled=False)

    def admit(self, prompts: Sequence[list[int]], new_tokens: int) -> list[TokenSequence]:
        return self._launches.of_prompts(prompts, new_tokens)

    def release(self, sequences: Sequence[TokenSequence]) -> None:
        self._launches.free(sequences)

    def generate(self, sequences: Sequence[TokenSequence], new_tokens: int) -> Run:
        for sequence in sequences:
            del sequence.token_ids[sequence.num_prompt_tokens :]
        num_prompt_tokens = sum(s.num_prompt_tokens for s in sequences)
        started_s = self._clock()
        self._run(self._launches.prefill_launch(sequences), sequences)
        prefilled_s = self._clock()
        for _ in range(new_tokens - 1):
            self._run(self._launches.decode_launch(sequences), sequences)
        decode_s = self._clock() - prefilled_s
        return Run(
            tokens=[s.token_ids[s.num_prompt_tokens :] for s in sequences],
            prefill_tokens_per_s=num_prompt_tokens / (prefilled_s - started_s),
            decode_tokens_per_s=len(sequences) * (new_tokens - 1) / decode_s if new_tokens > 1 else 0.0,
        )

    def close(self) -> None:
        self._executor.close()

    def _run(self, launch: ComputeLaunch, sequences: Sequence[TokenSequence]) -> None:
        done = self._launches.run(launch)
        for sequence, tokens in zip(sequences, done.tokens, strict=True):
            sequence.token_ids += [t.token_id for t in tokens]


class _TokenClock:
    """A stopping criterion that never stops: it notes when each token of the batch is there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self.times_s.append(self._clock())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Theirs:
    def __init__(self, folder: Path, dtype: str, clock: Clock) -> None:
        self._clock = clock
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self._paged = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def generate(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        ids = torch.tensor(prompts)
        token_clock = _TokenClock(self._clock)
        with torch.inference_mode():
            started_s = self._clock()
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=_greedy(new_tokens),
                stopping_criteria=StoppingCriteriaList([token_clock]),
            )
        return Run(
            tokens=out[:, ids.shape[1] :].tolist(),
            prefill_tokens_per_s=ids.numel() / (token_clock.times_s[0] - started_s),
            decode_tokens_per_s=_rate(len(prompts) * (new_tokens - 1), token_clock.times_s),
        )

    def generate_continuously(self, prompts: Sequence[list[int]], new_tokens: int) -> Run:
        """Decode is counted while all sequences run: from the last one's first token to the first one's last."""
        length = len(prompts[0]) + new_tokens
        config = ContinuousBatchingConfig(
            num_blocks=len(prompts) * -(-length // 256) + 8,
            max_batch_tokens=8192,
            allow_block_sharing=False,
        )
        results = self._paged.generate_batch(
            list(prompts),
            generation_config=_greedy(new_tokens),
            continuous_batching_config=config,
            record_timestamps=True,
            warmup=False,
        ).values()
        assert len(results) == len(prompts), "generate_batch lost a request"
        assert not any(r.error for r in results), [r.error for r in results]
        times_s = [r.timestamps for r in results]
        together_s = [max(t[0] for t in times_s), min(t[-1] for t in times_s)]
        counted = sum(sum(1 for t in of_one if together_s[0] < t <= together_s[1]) for of_one in times_s)
        prefill_s = max(t[0] for t in times_s) - min(r.created_time for r in results)
        return Run(
            tokens=[r.generated_tokens for r in results],
            prefill_tokens_per_s=sum(map(len, prompts)) / prefill_s,
            decode_tokens_per_s=_rate(counted, together_s),
        )


def _greedy(new_tokens: int) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )


def _rate(num_tokens: int, times_s: Sequence[float]) -> float:
    elapsed_s = times_s[-1] - times_s[0]
    return num_tokens / elapsed_s if elapsed_s else 0.0
