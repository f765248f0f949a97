"""Defines what is measured of an engine, and the Protocol by which engines let themselves be measured."""

from dataclasses import dataclass
from typing import Protocol

from profiler.batch_features import BatchFeatures, batch_features
from profiler.latency import ChunkShape
from profiler.specs import DeviceSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """`prompts` alike beside `sequences` alike, on `sms` SMs: a prefill, a decode step, or both fused."""

    sms: int
    prompts: int = 0
    new_tokens: int = 0
    context_tokens: int = 0
    sequences: int = 0
    depth: int = 0

    @property
    def chunks(self) -> tuple[ChunkShape, ...]:
        return (ChunkShape(self.new_tokens, self.context_tokens),) * self.prompts

    @property
    def contexts(self) -> tuple[int, ...]:
        return (self.depth,) * self.sequences

    @property
    def phase(self) -> str:
        if self.prompts and self.sequences:
            return "mixed"
        return "prefill" if self.prompts else "decode"

    @property
    def features(self) -> BatchFeatures[float]:
        return batch_features(self.chunks, self.contexts)

    @property
    def kv_tokens(self) -> int:
        """Returns the tokens that the launch needs KV memory for, itself included."""
        return self.prompts * (self.new_tokens + self.context_tokens) + self.sequences * (self.depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """`shares` are the SM counts that a lane can have, rising; the last is the whole device. `decode_shares` are the
    decode lane's where they are others. `fuses`: prompts may be fused into decode steps.
    """

    shares: tuple[int, ...]
    max_sequence_tokens: int
    max_batch_tokens: int
    max_sequences: int
    max_kv_tokens: int
    decode_shares: tuple[int, ...] | None = None
    fuses: bool = True

    @property
    def shares_of_decode(self) -> tuple[int, ...]:
        return self.shares if self.decode_shares is None else self.decode_shares

    def allow(self, launch: LaunchShape) -> bool:
        if launch.phase == "mixed" and not self.fuses:
            return False
        prefills = not launch.prompts or launch.sms in self.shares
        return prefills and (not launch.sequences or launch.sms in self.shares_of_decode)


class Probe(Protocol):
    """One model on an otherwise idle engine. Implementations warm up by themselves; `spec` is what runs, with the dtype
    in use. The profiler takes statistics over many calls.
    """

    spec: ModelSpec
    device: DeviceSpec
    num_gpus: int
    limits: ProbeLimits

    def time_s(self, launch: LaunchShape) -> float:
        """Seconds of one launch with nothing beside it."""
        ...

    def time_beside_s(self, decode: LaunchShape, prefill: LaunchShape) -> float:
        """Seconds of one decode step that ran beside a prefill all the time. Their SMs add up to the device at most."""
        ...

    def close(self) -> None: ...
