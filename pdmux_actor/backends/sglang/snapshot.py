"""Defines what a decision inside SGLang's scheduler is made from, and what it says. Plain data: it can be recorded."""

from collections.abc import Sequence

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
