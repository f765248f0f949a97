"""How long launches take on an otherwise idle engine: what TBT targets and token budgets are derived from."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt
from engines.engine_session import BLOCK_BYTES
from engines.hand_made_launches import HandMadeLaunches
from load.workloads import MAX_MODEL_LEN

from pdmux_actor.executor.lanes import PinnedThreads
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.launch import ComputeLaunch, Lane
from pdmux_actor.scheduling.sequence import TokenSequence

_REPEATS = 12


class StepTimes(Protocol):
    """Times of launches that have all cores to themselves."""

    def step_s(self, batch: int, context_tokens: int) -> float: ...

    def prefill_s(self, tokens: int) -> float: ...

    def mixed_s(self, batch: int, context_tokens: int, chunk_tokens: int) -> float: ...


def token_budget(times: StepTimes, batch: int, context_tokens: int, target_s: float) -> int:
    """The largest token budget whose fused step meets the target: how chunked prefill is tuned offline.

    It must do so with the typical batch and with a single sequence beside the prompt. One prompt token always fits
    beside the decodes, or prompts would wait for ever.
    """
    budget_tokens = batch + 1
    for candidate in (12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512):
        few_decodes_s = times.mixed_s(1, context_tokens, candidate - 1)
        if max(few_decodes_s, times.mixed_s(batch, context_tokens, candidate - batch)) > target_s:
            break
        budget_tokens = candidate
    return budget_tokens


class SoloSteps:
    """Every figure is the lower quartile of a dozen launches: the median of a machine without neighbours."""

    def __init__(self, checkpoint: Path, threads: PinnedThreads) -> None:
        self._executor = TorchCpuExecutor(
            kv_pool_bytes=256 << 20,
            block_bytes=BLOCK_BYTES,
            num_cores=None,
            default_dtype="bfloat16",
            threads=threads,
        )
        info = self._executor.load_model(ModelSource(model="m", source=str(checkpoint), max_model_len=MAX_MODEL_LEN))
        self._launches = HandMadeLaunches(self._executor, info, shuffled=False)
        self.spec = info.spec
        self.device = self._executor.device

    def close(self) -> None:
        self._executor.close()

    def decode_s(self, batch: int, context_tokens: int, cores: int, *, spread: float = 0.0) -> float:
        """`context_tokens` are the mean of a log-normal with this sigma: lengths that differ take longer."""
        lengths = np.maximum(1, np.rint(context_tokens * _log_normal(batch, spread))).astype(int).tolist()
        self._launches.partition(self.device.num_sms - cores, cores)
        return self._quartile_s(lengths, self._launches.decode_launch)

    def step_s(self, batch: int, context_tokens: int) -> float:
        return self.decode_s(batch, context_tokens, self.device.num_sms)

    def mixed_s(self, batch: int, context_tokens: int, chunk_tokens: int) -> float:
        self._launches.partition(0, self.device.num_sms)
        lengths = [chunk_tokens, *[context_tokens] * batch]
        return self._quartile_s(lengths, lambda known: self._launches.mixed_launch(known[0], known[1:]))

    def prefill_s(self, tokens: int, cores: int | None = None, *, prompts: int = 1) -> float:
        """Of so many prompts of `tokens` each."""
        cores = cores or self.device.num_sms
        self._launches.partition(cores, self.device.num_sms - cores)
        return self._quartile_s([tokens] * prompts, self._launches.prefill_launch)

    def slowdowns(self, batch: int, context_tokens: int, prompt_tokens: int) -> tuple[float, float]:
        """How much longer (prefill, decode) take beside each other, on one core each for decode and the rest."""
        cores, launches = self.device.num_sms, self._launches
        alone_s = self.prefill_s(prompt_tokens, cores - 1), self.decode_s(batch, context_tokens, 1)
        launches.partition(cores - 1, 1)
        taken_s: dict[Lane, list[float]] = {lane: [] for lane in Lane}
        with launches.holding(batch, context_tokens) as sequences, launches.holding(1, prompt_tokens) as prompt:
            for _ in range(_REPEATS):
                launches.submit(launches.prefill_launch(prompt))
                in_flight = {Lane.PREFILL}
                while Lane.PREFILL in in_flight:
                    if Lane.DECODE not in in_flight:
                        launches.submit(launches.decode_launch(sequences))
                        in_flight.add(Lane.DECODE)
                    for done in launches.wait():
                        in_flight.discard(done.launch.lane)
                        taken_s[done.launch.lane].append(done.finished_s - done.started_s)
                launches.drain()
        beside_s = [float(np.quantile(taken_s[lane], 0.25)) for lane in (Lane.PREFILL, Lane.DECODE)]
        return max(1.0, beside_s[0] / alone_s[0]), max(1.0, beside_s[1] / alone_s[1])

    def _quartile_s(
        self, lengths: Sequence[int], launch_of: Callable[[Sequence[TokenSequence]], ComputeLaunch]
    ) -> float:
        sequences = self._launches.sequences(lengths)
        taken_s = [self._launches.time_s(launch_of(sequences), 1, warm_ups=int(i == 0))[0] for i in range(_REPEATS)]
        self._launches.free(sequences)
        return float(np.quantile(taken_s, 0.25))


def _log_normal(count: int, sigma: float) -> npt.NDArray[np.float64]:
    """Evenly spaced quantiles of it, with mean 1."""
    drawn = np.array([math.exp(sigma * NormalDist().inv_cdf((i + 0.5) / count)) for i in range(count)])
    return drawn / drawn.mean()
