"""SM partitions: disjoint CUDA green contexts. The only file that calls the CUDA driver API.

The driver promises disjoint SMs within one split alone. So one split makes atoms, the smallest groups that it keeps in
whole clusters, and a context has the atoms of a range: the driver admits several resources in one descriptor if they
are of one split, its remainder included.

Where it does not, pairs remain: each splits the device into a group for the one lane and the remainder for the other,
and lanes of different pairs may share SMs. A context costs about 2 MB (MuxWise §4.5) and lives until `close`. torch's
own green contexts take a number of SMs each and no split: nothing says that two of them are disjoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pdmux_actor.errors import PartitioningUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class SmPair:
    """Holds what the driver gave, which can be a few SMs beside what was asked for; the streams are raw handles."""

    decode_sms: int
    prefill_sms: int
    decode_stream: int
    prefill_stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SmResource:
    """`step_sms` is the least step that keeps clusters whole: the larger of minimum partition and alignment."""

    num_sms: int
    step_sms: int


class GreenContexts:
    """`driver` is cuda.bindings.driver, or whatever answers like it."""

    def __init__(self, driver: Any, device_index: int) -> None:
        """The primary context must be active (torch initialised).

        Raises:
            PartitioningUnavailable: the driver or the device has no green contexts.
        """
        self._driver = driver
        self._device = self._call("cuDeviceGet", device_index)
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        self._all_sms = self._call("cuDeviceGetDevResource", self._device, kind)
        self._contexts: list[Any] = []
        self._streams: list[Any] = []
        self._atoms: list[list[Any]] = []

    @property
    def resource(self) -> SmResource:
        sm = self._all_sms.sm
        step_sms = max(getattr(sm, "minSmPartitionSize", 0), getattr(sm, "smCoscheduledAlignment", 0))
        # Drivers before CUDA 13 leave the fields at 0: 8 SMs are legal on every architecture since sm_80.
        return SmResource(num_sms=sm.smCount, step_sms=step_sms or 8)

    def pairs(self, decode_shares: Sequence[int]) -> tuple[SmPair, ...]:
        """One pair for each share of SMs for decode, whose SMs are the group.

        Raises:
            PartitioningUnavailable: a share cannot be made; pairs made before it are gone.
        """
        try:
            return tuple(self._pair(share, group_is_decode=True) for share in decode_shares)
        except PartitioningUnavailable:
            self.close()
            raise

    def pair_for_prefill(self, prefill_sms: int) -> SmPair:
        """A pair whose group is for prefill. Raises PartitioningUnavailable."""
        return self._pair(prefill_sms, group_is_decode=False)

    def split_into_atoms(self) -> tuple[int, ...]:
        """Returns the SMs of each atom. What remains of the device is one, too, or belongs to the last where it is too
        small. Raises PartitioningUnavailable.
        """
        step_sms = self.resource.step_sms
        asked = self.resource.num_sms // step_sms
        groups, count, rest = self._call("cuDevSmResourceSplitByCount", asked, self._all_sms, 0, step_sms)
        self._atoms = [[group] for group in groups[:count]]
        if not self._atoms:
            reason = f"{asked} groups of {step_sms} SMs cannot be split off"
            raise PartitioningUnavailable(call="cuDevSmResourceSplitByCount", reason=reason, remedy=_REMEDY)
        if rest.sm.smCount >= step_sms:
            self._atoms.append([rest])
        elif rest.sm.smCount:
            self._atoms[-1].append(rest)
        return tuple(sum(resource.sm.smCount for resource in atom) for atom in self._atoms)

    def stream_of_atoms(self, first: int, end: int, *, is_decode: bool) -> int:
        """A stream on atoms `[first, end)`. Raises PartitioningUnavailable."""
        resources = [resource for atom in self._atoms[first:end] for resource in atom]
        return int(self._stream(resources, priority=-1 if is_decode else 0))

    def close(self) -> None:
        """Destroys streams, then contexts: the other way round the driver refuses the streams."""
        for stream in self._streams:
            self._call("cuStreamDestroy", stream)
        for context in self._contexts:
            self._call("cuGreenCtxDestroy", context)
        self._streams, self._contexts = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pair(self, group_sms: int, *, group_is_decode: bool) -> SmPair:
        # A context on fewer SMs than the least partition is refused, and the remainder is a context, too.
        least = self.resource.step_sms
        group_sms = min(group_sms, (self.resource.num_sms - least) // least * least)
        groups, count, rest = self._call("cuDevSmResourceSplitByCount", 1, self._all_sms, 0, group_sms)
        if count != 1 or rest.sm.smCount == 0:
            raise PartitioningUnavailable(
                call="cuDevSmResourceSplitByCount", reason=f"{group_sms} SMs cannot be split off", remedy=_REMEDY
            )
        decode, prefill = (groups[0], rest) if group_is_decode else (rest, groups[0])
        return SmPair(
            decode_sms=decode.sm.smCount,
            prefill_sms=prefill.sm.smCount,
            # Decode has priority where both lanes wait for the same hardware queue.
            decode_stream=int(self._stream([decode], priority=-1)),
            prefill_stream=int(self._stream([prefill], priority=0)),
        )

    def _stream(self, resources: Sequence[Any], *, priority: int) -> Any:
        descriptor = self._call("cuDevResourceGenerateDesc", list(resources), len(resources))
        flag = int(self._driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        context = self._call("cuGreenCtxCreate", descriptor, self._device, flag)
        self._contexts.append(context)
        non_blocking = int(self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        stream = self._call("cuGreenCtxStreamCreate", context, non_blocking, priority)
        self._streams.append(stream)
        return stream

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            error, *values = getattr(self._driver, name)(*arguments)
        except (RuntimeError, AttributeError) as missing:  # no libcuda, or one without this function
            raise PartitioningUnavailable(call=name, reason=str(missing), remedy=_REMEDY) from missing
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise PartitioningUnavailable(call=name, reason=f"{error.name} ({int(error)})", remedy=_REMEDY)
        return values[0] if len(values) == 1 else tuple(values)


_REMEDY = "install an NVIDIA driver of release 550 or newer on a GPU of sm_80 or newer"
