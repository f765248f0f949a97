"""Decides which CUDA stream a lane launches on under a partition: green contexts' where they exist, plain ones
elsewhere.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from pdmux_actor.errors import PartitioningUnavailable
from pdmux_actor.executor.cuda.green_contexts import GreenContexts, SmPair, SmResource
from pdmux_actor.scheduling.launch import Lane

_LOG = logging.getLogger(__name__)

# Fewer partitions mean fewer captured graphs: 16-SM steps lose little to finer ones (MuxWise §3.3.2).
PARTITION_STEP_SMS = 16
_DECODE_PRIORITY = -1


class PartitionStreams(Protocol):
    """`step_sms` is the granularity of shares; `kind` says how, for people."""

    kind: str
    step_sms: int
    unpartitioned_reason: str | None

    def stream(self, lane: Lane, sms: int) -> Any:
        """The torch stream for `lane` with `sms` SMs: decode has the first ones of the device, prefill the last."""
        ...

    def part_stream(self, first_sm: int, sms: int) -> Any:
        """Returns the stream of one of several decodes at once, on SMs `[first_sm, first_sm + sms)`."""
        ...

    def close(self) -> None: ...


class PlainStreams:
    """One stream per lane, and the whole device for all: what remains when it cannot be partitioned."""

    def __init__(self, device: torch.device, num_sms: int, reason: str) -> None:
        self.kind = f"plain streams ({reason})"
        self.unpartitioned_reason: str | None = reason
        self.step_sms = min(PARTITION_STEP_SMS, max(1, num_sms // 2))
        self._streams: Mapping[Lane, Any] = {
            Lane.DECODE: torch.cuda.Stream(device, priority=_DECODE_PRIORITY),
            Lane.PREFILL: torch.cuda.Stream(device),
        }
        self._device = device
        self._parts: dict[int, Any] = {}  # by their first SM

    def stream(self, lane: Lane, sms: int) -> Any:
        return self._streams[lane]

    def part_stream(self, first_sm: int, sms: int) -> Any:
        if first_sm not in self._parts:
            self._parts[first_sm] = torch.cuda.Stream(self._device, priority=_DECODE_PRIORITY)
        return self._parts[first_sm]

    def close(self) -> None:
        pass


class GreenStreams:
    """A stream per lane and partition; a lane that has the device to itself launches outside all green contexts."""

    kind = "green contexts"

    def __init__(self, contexts: GreenContexts, *, whole: "PartitionStreams", wrap: Callable[[int], Any]) -> None:
        """`whole` has the streams of lanes alone on the device; `wrap` makes a torch stream of a raw handle."""
        self.unpartitioned_reason: str | None = None
        self.step_sms = step = partition_step(contexts.resource)
        self._num_sms = contexts.resource.num_sms
        self._contexts = contexts
        self._whole = whole
        self._wrap = wrap
        shares = range(step, self._num_sms, step)
        self._streams: dict[tuple[Lane, int], Any] = {}
        for share, pair in zip(shares, contexts.pairs(shares), strict=True):
            self._keep(share, pair)

    def stream(self, lane: Lane, sms: int) -> Any:
        if sms >= self._num_sms:
            return self._whole.stream(lane, sms)
        if (lane, sms) not in self._streams:
            # Decode's shares are steps, prefill's the rest; measurements of prefill alone ask for steps, too.
            prefill_sms = sms if lane is Lane.PREFILL else self._num_sms - sms
            self._keep(self._num_sms - prefill_sms, self._contexts.pair_for_prefill(prefill_sms))
        return self._streams[lane, sms]

    def part_stream(self, first_sm: int, sms: int) -> Any:
        raise AssertionError("decode is not divided: its SMs and prefill's are of pairs")

    def _keep(self, decode_share: int, pair: SmPair) -> None:
        if pair.decode_sms != decode_share:
            _LOG.info(
                "of %d SMs, %d were asked for decode, the driver gave %d and %d for prefill",
                self._num_sms,
                decode_share,
                pair.decode_sms,
                pair.prefill_sms,
            )
        for lane, share, handle in (
            (Lane.DECODE, decode_share, pair.decode_stream),
            (Lane.PREFILL, self._num_sms - decode_share, pair.prefill_stream),
        ):
            if (lane, share) not in self._streams:
                self._streams[lane, share] = self._wrap(handle)

    def close(self) -> None:
        self._contexts.close()


class SlotStreams:
    """A stream per range of slots, for any number of decodes at once: all ranges are of one split of the device, so
    that such without a common slot have no SM in common. Contexts are made when first needed.
    """

    kind = "green contexts of slots"

    def __init__(self, contexts: GreenContexts, *, whole: PartitionStreams, wrap: Callable[[int], Any]) -> None:
        """Takes the arguments of GreenStreams."""
        self.unpartitioned_reason: str | None = None
        self.step_sms = partition_step(contexts.resource)
        self._num_sms = contexts.resource.num_sms
        self._num_slots = contexts.split_into_slots(self.step_sms)
        self._contexts = contexts
        self._whole = whole
        self._wrap = wrap
        self._streams: dict[tuple[Lane, int, int], Any] = {}

    def stream(self, lane: Lane, sms: int) -> Any:
        if sms >= self._num_sms:
            return self._whole.stream(lane, sms)
        if lane is Lane.DECODE:
            return self._range(lane, 0, max(1, round(sms / self.step_sms)))
        first = round((self._num_sms - sms) / self.step_sms)
        return self._range(lane, min(first, self._num_slots - 1), self._num_slots)

    def part_stream(self, first_sm: int, sms: int) -> Any:
        first = round(first_sm / self.step_sms)
        return self._range(Lane.DECODE, first, first + max(1, round(sms / self.step_sms)))

    def close(self) -> None:
        self._contexts.close()

    def _range(self, lane: Lane, first: int, end: int) -> Any:
        end = min(end, self._num_slots)
        assert first < end, f"slots [{first}, {end}) of {self._num_slots}"
        key = lane, first, end
        if key not in self._streams:
            self._streams[key] = self._wrap(self._contexts.slots_stream(first, end, is_decode=lane is Lane.DECODE))
        return self._streams[key]


def partition_step(resource: SmResource) -> int:
    """Granularity of shares. Raises PartitioningUnavailable: too few SMs for two."""
    # A slice of a GPU (MIG) is cut finer, so that there is something to choose from.
    step = max(1, min(PARTITION_STEP_SMS, resource.num_sms // 4) // resource.step_sms) * resource.step_sms
    if resource.num_sms < 2 * step:
        reason = f"{resource.num_sms} SMs are too few for two partitions of {step}"
        raise PartitioningUnavailable(call="SM partitions", reason=reason, remedy="use a larger slice of the GPU")
    return step


def open_partition_streams(device: torch.device, num_sms: int, *, divides_decode: bool = False) -> PartitionStreams:
    """Green contexts if the driver has them; otherwise plain streams, and a warning that says why."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return _plain(device, num_sms, "the Python package cuda-bindings is not installed")
    try:
        return (SlotStreams if divides_decode else GreenStreams)(
            GreenContexts(driver, device.index or 0),
            whole=PlainStreams(device, num_sms, "whole device"),
            wrap=lambda handle: torch.cuda.ExternalStream(handle, device),
        )
    except PartitioningUnavailable as error:
        return _plain(device, num_sms, str(error))


def _plain(device: torch.device, num_sms: int, reason: str) -> PlainStreams:
    _LOG.warning("the GPU is not partitioned, prefill and decode compete for all SMs: %s", reason)
    return PlainStreams(device, num_sms, reason)
