"""How long launches take on an otherwise idle engine: what TBT targets and token budgets are derived from."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt
from engine_run import BLOCK_BYTES, MAX_MODEL_LEN

from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.launch import (
    Chunk,
    ComputeLaunch,
    DecodeStep,
    Lane,
    MixedStep,
    PrefillSlice,
    Repartition,
)
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.specs import DeviceSpec, ModelSpec

_REPEATS = 12
_MODEL = "m"


class StepTimes(Protocol):
    """Times of launches that have all cores to themselves."""

    def step_s(self, batch: int, context_tokens: int) -> float: ...

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

    def __init__(self, checkpoint: Path, *, num_cores: int | None = None, dtype: str = "bfloat16") -> None:
        self._executor = TorchCpuExecutor(
            kv_pool_bytes=256 << 20, block_bytes=BLOCK_BYTES, num_cores=num_cores, default_dtype=dtype
        )
        info = self._executor.load_model(
            _MODEL, str(checkpoint), revision=None, dtype=None, max_model_len=MAX_MODEL_LEN
        )
        self._info = info
        self._pool = BlockPool(self._executor.total_blocks)
        table = self._pool.add_model(_MODEL, info.geometry, self._executor.total_blocks)
        self._executor.attach_model(info, table)
        self._numbers = itertools.count()

    @property
    def spec(self) -> ModelSpec:
        return self._info.spec

    @property
    def device(self) -> DeviceSpec:
        return self._executor.device

    def close(self) -> None:
        self._executor.close()

    def decode_s(self, batch: int, context_tokens: int, cores: int, *, spread: float = 0.0) -> float:
        """`context_tokens` are the mean of a log-normal with this sigma: lengths that differ take longer."""
        lengths = np.maximum(1, np.rint(context_tokens * _log_normal(batch, spread))).astype(int)
        sequences = tuple(itertools.chain.from_iterable(self._sequences(1, int(length)) for length in lengths))
        self._partition(prefill=self.device.num_sms - cores, decode=cores)
        return self._quartile_s(lambda: DecodeStep(model=_MODEL, sequences=sequences), sequences)

    def step_s(self, batch: int, context_tokens: int) -> float:
        return self.decode_s(batch, context_tokens, self.device.num_sms)

    def mixed_s(self, batch: int, context_tokens: int, chunk_tokens: int) -> float:
        sequences = self._sequences(batch, context_tokens)
        prompt = self._sequences(1, chunk_tokens)
        self._partition(prefill=0, decode=self.device.num_sms)
        chunk = Chunk(prompt[0], 0, chunk_tokens)
        return self._quartile_s(
            lambda: MixedStep(model=_MODEL, chunks=(chunk,), sequences=sequences), [*sequences, *prompt]
        )

    def prefill_s(self, tokens: int, cores: int, *, prompts: int = 1) -> float:
        """Of so many prompts of `tokens` each."""
        sequences = self._sequences(prompts, tokens)
        self._partition(prefill=cores, decode=self.device.num_sms - cores)
        return self._quartile_s(lambda: self._prefill_launch(*sequences), sequences)

    def slowdowns(self, batch: int, context_tokens: int, prompt_tokens: int) -> tuple[float, float]:
        """How much longer (prefill, decode) take beside each other, on one core each for decode and the rest."""
        cores = self.device.num_sms
        alone_s = self.prefill_s(prompt_tokens, cores - 1), self.decode_s(batch, context_tokens, 1)
        sequences, prompt = self._sequences(batch, context_tokens), self._sequences(1, prompt_tokens)
        self._partition(prefill=cores - 1, decode=1)
        taken_s: dict[Lane, list[float]] = {lane: [] for lane in Lane}
        for _ in range(_REPEATS):
            self._executor.submit(self._prefill_launch(prompt[0]))
            in_flight = {Lane.PREFILL}
            while Lane.PREFILL in in_flight:
                if Lane.DECODE not in in_flight:
                    self._executor.submit(DecodeStep(model=_MODEL, sequences=sequences))
                    in_flight.add(Lane.DECODE)
                for done in self._executor.wait(None):
                    in_flight.discard(done.launch.lane)
                    taken_s[done.launch.lane].append(done.finished_s - done.started_s)
            while Lane.DECODE in in_flight:
                in_flight -= {done.launch.lane for done in self._executor.wait(None)}
        for sequence in (*sequences, *prompt):
            self._pool.free_rows(_MODEL, sequence.rows)
        beside_s = [float(np.quantile(taken_s[lane], 0.25)) for lane in (Lane.PREFILL, Lane.DECODE)]
        return max(1.0, beside_s[0] / alone_s[0]), max(1.0, beside_s[1] / alone_s[1])

    def _prefill_launch(self, *prompts: TokenSequence) -> PrefillSlice:
        return PrefillSlice(
            batch_id=next(self._numbers),
            model=_MODEL,
            chunks=tuple(Chunk(prompt, 0, len(prompt.token_ids)) for prompt in prompts),
            first_layer=0,
            last_layer=self._info.spec.num_layers,
        )

    def _partition(self, *, prefill: int, decode: int) -> None:
        self._executor.submit(Repartition(prefill_sms=prefill, decode_sms=decode))

    def _sequences(self, count: int, num_tokens: int) -> tuple[TokenSequence, ...]:
        made = []
        for _ in range(count):
            request = GenerateRequest(
                request_id=str(next(self._numbers)),
                model=_MODEL,
                prompt_token_ids=tuple(20 + i % 500 for i in range(num_tokens)),
                sampling=SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True),
                slo=Slo(ttft_s=1.0, tbt_s=1.0),
            )
            sequence = TokenSequence.from_request(request, 0.0)
            rows = self._pool.allocate_rows(_MODEL, -(-num_tokens // self._info.geometry.tokens_per_row))
            assert rows is not None, "the pool of the measurement is too small"
            sequence.rows = rows
            made.append(sequence)
        return tuple(made)

    def _quartile_s(self, launch: Callable[[], ComputeLaunch], sequences: Sequence[TokenSequence]) -> float:
        self._run_s(launch())
        taken_s = [self._run_s(launch()) for _ in range(_REPEATS)]
        for sequence in sequences:
            self._pool.free_rows(_MODEL, sequence.rows)
        return float(np.quantile(taken_s, 0.25))

    def _run_s(self, launch: ComputeLaunch) -> float:
        self._executor.submit(launch)
        while not (done := self._executor.wait(None)):
            pass
        assert done[0].error is None, done[0].error
        return done[0].finished_s - done[0].started_s


def _log_normal(count: int, sigma: float) -> npt.NDArray[np.float64]:
    """Evenly spaced quantiles of it, with mean 1."""
    drawn = np.array([math.exp(sigma * NormalDist().inv_cdf((i + 0.5) / count)) for i in range(count)])
    return drawn / drawn.mean()
