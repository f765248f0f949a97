"""Launches made by hand: sequences with KV rows of their own, and the time of one launch on the device."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.launch import Chunk, ComputeLaunch, DecodeStep, PrefillSlice, Repartition
from pdmux_actor.scheduling.sequence import TokenSequence

_DEADLINE_S = 120.0
_TRIES_PER_STEP = 3


class HandMadeLaunches:
    """One model that has the whole pool to itself."""

    def __init__(self, executor: TorchCudaExecutor, info: ModelInfo) -> None:
        self.executor = executor
        self.info = info
        rows = executor.total_blocks // info.geometry.blocks_per_row
        blocks = np.random.default_rng(0).permutation(executor.total_blocks)[: rows * info.geometry.blocks_per_row]
        self._table = blocks.reshape(rows, -1).astype(np.int64)
        self._free_rows = list(range(rows))
        self._batch_id = 0
        executor.attach_model(info, self._table)

    def sequences(self, count: int, context_tokens: int, room_tokens: int) -> list[TokenSequence]:
        """With `context_tokens` known tokens and rows for `room_tokens` more. Their KV is whatever lies in the pool."""
        made = []
        for index in range(count):
            tokens = np.random.default_rng(index).integers(0, self.info.spec.vocab_size, context_tokens)
            request = GenerateRequest(
                request_id=f"{index}-{context_tokens}",
                model=self.info.model,
                prompt_token_ids=tuple(tokens.tolist()),
                sampling=SamplingParams(max_tokens=room_tokens, temperature=0.0, ignore_eos=True),
                slo=Slo(ttft_s=60.0, tbt_s=60.0),
            )
            sequence = TokenSequence.from_request(request, 0.0)
            num_rows = -(-(context_tokens + room_tokens) // self.info.geometry.tokens_per_row)
            assert num_rows <= len(self._free_rows), "the KV pool is too small for this measurement"
            sequence.rows[:], self._free_rows = self._free_rows[:num_rows], self._free_rows[num_rows:]
            made.append(sequence)
        return made

    def free(self, sequences: Sequence[TokenSequence]) -> None:
        for sequence in sequences:
            self._free_rows += sequence.rows

    @contextmanager
    def holding(self, count: int, context_tokens: int, room_tokens: int = 8) -> Iterator[list[TokenSequence]]:
        """Sequences as `sequences` makes them; their rows are free again afterwards, whatever happens."""
        made = self.sequences(count, context_tokens, room_tokens)
        try:
            yield made
        finally:
            self.drain()
            self.free(made)

    def partition(self, prefill_sms: int, decode_sms: int) -> None:
        self.executor.submit(Repartition(prefill_sms=prefill_sms, decode_sms=decode_sms))

    def prefill_launch(self, sequences: Sequence[TokenSequence]) -> PrefillSlice:
        self._batch_id += 1
        return PrefillSlice(
            batch_id=self._batch_id,
            model=self.info.model,
            chunks=tuple(Chunk(s, 0, len(s.token_ids)) for s in sequences),
            first_layer=0,
            last_layer=self.info.spec.num_layers,
        )

    def decode_launch(self, sequences: Sequence[TokenSequence], steps: int = 1) -> DecodeStep:
        return DecodeStep(model=self.info.model, sequences=tuple(sequences), steps=steps)

    def time_s(self, launch: ComputeLaunch, repeats: int, warm_ups: int = 2) -> list[float]:
        """Wall times of the launch alone, from submit to completion; the same tokens are computed each time."""
        times = []
        for _ in range(warm_ups + repeats):
            self.executor.submit(launch)
            (done,) = self.executor.wait(self.executor.now() + _DEADLINE_S)
            assert done.error is None, done.error
            times.append(done.finished_s - done.started_s)
        return times[warm_ups:]

    def time_beside_s(self, decode: DecodeStep, prompts: Sequence[TokenSequence], repeats: int) -> list[float]:
        """Of decode steps that ran while the other lane prefilled `prompts` again and again."""
        self.time_s(decode, 1, warm_ups=1)
        self.executor.submit(self.prefill_launch(prompts))
        times: list[float] = []
        steps, prefill_began_s = 0, self.executor.now()
        self.executor.submit(decode)
        while len(times) < repeats:
            for done in self.executor.wait(self.executor.now() + _DEADLINE_S):
                assert done.error is None, done.error
                if isinstance(done.launch, PrefillSlice):
                    self.executor.submit(self.prefill_launch(prompts))
                    prefill_began_s = self.executor.now()
                    continue
                steps += 1
                # A step during which one prefill ended and the next began was alone for a moment.
                if done.started_s >= prefill_began_s or steps > _TRIES_PER_STEP * repeats:
                    times.append(done.finished_s - done.started_s)
                self.executor.submit(decode)
        self.drain()
        return times

    def drain(self) -> None:
        """Until no launch is left."""
        while self.executor.is_busy:
            self.executor.wait(self.executor.now() + _DEADLINE_S)


def median_and_spread_s(times_s: Sequence[float]) -> tuple[float, float]:
    """The spread is the distance between the quartiles."""
    low, middle, high = statistics.quantiles(times_s, n=4)
    return middle, high - low
