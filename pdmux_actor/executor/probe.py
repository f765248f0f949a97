"""Measures launches of one model on an executor: the native engine's `profiler.probe.Probe`."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pdmux_actor.errors import LaunchFailed
from pdmux_actor.executor.base import Executor
from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.launch import (
    Chunk,
    ComputeLaunch,
    DecodeStep,
    LaunchCompletion,
    MixedStep,
    PrefillSlice,
    Repartition,
)
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.probe import LaunchShape, ProbeLimits
from profiler.sweep import partition_shares

_ENOUGH_OVERLAP = 0.9  # of a decode step's time, to have run beside the prefill
_MAX_TRIES = 20
_NO_TARGET = Slo(ttft_s=1e9, tbt_s=1e9)


class ExecutorProbe:
    """Launches are made by hand, without a scheduler, over real token blocks; nothing else may use the executor."""

    def __init__(
        self,
        executor: Executor,
        *,
        model: str,
        source: str,
        revision: str | None = None,
        dtype: str | None = None,
        weights: str | None = None,
        max_batch_tokens: int = 2048,
        max_sequences: int = 64,
    ) -> None:
        """Loads the model. Raises ModelLoadError."""
        info = executor.load_model(
            ModelSource(model=model, source=source, revision=revision, dtype=dtype, weights=weights)
        )
        self._executor = executor
        self._info = info
        self._pool = BlockPool(executor.total_blocks)
        executor.attach_model(info, self._pool.add_model(model, info.geometry, executor.total_blocks))
        self._numbers = itertools.count()
        self._partition: Repartition | None = None
        self.spec = info.spec
        self.device = executor.device
        self.num_gpus = 1
        rows = executor.total_blocks // info.geometry.blocks_per_row
        self.limits = ProbeLimits(
            shares=partition_shares(executor.device),
            max_sequence_tokens=min(info.max_model_len, rows * info.geometry.tokens_per_row),
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            max_kv_tokens=rows * info.geometry.tokens_per_row,
        )

    def time_s(self, launch: LaunchShape) -> float:
        is_prefill = launch.phase == "prefill"
        rest = self.device.num_sms - launch.sms
        self._repartition(prefill_sms=launch.sms if is_prefill else rest, decode_sms=rest if is_prefill else launch.sms)
        with self._sequences(launch) as (chunks, sequences):
            self._executor.submit(self._launch(chunks, sequences))
            (done,) = self._completions()
            return done.finished_s - done.started_s

    def time_beside_s(self, decode: LaunchShape, prefill: LaunchShape) -> float:
        """Times the first step with a prefill beside it nearly all the time; else the one that came nearest."""
        self._repartition(prefill_sms=prefill.sms, decode_sms=decode.sms)
        with self._sequences(prefill) as (chunks, _), self._sequences(decode) as (_, sequences):
            prefills = [_Span(self._submit(chunks, ()))]
            self._submit((), sequences)
            best_share, best_s, tries = -1.0, 0.0, 0
            while True:
                for done in self._completions():
                    if isinstance(done.launch, PrefillSlice):
                        prefills[-1] = _Span(done.started_s, done.finished_s)
                        if best_share >= _ENOUGH_OVERLAP or tries >= _MAX_TRIES:
                            return best_s
                        prefills.append(_Span(self._submit(chunks, ())))
                        continue
                    step_s, tries = done.finished_s - done.started_s, tries + 1
                    share = sum(p.overlap_s(done.started_s, done.finished_s) for p in prefills) / step_s
                    if share > best_share:
                        best_share, best_s = share, step_s
                    if best_share < _ENOUGH_OVERLAP and tries < _MAX_TRIES:
                        self._submit((), sequences)

    def close(self) -> None:
        self._executor.detach_model(self._info.model)

    def _repartition(self, *, prefill_sms: int, decode_sms: int) -> None:
        wanted = Repartition(prefill_sms=prefill_sms, decode_sms=decode_sms)
        if wanted != self._partition:
            self._executor.submit(wanted)
            self._partition = wanted

    def _submit(self, chunks: tuple[Chunk, ...], sequences: tuple[TokenSequence, ...]) -> float:
        """Returns when."""
        submitted_s = self._executor.now()
        self._executor.submit(self._launch(chunks, sequences))
        return submitted_s

    def _launch(self, chunks: tuple[Chunk, ...], sequences: tuple[TokenSequence, ...]) -> ComputeLaunch:
        model = self._info.model
        if not chunks:
            return DecodeStep(model=model, sequences=sequences)
        if sequences:
            return MixedStep(model=model, chunks=chunks, sequences=sequences)
        return PrefillSlice(
            batch_id=next(self._numbers),
            model=model,
            chunks=chunks,
            first_layer=0,
            last_layer=self.spec.num_layers,
        )

    def _completions(self) -> Sequence[LaunchCompletion]:
        while not (completions := self._executor.wait(None)):
            pass
        for done in completions:
            if done.error is not None:
                raise LaunchFailed(model=self._info.model, reason=done.error)
        return completions

    @contextmanager
    def _sequences(self, launch: LaunchShape) -> Iterator[tuple[tuple[Chunk, ...], tuple[TokenSequence, ...]]]:
        """The launch's prompts and decoding sequences, with memory of their own."""
        prompt_tokens = launch.new_tokens + launch.context_tokens
        made = [self._sequence(prompt_tokens) for _ in range(launch.prompts)]
        decoding = [self._sequence(launch.depth) for _ in range(launch.sequences)]
        try:
            yield (
                tuple(Chunk(sequence, launch.context_tokens, launch.new_tokens) for sequence in made),
                tuple(decoding),
            )
        finally:
            for sequence in (*made, *decoding):
                self._pool.free_rows(self._info.model, sequence.rows)

    def _sequence(self, num_tokens: int) -> TokenSequence:
        request = GenerateRequest(
            request_id=str(next(self._numbers)),
            model=self._info.model,
            prompt_token_ids=tuple(i % self.spec.vocab_size for i in range(num_tokens)),
            sampling=SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True),
            slo=_NO_TARGET,
        )
        sequence = TokenSequence.from_request(request, 0.0)
        rows = self._pool.allocate_rows(self._info.model, -(-num_tokens // self._info.geometry.tokens_per_row))
        assert rows is not None, "the sweep exceeds the limits of its probe"
        sequence.rows = rows
        return sequence


@dataclass(frozen=True, slots=True)
class _Span:
    """A prefill's time; one in flight has no end yet."""

    started_s: float
    finished_s: float = math.inf

    def overlap_s(self, started_s: float, finished_s: float) -> float:
        return max(0.0, min(self.finished_s, finished_s) - max(self.started_s, started_s))
