"""Launches made by hand: sequences with KV rows of their own, and the time of one launch on the device."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from pdmux_actor.executor.base import Executor, WarmingExecutor
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.model_info import ModelInfo
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

_DEADLINE_S = 120.0
_TRIES_PER_STEP = 3
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


class HandMadeLaunches:
    """One model that has the whole pool to itself."""

    def __init__(self, executor: Executor, info: ModelInfo, *, shuffled: bool = True, num_ranks: int = 1) -> None:
        """`shuffled`: blocks lie anywhere in the pool, as after hours of service; else one after the other. Of
        `num_ranks` each has its part of them, and names for its own.
        """
        self.executor = executor
        self.info = info
        rows = executor.total_blocks // info.geometry.blocks_per_row
        blocks = np.arange(executor.total_blocks // num_ranks, dtype=np.int64)
        if shuffled:
            blocks = np.random.default_rng(0).permutation(blocks)
        self._table = blocks[: rows * info.geometry.blocks_per_row // num_ranks].reshape(rows, -1)
        self._free_rows = list(range(rows))
        self._batch_id = 0
        self._in_flight = 0
        executor.attach_model(info, self._table)
        if isinstance(executor, WarmingExecutor):
            executor.finish_captures()

    def of_prompts(
        self, prompts: Sequence[Sequence[int]], room_tokens: int, sampling: SamplingParams = GREEDY
    ) -> list[TokenSequence]:
        """With rows for `room_tokens` more than the prompts. Their KV is whatever lies in the pool."""
        made = []
        for index, prompt in enumerate(prompts):
            request = GenerateRequest(
                request_id=f"{index}-{len(prompt)}",
                model=self.info.model,
                prompt_token_ids=tuple(prompt),
                sampling=replace(sampling, max_tokens=room_tokens, ignore_eos=True),
                slo=Slo(ttft_s=60.0, tbt_s=60.0),
            )
            sequence = TokenSequence.from_request(request, 0.0)
            num_rows = -(-(len(prompt) + room_tokens) // self.info.geometry.tokens_per_row)
            assert num_rows <= len(self._free_rows), "the KV pool is too small for this measurement"
            sequence.rows[:], self._free_rows = self._free_rows[:num_rows], self._free_rows[num_rows:]
            made.append(sequence)
        return made

    def sequences(
        self, lengths: Sequence[int], room_tokens: int = 8, sampling: SamplingParams = GREEDY
    ) -> list[TokenSequence]:
        """Of so many known tokens each."""
        vocabulary = self.info.spec.vocab_size
        drawn = [np.random.default_rng(i).integers(0, vocabulary, length) for i, length in enumerate(lengths)]
        return self.of_prompts([tokens.tolist() for tokens in drawn], room_tokens, sampling)

    def free(self, sequences: Sequence[TokenSequence]) -> None:
        for sequence in sequences:
            self._free_rows += sequence.rows

    @contextmanager
    def holding(self, count: int, context_tokens: int) -> Iterator[list[TokenSequence]]:
        """Sequences as `sequences` makes them; their rows are free again afterwards, whatever happens."""
        with self.holding_lengths([context_tokens] * count) as made:
            yield made

    @contextmanager
    def holding_lengths(
        self, lengths: Sequence[int], sampling: SamplingParams = GREEDY
    ) -> Iterator[list[TokenSequence]]:
        """Holds sequences of so many tokens each, as `holding`."""
        made = self.sequences(lengths, sampling=sampling)
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

    def mixed_launch(self, prompt: TokenSequence, decoding: Sequence[TokenSequence]) -> MixedStep:
        chunk = Chunk(prompt, 0, len(prompt.token_ids))
        return MixedStep(model=self.info.model, chunks=(chunk,), sequences=tuple(decoding))

    def submit(self, launch: ComputeLaunch) -> None:
        self.executor.submit(launch)
        self._in_flight += 1  # what it refused never ends

    def wait(self) -> Sequence[LaunchCompletion]:
        """What is over; raises what a launch raised."""
        ended = self.executor.wait(self.executor.now() + _DEADLINE_S)
        self._in_flight -= len(ended)
        for done in ended:
            assert done.error is None, done.error
        return ended

    def run(self, launch: ComputeLaunch) -> LaunchCompletion:
        """Alone, to its end."""
        self.submit(launch)
        while not (ended := self.wait()):
            pass
        return ended[0]

    def time_s(self, launch: ComputeLaunch, repeats: int, warm_ups: int = 2) -> list[float]:
        """Wall times of the launch alone, from submit to completion; the same tokens are computed each time."""
        ended = [self.run(launch) for _ in range(warm_ups + repeats)]
        return [done.finished_s - done.started_s for done in ended[warm_ups:]]

    def time_beside_s(self, decode: DecodeStep, prompts: Sequence[TokenSequence], repeats: int) -> list[float]:
        """Of decode steps that ran while the other lane prefilled `prompts` again and again."""
        self.time_s(decode, 1, warm_ups=1)
        self.submit(self.prefill_launch(prompts))
        times: list[float] = []
        steps, prefill_began_s = 0, self.executor.now()
        self.submit(decode)
        while len(times) < repeats:
            for done in self.wait():
                if isinstance(done.launch, PrefillSlice):
                    self.submit(self.prefill_launch(prompts))
                    prefill_began_s = self.executor.now()
                    continue
                steps += 1
                # A step during which one prefill ended and the next began was alone for a moment.
                if done.started_s >= prefill_began_s or steps > _TRIES_PER_STEP * repeats:
                    times.append(done.finished_s - done.started_s)
                self.submit(decode)
        self.drain()
        return times

    def drain(self) -> None:
        """Until no launch is left."""
        while self._in_flight:
            self._in_flight -= len(self.executor.wait(self.executor.now() + _DEADLINE_S))


def median_and_spread_s(times_s: Sequence[float]) -> tuple[float, float]:
    """The spread is the distance between the quartiles."""
    low, middle, high = statistics.quantiles(times_s, n=4)
    return middle, high - low
