"""Decides which CUDA stream a lane launches on under a partition: green contexts' where they exist, plain ones
elsewhere.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
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

    def sms_given(self, lane: Lane, sms: int) -> int:
        """Returns the SMs that `stream(lane, sms)` has: the driver may have given others than were asked for."""
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

    def sms_given(self, lane: Lane, sms: int) -> int:
        return sms

    def close(self) -> None:
        pass


class AtomStreams:
    """A stream per lane and share, each on a range of the atoms of one split: decode from the first on, prefill up to
    the last. No range has more SMs than its share, so that lanes whose shares fit the device have none in common,
    whatever the two shares are. A lane that has the device to itself launches outside all green contexts.
    """

    kind = "green contexts of one split"

    def __init__(self, contexts: GreenContexts, *, whole: PartitionStreams, wrap: Callable[[int], Any]) -> None:
        """`whole` has the streams of lanes alone on the device; `wrap` makes a torch stream of a raw handle. The
        contexts of all shares are made at once: a driver that refuses one is found here.

        Raises PartitioningUnavailable; no context is left then.
        """
        self.unpartitioned_reason: str | None = None
        self.step_sms = step = partition_step(contexts.resource)
        self._num_sms = contexts.resource.num_sms
        self._contexts = contexts
        self._whole = whole
        self._wrap = wrap
        self._atoms = contexts.split_into_atoms()
        self._streams: dict[tuple[Lane, int, int], Any] = {}
        try:
            for share in range(step, self._num_sms - step + 1, step):
                for lane, sms in ((Lane.DECODE, share), (Lane.PREFILL, self._num_sms - share)):
                    self._check_fits(lane, sms)
                    self.stream(lane, sms)
        except PartitioningUnavailable:
            contexts.close()
            raise

    def stream(self, lane: Lane, sms: int) -> Any:
        if sms >= self._num_sms:
            return self._whole.stream(lane, sms)
        return self._range(lane, *self._atoms_of(lane, sms))

    def part_stream(self, first_sm: int, sms: int) -> Any:
        first = self._atoms_within(self._atoms, first_sm)
        return self._range(Lane.DECODE, first, max(first + 1, self._atoms_within(self._atoms, first_sm + sms)))

    def sms_given(self, lane: Lane, sms: int) -> int:
        if sms >= self._num_sms:
            return self._num_sms
        first, end = self._atoms_of(lane, sms)
        return sum(self._atoms[first:end])

    def close(self) -> None:
        self._contexts.close()

    def _check_fits(self, lane: Lane, sms: int) -> None:
        given = self.sms_given(lane, sms)
        if given > sms:
            reason = f"atoms of {self._atoms} SMs: the least that {lane.value} can have for {sms} is {given}"
            raise PartitioningUnavailable(call="SM partitions", reason=reason, remedy="a newer driver may split finer")

    def _atoms_of(self, lane: Lane, sms: int) -> tuple[int, int]:
        if lane is Lane.DECODE:
            return 0, max(1, self._atoms_within(self._atoms, sms))
        count = len(self._atoms)
        return count - max(1, self._atoms_within(self._atoms[::-1], sms)), count

    @staticmethod
    def _atoms_within(atoms: Sequence[int], sms: int) -> int:
        """How many of the first atoms have no more than `sms` SMs together."""
        return bisect_right(list(accumulate(atoms)), sms)

    def _range(self, lane: Lane, first: int, end: int) -> Any:
        assert first < end <= len(self._atoms), f"atoms [{first}, {end}) of {len(self._atoms)}"
        key = lane, first, end
        if key not in self._streams:
            self._streams[key] = self._wrap(self._contexts.stream_of_atoms(first, end, is_decode=lane is Lane.DECODE))
        return self._streams[key]


class PairStreams:
    """A stream per lane and share where the driver admits no ranges of atoms. Both lanes of a share are of one split;
    lanes of different shares may have SMs in common.
    """

    kind = "green contexts in pairs (lanes of different shares may share SMs)"

    def __init__(self, contexts: GreenContexts, *, whole: PartitionStreams, wrap: Callable[[int], Any]) -> None:
        """Takes the arguments of AtomStreams."""
        self.unpartitioned_reason: str | None = None
        self.step_sms = step = partition_step(contexts.resource)
        self._num_sms = contexts.resource.num_sms
        self._contexts = contexts
        self._whole = whole
        self._wrap = wrap
        shares = range(step, self._num_sms - step + 1, step)
        self._streams: dict[tuple[Lane, int], Any] = {}
        self._given: dict[tuple[Lane, int], int] = {}
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

    def sms_given(self, lane: Lane, sms: int) -> int:
        if sms >= self._num_sms:
            return self._num_sms
        self.stream(lane, sms)
        return self._given[lane, sms]

    def _keep(self, decode_share: int, pair: SmPair) -> None:
        for lane, share, given, handle in (
            (Lane.DECODE, decode_share, pair.decode_sms, pair.decode_stream),
            (Lane.PREFILL, self._num_sms - decode_share, pair.prefill_sms, pair.prefill_stream),
        ):
            if (lane, share) not in self._streams:
                self._streams[lane, share] = self._wrap(handle)
                self._given[lane, share] = given

    def close(self) -> None:
        self._contexts.close()


def partition_step(resource: SmResource) -> int:
    """Granularity of shares. Raises PartitioningUnavailable: too few SMs for two."""
    # A slice of a GPU (MIG) is cut finer, so that there is something to choose from.
    step = max(1, min(PARTITION_STEP_SMS, resource.num_sms // 4) // resource.step_sms) * resource.step_sms
    if resource.num_sms < 2 * step:
        reason = f"{resource.num_sms} SMs are too few for two partitions of {step}"
        raise PartitioningUnavailable(call="SM partitions", reason=reason, remedy="use a larger slice of the GPU")
    return step


def open_partition_streams(device: torch.device, num_sms: int, *, divides_decode: bool = False) -> PartitionStreams:
    """Green contexts if the driver has them, of one split if it can; otherwise plain streams, and a warning that says
    why.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        return _plain(device, num_sms, "the Python package cuda-bindings is not installed")
    try:
        return open_green_streams(
            lambda: GreenContexts(driver, device.index or 0),
            whole=PlainStreams(device, num_sms, "whole device"),
            wrap=lambda handle: torch.cuda.ExternalStream(handle, device),
            divides_decode=divides_decode,
        )
    except PartitioningUnavailable as error:
        return _plain(device, num_sms, str(error))


def open_green_streams(
    open_contexts: Callable[[], GreenContexts],
    *,
    whole: PartitionStreams,
    wrap: Callable[[int], Any],
    divides_decode: bool,
) -> PartitionStreams:
    """Ranges of one split; where the driver refuses them, pairs, which serve no divided decode.

    Raises PartitioningUnavailable: neither.
    """
    try:
        return AtomStreams(open_contexts(), whole=whole, wrap=wrap)
    except PartitioningUnavailable as error:
        if divides_decode:
            raise
        refused = error
    streams = PairStreams(open_contexts(), whole=whole, wrap=wrap)
    _LOG.warning("lanes of different shares may share SMs: the driver refuses ranges of one split: %s", refused)
    return streams


def _plain(device: torch.device, num_sms: int, reason: str) -> PlainStreams:
    _LOG.warning("the GPU is not partitioned, prefill and decode compete for all SMs: %s", reason)
    return PlainStreams(device, num_sms, reason)
