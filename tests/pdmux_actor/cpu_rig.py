"""Drives a TorchCpuExecutor with hand-made launches: gives rows of shuffled blocks, keeps the sequences' cursors."""

import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pdmux_actor.executor.base import WarmingExecutor
from pdmux_actor.executor.lanes import available_cores
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.messages import GenerateRequest, SampledToken, SamplingParams, Slo
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.scheduling.launch import (
    Chunk,
    ComputeLaunch,
    DecodeStep,
    LaunchCompletion,
    MixedStep,
    PrefillSlice,
    sampling_sequences,
)
from pdmux_actor.scheduling.sequence import AdapterInUse, TokenSequence
from profiler.specs import DeviceSpec

NAN_BYTE = 0xFF  # 0xFFFF and 0xFFFFFFFF are NaN in every float type
DEADLINE_S = 240.0


def make_device(num_cores: int = 2) -> DeviceSpec:
    return DeviceSpec(
        name="cpu",
        num_sms=num_cores,
        peak_flops_per_s=1e11,
        memory_bandwidth_bytes_per_s=1e10,
        memory_bytes=1 << 30,
        launch_overhead_s=1e-4,
    )


def make_prompt(length: int, seed: int = 0, vocab_size: int = 640) -> tuple[int, ...]:
    return tuple(np.random.default_rng([seed, length]).integers(3, vocab_size, length).tolist())


def cores_of_this_process() -> list[int]:
    """All that it may use, in an order that differs from that of the process which tests beside it."""
    cores = sorted(available_cores())
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % len(cores)
    return cores[first:] + cores[:first]


class CpuRig:
    def __init__(
        self,
        *,
        pool_mib: int = 32,
        block_bytes: int = 4096,
        poisoned: bool = True,
        num_cores: int = 1,
        executor: TorchCpuExecutor | None = None,
    ) -> None:
        """`executor` None makes one; tests of the CUDA executor bring theirs, which answers alike. Lanes are bound to
        their cores: on two, one thread waits for the other at each operation, and that for whatever else runs there.
        """
        self.executor = executor or TorchCpuExecutor(
            kv_pool_bytes=pool_mib << 20,
            block_bytes=block_bytes,
            cores=cores_of_this_process()[:num_cores],
            device=make_device(num_cores),
        )
        if poisoned and executor is None:
            # All but the block that pads reads, which nobody can write.
            self.executor._storage.pool[:-1].fill_(NAN_BYTE)
        if executor is None:  # else the threads of hundreds of tests would stay
            weakref.finalize(self, self.executor.close).atexit = False
        self._free_blocks = np.random.default_rng(0).permutation(self.executor.total_blocks)
        self._batch_id = 0
        self.infos: dict[str, ModelInfo] = {}
        self._next_row: dict[str, int] = {}
        self._tables: dict[str, np.ndarray] = {}

    def load(
        self,
        model: str,
        folder: Path,
        dtype: str | None = None,
        max_rows: int = 400,
        max_model_len: int | None = None,
        weights: str | None = None,
    ) -> ModelInfo:
        info = self.executor.load_model(
            ModelSource(model=model, source=str(folder), dtype=dtype, max_model_len=max_model_len, weights=weights)
        )
        return self._attach(info, max_rows)

    def wake(self, model: str, max_rows: int = 400) -> ModelInfo:
        return self._attach(self.executor.wake_model(model), max_rows)

    def _attach(self, info: ModelInfo, max_rows: int) -> ModelInfo:
        model = info.model
        table = np.zeros((max_rows, info.geometry.blocks_per_row), dtype=np.int64)
        self.executor.attach_model(info, table)
        if isinstance(self.executor, WarmingExecutor):
            self.executor.finish_captures()
        self.infos[model], self._tables[model], self._next_row[model] = info, table, 0
        return info

    def sequence(
        self, model: str, prompt: Sequence[int], max_new_tokens: int, *, base: str | None = None, **sampling: object
    ) -> TokenSequence:
        """Of an adapter, with `base`."""
        params = SamplingParams(max_tokens=max_new_tokens, **{"temperature": 0.0, **sampling})
        request = GenerateRequest(
            request_id=f"{model}-{len(prompt)}",
            model=model,
            prompt_token_ids=tuple(prompt),
            sampling=params,
            slo=Slo(ttft_s=1.0, tbt_s=1.0),
        )
        adapter = None if base is None else AdapterInUse(base, f"adapter {model}")
        sequence = TokenSequence.from_request(request, 0.0, adapter=adapter)
        self.give_rows(sequence, len(prompt) + max_new_tokens)
        return sequence

    def give_rows(self, sequence: TokenSequence, num_tokens: int) -> None:
        model = sequence.model
        geometry, table = self.infos[model].geometry, self._tables[model]
        while len(sequence.rows) * geometry.tokens_per_row < num_tokens:
            row = self._next_row[model]
            assert row < len(table), "the rig is out of rows"
            assert len(self._free_blocks) >= geometry.blocks_per_row, "the rig is out of blocks"
            taken, self._free_blocks = np.split(self._free_blocks, [geometry.blocks_per_row])
            table[row] = taken
            self._next_row[model] += 1
            sequence.rows.append(row)

    def wait(self) -> LaunchCompletion:
        done = self.executor.wait(self.executor.now() + DEADLINE_S)
        assert len(done) == 1, "expected one completion"
        return done[0]

    def run(self, launch: ComputeLaunch) -> tuple[tuple[SampledToken, ...], ...]:
        self.executor.submit(launch)
        return self.apply(self.wait())

    def apply(self, done: LaunchCompletion) -> tuple[tuple[SampledToken, ...], ...]:
        assert done.error is None, done.error
        assert done.finished_s >= done.started_s
        launch = done.launch
        num_layers = self.infos[launch.model].spec.num_layers
        for sequence, tokens in zip(sampling_sequences(launch, num_layers), done.tokens, strict=True):
            sequence.token_ids += [t.token_id for t in tokens]
        return done.tokens

    def prefill_slices(self, sequences: Sequence[TokenSequence], layers_per_slice: int) -> list[PrefillSlice]:
        self._batch_id += 1
        model = sequences[0].model
        num_layers = self.infos[model].spec.num_layers
        chunks = tuple(Chunk(s, 0, len(s.token_ids)) for s in sequences)
        return [
            PrefillSlice(
                batch_id=self._batch_id,
                model=model,
                chunks=chunks,
                first_layer=first,
                last_layer=min(first + layers_per_slice, num_layers),
            )
            for first in range(0, num_layers, layers_per_slice)
        ]

    def finish_prompts(self, sequences: Sequence[TokenSequence], *, fused: bool) -> LaunchCompletion:
        """What came of the last launch of whole prompts: one layer at a time, or in one fused step."""
        launches: Sequence[ComputeLaunch] = self.prefill_slices(sequences, layers_per_slice=1)
        if fused:
            launches = [MixedStep(model=sequences[0].model, chunks=launches[0].chunks, sequences=())]
        for launch in launches:
            self.executor.submit(launch)
            done = self.wait()
            assert done.error is None
        return done

    def prefill(self, sequences: Sequence[TokenSequence], layers_per_slice: int = 1000) -> None:
        for launch in self.prefill_slices(sequences, layers_per_slice):
            self.run(launch)

    def decode(self, sequences: Sequence[TokenSequence], num_tokens: int, steps_per_launch: int = 1) -> None:
        while num_tokens > 0:
            steps = min(steps_per_launch, num_tokens)
            self.run(DecodeStep(model=sequences[0].model, sequences=tuple(sequences), steps=steps))
            num_tokens -= steps

    def generate_chunked(self, sequences: Sequence[TokenSequence], num_tokens: int, chunk_tokens: int) -> None:
        """Prompts one after another in chunks, fused with decode of those done, until all have `num_tokens`."""
        model = sequences[0].model
        waiting = list(sequences)
        running: list[TokenSequence] = []
        while waiting or running:
            chunks = []
            if waiting:
                head = waiting[0]
                length = min(chunk_tokens, head.num_uncomputed_tokens)
                chunks = [Chunk(head, head.num_computed_tokens, length)]
            self.run(MixedStep(model=model, chunks=tuple(chunks), sequences=tuple(running)))
            for chunk in chunks:
                chunk.sequence.num_computed_tokens += chunk.length
                if chunk.sequence.num_output_tokens:
                    running.append(waiting.pop(0))
            running = [s for s in running if s.num_output_tokens < num_tokens]

    def over_prefix(self, donor: TokenSequence, cached_tokens: int, max_new_tokens: int) -> TokenSequence:
        """The prompt of `donor` again, prefilled over the KV that is there of it."""
        geometry = self.infos[donor.model].geometry
        rows = cached_tokens // geometry.tokens_per_row
        sequence = self.sequence(donor.model, donor.token_ids[: donor.num_prompt_tokens], max_new_tokens)
        sequence.rows[:rows] = donor.rows[:rows]
        start = rows * geometry.tokens_per_row
        chunk = Chunk(sequence, start, sequence.num_prompt_tokens - start)
        num_layers = self.infos[donor.model].spec.num_layers
        self.run(PrefillSlice(batch_id=999, model=donor.model, chunks=(chunk,), first_layer=0, last_layer=num_layers))
        return sequence

    def close(self) -> None:
        self.executor.close()


def outputs(sequences: Sequence[TokenSequence], num_tokens: int) -> list[list[int]]:
    return [s.token_ids[s.num_prompt_tokens :][:num_tokens] for s in sequences]
