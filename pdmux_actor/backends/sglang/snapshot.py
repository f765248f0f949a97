"""Defines what a decision inside SGLang's scheduler is made from, and what it says. Plain data: it can be recorded."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec


class SeenSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request as SGLang's scheduler holds it. `known_tokens` are prompt and output, `cached_tokens` of them have KV
    without a prefill.
    """

    request_id: str
    arrival_s: float
    prompt_tokens: int
    known_tokens: int
    cached_tokens: int
    ttft_s: float
    tbt_s: float


class SeenBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prefill batch that is on its way through the layers; `next_layer` of them are launched."""

    batch_id: int
    next_layer: int
    sequences: tuple[SeenSequence, ...]


class RanSlice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prefill slice that the last iteration launched."""

    batch: SeenBatch
    first_layer: int
    last_layer: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """SGLang's scheduler between two iterations of its loop: the decode lane is idle, slices may be on their way.

    `slice_ran` and `decode_s` are of the iteration before; `slices_s` are measured durations of slices that have ended
    since, in the order of their launches. `slices_on_lane` have not ended. `batch_ends`: the batch's last slice is on
    the lane. `free_tokens` is what KV admits now.
    """

    now_s: float
    waiting: tuple[SeenSequence, ...]
    running: tuple[SeenSequence, ...]
    batch: SeenBatch | None
    suspended: SeenBatch | None
    batch_ends: bool
    slices_on_lane: int
    slice_ran: RanSlice | None
    slices_s: tuple[float, ...]
    decode_s: float | None
    free_tokens: int
    used_tokens: int


class Directive(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The next iteration: `layers` of prefill (0: none), of a new batch with `start`, and a decode step with `decode`,
    on the partition `group` (an index of SGLang's stream groups). A new batch has at most `max_prompts` (0: no limit),
    taken `by_deadline` of their first tokens or as they came.
    """

    group: int
    layers: int = 0
    start: bool = False
    decode: bool = False
    max_prompts: int = 0
    by_deadline: bool = False

    def as_numbers(self) -> list[int]:
        return [self.group, self.layers, self.start, self.decode, self.max_prompts, self.by_deadline]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> "Directive":
        group, layers, start, decode, max_prompts, by_deadline = numbers
        return cls(
            group=group,
            layers=layers,
            start=bool(start),
            decode=bool(decode),
            max_prompts=max_prompts,
            by_deadline=bool(by_deadline),
        )


class DecisionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    snapshot: Snapshot
    directive: Directive


MAX_WAITING_SEEN = 64
SLO_KEY = "muxfleet"  # in a request's custom_params: (arrival_s, ttft_s, tbt_s), on the monotonic clock of the machine
DONE_KEY = "muxfleet_done"  # there too: how many of the prompt's last tokens are output that another unit produced
_NO_TARGET_S = float("inf")
_NO_TARGETS = (0.0, _NO_TARGET_S, _NO_TARGET_S)


class SchedulerView:
    """Reads; changes nothing. `Any` is SGLang's: its classes are not there where types are checked."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._batch_ids: dict[int, int] = {}
        self._next_batch_id = 0

    def running(self) -> tuple[SeenSequence, ...]:
        reqs = self._scheduler.running_batch.reqs
        return tuple([self._seen(req, 0) for req in reqs if not req.finished()])

    def waiting(self) -> tuple[SeenSequence, ...]:
        queue: Iterable[Any] = islice(self._scheduler.waiting_queue, MAX_WAITING_SEEN)
        return tuple([self._seen(req, int(req.num_matched_prefix_tokens)) for req in queue])

    def batch(self, batch: Any) -> SeenBatch:
        key = id(batch)
        if key not in self._batch_ids:
            self._next_batch_id += 1
            self._batch_ids[key] = self._next_batch_id
        cached: Sequence[int] = batch.prefix_lens or [0] * len(batch.reqs)
        sequences = [self._seen(req, int(length)) for req, length in zip(batch.reqs, cached, strict=True)]
        return SeenBatch(batch_id=self._batch_ids[key], next_layer=batch.split_index, sequences=tuple(sequences))

    def forget_batch(self, batch: Any) -> None:
        """It has ended: another object may get its address."""
        self._batch_ids.pop(id(batch), None)

    def token_counts(self) -> tuple[int, int]:
        """Tokens of KV that requests hold, and that only the prefix cache holds."""
        scheduler = self._scheduler
        cached = int(scheduler.tree_cache.evictable_size())
        free = int(scheduler.token_to_kv_pool_allocator.available_size())
        return int(scheduler.max_total_num_tokens) - free - cached, cached

    def due_s(self, req: Any) -> float:
        """Returns when the first token is due."""
        arrival_s, ttft_s, _ = _targets(req)
        return _NO_TARGET_S if req.output_ids else arrival_s + ttft_s

    def _seen(self, req: Any, cached_tokens: int) -> SeenSequence:
        arrival_s, ttft_s, tbt_s = _targets(req)
        prompt_tokens = len(req.origin_input_ids)
        return SeenSequence(
            request_id=req.rid,
            arrival_s=arrival_s,
            prompt_tokens=prompt_tokens,
            known_tokens=prompt_tokens + len(req.output_ids),
            cached_tokens=cached_tokens,
            ttft_s=ttft_s,
            tbt_s=tbt_s,
        )


def _targets(req: Any) -> tuple[float, float, float]:
    """(arrival_s, ttft_s, tbt_s); SGLang's own requests have none."""
    arrival_s, ttft_s, tbt_s = (req.sampling_params.custom_params or {}).get(SLO_KEY) or _NO_TARGETS
    return arrival_s, ttft_s, tbt_s
