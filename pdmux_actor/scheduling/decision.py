"""Defines what is logged of a launch."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from pdmux_actor.scheduling.launch import Lane


class DecisionKind(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    DROP = "drop"
    PARTITION = "partition"


LANE_OF: Mapping[str, Lane] = MappingProxyType(
    {
        DecisionKind.PREFILL: Lane.PREFILL,
        DecisionKind.DECODE: Lane.DECODE,
        DecisionKind.MIXED: Lane.DECODE,
    }
)


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One launch. Times are in seconds of the engine's clock.

    `prefill_sms` and `decode_sms` are the partition it runs under. `chunks` are (start, length) of the prompt tokens,
    `num_decoding` counts the decoding sequences. Of a decode that had a part of the decode share, `decode_lane` is
    which of the decode lanes it was on and `part_sms` its SMs; else both are 0. `predicted_s` is what was expected when
    it took off: beside a prefill, a decode's worst case. `ready_s` is since when its lane idled although it had work
    and SMs to do it; None when work and launch came together. `started_s` and `finished_s` are measured, None while it
    is in flight.

    A Struct, since one is made per launch (a frozen dataclass takes five times as long).
    """

    index: int  # counts a scheduler's decisions from 0
    now_s: float
    kind: DecisionKind
    prefill_sms: int
    decode_sms: int
    model: str = ""
    batch_id: int = 0
    first_layer: int = 0
    last_layer: int = 0
    chunks: tuple[tuple[int, int], ...] = ()
    num_decoding: int = 0
    steps: int = 0
    decode_lane: int = 0
    part_sms: int = 0
    request_ids: tuple[str, ...] = ()
    used_blocks: int = 0
    predicted_s: float = 0.0
    ready_s: float | None = None
    started_s: float | None = None
    finished_s: float | None = None
    failed: bool = False

    @property
    def lane(self) -> Lane | None:
        """None for what runs on no lane."""
        return LANE_OF.get(self.kind)

    @property
    def prompt_tokens(self) -> int:
        return sum(length for _, length in self.chunks)

    @property
    def measured_s(self) -> float | None:
        return None if self.started_s is None or self.finished_s is None else self.finished_s - self.started_s

    @property
    def bubble_s(self) -> float:
        """Returns how long the lane idled before this launch although it had work and SMs."""
        began_s = self.now_s if self.started_s is None else self.started_s
        return 0.0 if self.ready_s is None else max(0.0, began_s - self.ready_s)

    @property
    def launch(self) -> str:
        """The launch in words."""
        spans = ",".join(f"{start}+{length}" for start, length in self.chunks)
        match self.kind:
            case DecisionKind.PREFILL:
                layers = f"[{self.first_layer},{self.last_layer})"
                return f"prefill {self.model} batch {self.batch_id} layers {layers} tokens {spans}"
            case DecisionKind.DECODE:
                part = f" on {self.part_sms}" if self.part_sms else ""
                return f"decode {self.model} x{self.steps}{part}"
            case DecisionKind.MIXED:
                return f"mixed {self.model} tokens {spans} decodes {self.num_decoding}"
            case DecisionKind.DROP:
                return f"drop batch {self.batch_id}"
            case DecisionKind.PARTITION:
                return f"partition prefill {self.prefill_sms} decode {self.decode_sms}"


class LogExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """The newest decisions of a log. `now_s`, on the engine's clock, and `unix_s` are the same instant."""

    now_s: float
    unix_s: float
    decisions: tuple[Decision, ...]
