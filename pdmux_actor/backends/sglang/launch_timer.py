"""Times single launches inside SGLang's scheduler while it is idle: batches made by hand, over KV that nobody reads.

They take SGLang's own way through streams, partitions and graphs. `Any` is SGLang's. Names are those of SGLang 0.5.23.
"""

import inspect
import itertools
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from profiler.probe import LaunchShape


class LaunchClock:
    """Pairs of CUDA events around launches. Slices end in the order of their launches."""

    def __init__(self) -> None:
        self._slices: deque[tuple[Any, Any]] = deque()
        self._decode: tuple[Any, Any] | None = None

    @property
    def slices_on_lane(self) -> int:
        return len(self._slices)

    @staticmethod
    def now_s() -> float:
        """The machine's monotonic clock: requests tell on it when they arrived."""
        return time.monotonic()

    @staticmethod
    def mark() -> Any:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types there
        event.record()
        return event

    def slice_launched(self, began: Any) -> None:
        self._slices.append((began, self.mark()))

    def decode_launched(self, began: Any) -> None:
        self._decode = (began, self.mark())

    def wait_for_oldest_slice(self) -> None:
        if self._slices:
            self._slices[0][1].synchronize()

    def take_slices_s(self) -> tuple[float, ...]:
        """Durations of the slices that have ended since the last call."""
        ended = []
        while self._slices and self._slices[0][1].query():
            began, end = self._slices.popleft()
            ended.append(began.elapsed_time(end) / 1000.0)
        return tuple(ended)

    def take_decode_s(self) -> float | None:
        """Takes the time of the step that the loop has waited for; None when it launched none."""
        if self._decode is None:
            return None
        began, end = self._decode
        self._decode = None
        return float(began.elapsed_time(end)) / 1000.0


_FIRST_TOKEN = 5  # of a vocabulary: not a special one


class LaunchTimer:
    """Times launches, on every rank alike; the engine must have no request."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._run_batch = inspect.unwrap(type(scheduler).run_batch)  # the plugin's hooks would take it for traffic
        self._numbers = itertools.count()

    def time_s(self, launch: LaunchShape) -> float:
        """Times one launch with nothing beside it."""
        is_prefill = launch.phase == "prefill"
        with self._kv(), self._on_partition(launch.sms, is_prefill=is_prefill) as streams:
            batch = self._prefill(launch) if is_prefill else self._decode(launch)
            return self._timed(batch, streams[0 if is_prefill else 1], prefills=is_prefill).seconds()

    def time_beside_s(self, decode: LaunchShape, prefill: LaunchShape) -> float:
        """Times a decode step that begins beside a prefill, and has it there until its last layer."""
        with self._kv(), self._on_partition(decode.sms, is_prefill=False) as (prefill_stream, decode_stream):
            prefilling, decoding = self._prefill(prefill), self._decode(decode)
            self._launch_layer(prefilling, prefill_stream)
            timed = self._timed(decoding, decode_stream, prefills=False)
            while not timed.has_ended() and prefilling.split_index < self._num_layers:
                self._launch_layer(prefilling, prefill_stream)
            seconds = timed.seconds()
            if prefill_stream is not None:
                prefill_stream.synchronize()
            return seconds

    # ---- batches ----

    def _prefill(self, launch: LaunchShape) -> Any:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        reqs = [self._req(launch.context_tokens + launch.new_tokens) for _ in range(launch.prompts)]
        if launch.context_tokens:
            self._extended(reqs, launch.context_tokens)  # takes KV; what would be in it costs no time
            for req in reqs:
                req.prefix_len = launch.context_tokens
        batch = self._extended(reqs, launch.context_tokens + launch.new_tokens)
        if self._scheduler.enable_pdmux:
            batch.forward_mode = ForwardMode.SPLIT_PREFILL
            batch.split_index, batch.split_forward_count = 0, self._num_layers
        return batch

    def _decode(self, launch: LaunchShape) -> Any:
        batch = self._extended([self._req(launch.depth) for _ in range(launch.sequences)], launch.depth)
        batch.prefill_input_ids_cpu = None
        batch.input_ids = torch.full((launch.sequences,), _FIRST_TOKEN, dtype=torch.int64, device=batch.device)
        batch.prepare_for_decode()
        return batch

    def _req(self, tokens: int) -> Any:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(temperature=0, max_new_tokens=8)
        sampling.normalize(None)
        vocabulary = int(self._scheduler.model_config.vocab_size)
        ids = array("q", [(_FIRST_TOKEN + 7 * i) % vocabulary for i in range(tokens)])
        req = Req(
            rid=f"muxfleet-{next(self._numbers)}",
            origin_input_text="",
            origin_input_ids=ids,
            sampling_params=sampling,
            vocab_size=vocabulary,
        )
        req.full_untruncated_fill_ids = ids
        req.logprob_start_len = -1
        return req

    def _extended(self, reqs: list[Any], tokens: int) -> Any:
        """A batch with KV for the first `tokens` of each."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        scheduler = self._scheduler
        for req in reqs:
            req.extend_end = tokens
        batch = ScheduleBatch.init_new(
            reqs,
            scheduler.req_to_token_pool,
            scheduler.token_to_kv_pool_allocator,
            scheduler.tree_cache,
            scheduler.model_config,
            scheduler.enable_overlap,
            scheduler.spec_algorithm,
        )
        batch.prepare_for_extend()
        return batch

    # ---- launches ----

    @property
    def _num_layers(self) -> int:
        return int(self._scheduler.model_config.num_hidden_layers)

    def _launch_layer(self, batch: Any, stream: Any) -> None:
        batch.split_forward_count = 1
        with _on(stream, prefills=True):
            self._run_batch(self._scheduler, batch)
        batch.split_index += 1

    def _timed(self, batch: Any, stream: Any, *, prefills: bool) -> "_Timed":
        with _on(stream, prefills=prefills):
            began = LaunchClock.mark()
            self._run_batch(self._scheduler, batch)
            return _Timed(began, LaunchClock.mark())

    @contextmanager
    def _kv(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._scheduler.req_to_token_pool.clear()
            self._scheduler.token_to_kv_pool_allocator.clear()

    @contextmanager
    def _on_partition(self, sms: int, *, is_prefill: bool) -> Iterator[tuple[Any, Any]]:
        """Streams of (prefill, decode), None without multiplexing. The lane gets `sms`, the other one the rest."""
        scheduler = self._scheduler
        if not scheduler.enable_pdmux:
            yield None, None
            return
        from sglang.srt.multiplex import pdmux_context

        shares = [group[0 if is_prefill else 1] for group in scheduler.sm_counts]
        divided = shares[1:-1]
        whole = 0 if is_prefill else len(shares) - 1
        before = pdmux_context.get_current_stream_idx()
        group = divided.index(sms) + 1 if sms in divided else whole
        self._use_group(group)
        try:
            yield tuple(scheduler.stream_groups[group])
        finally:
            self._use_group(before)

    def _use_group(self, group: int) -> None:
        from sglang.srt.multiplex import pdmux_context

        pdmux_context.set_current_stream_idx(group)
        self._scheduler.tp_worker.model_runner.update_decode_attn_backend(group)


class _Timed:
    def __init__(self, began: Any, end: Any) -> None:
        self._began, self._end = began, end

    def has_ended(self) -> bool:
        return bool(self._end.query())

    def seconds(self) -> float:
        self._end.synchronize()
        return float(self._began.elapsed_time(self._end)) / 1000.0


@contextmanager
def _on(stream: Any, *, prefills: bool) -> Iterator[None]:
    from sglang.srt.distributed.parallel_state import pdmux_prefill_tp_group

    if stream is None:
        yield
        return
    with torch.cuda.stream(stream), pdmux_prefill_tp_group() if prefills else nullcontext():
        yield
