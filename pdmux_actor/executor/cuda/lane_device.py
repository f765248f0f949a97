"""Defines what the CUDA executor asks of a GPU beside tensors."""

import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol

import torch

from pdmux_actor.executor.cuda.partition_streams import PartitionStreams
from pdmux_actor.executor.cuda.sm_target import told_its_sms
from pdmux_actor.models.uploads import CudaStages, StagedUpload
from pdmux_actor.scheduling.launch import Lane


class Event(Protocol):
    def query(self) -> bool: ...


class LaneDevice(Protocol):
    """A test implements it on the CPU."""

    device: torch.device
    streams: PartitionStreams

    def on(self, stream: Any, sms: int, lane: Lane) -> AbstractContextManager[object]:
        """Makes `stream`, which has `sms` SMs, current, and kernels' choices those of `lane`."""
        ...

    def record(self, stream: Any) -> Event:
        """Is done when what `stream` holds now is."""
        ...

    def settle(self) -> None:
        """Waits for what was enqueued outside the lanes: their streams do not wait for the default one."""
        ...

    def free_memory_bytes(self) -> int:
        """Returns what can be had, torch's own reserves included."""
        ...

    def give_back(self) -> None:
        """Gives memory that torch keeps in reserve back to the device. May wait for all lanes, and for a capture."""
        ...

    def make_room(self, num_bytes: int) -> None:
        """Gives back what torch keeps where the device has less than `num_bytes` beside it."""
        ...

    def copying(self) -> AbstractContextManager[object]:
        """Makes the stream current that only copies: after what the default one holds, beside the lanes. At its end all
        is done.
        """
        ...

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies a tensor from memory of the host that is not locked, on the same stream. See `Upload`."""
        ...

    def pin(self, memory: torch.Tensor) -> None:
        """Locks pages of host memory, so that the GPU copies from and to them by itself."""
        ...

    def unpin(self, memory: torch.Tensor) -> None: ...


class CudaLanes:
    """Implements LaneDevice on a GPU of `num_sms` SMs. Matrix products of `told_lanes` are told the SMs of their
    stream; with `tells_attention` attention is, on all lanes.
    """

    def __init__(
        self,
        device: torch.device,
        streams: PartitionStreams,
        *,
        num_sms: int,
        told_lanes: Collection[Lane] = (),
        tells_attention: bool = False,
    ) -> None:
        self.device = device
        self.streams = streams
        self._num_sms = num_sms
        self._told_lanes = told_lanes
        self._tells_attention = tells_attention
        self.captures = threading.Lock()
        """Held by whoever captures: torch's allocator gives nothing back meanwhile, and does not say so."""
        self._staged: StagedUpload | None = None
        self._made_copies: torch.cuda.Stream | None = None

    @contextmanager
    def on(self, stream: Any, sms: int, lane: Lane) -> Iterator[None]:
        spared_sms, by_products = self._num_sms - sms, lane in self._told_lanes
        tells = by_products or (self._tells_attention and spared_sms)
        told = told_its_sms(torch, spared_sms, by_products=by_products) if tells else nullcontext()
        with torch.cuda.stream(stream), told:
            yield

    def record(self, stream: Any) -> Event:
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def settle(self) -> None:
        torch.cuda.default_stream(self.device).synchronize()

    def free_memory_bytes(self) -> int:
        held: dict[str, int] = torch.cuda.memory_stats(self.device)
        kept = held.get("reserved_bytes.all.current", 0) - held.get("allocated_bytes.all.current", 0)
        # Parts of blocks whose other parts are in use cannot be given back.
        free_bytes: int = torch.cuda.mem_get_info(self.device)[0]
        return free_bytes + kept - held.get("inactive_split_bytes.all.current", 0)

    def give_back(self) -> None:
        with self.captures:
            torch.cuda.empty_cache()

    def make_room(self, num_bytes: int) -> None:
        if torch.cuda.mem_get_info(self.device)[0] < num_bytes:
            self.give_back()

    @contextmanager
    def copying(self) -> Iterator[None]:
        stream = self._copies
        stream.wait_stream(torch.cuda.default_stream(self.device))
        try:
            with torch.cuda.stream(stream):
                yield
        finally:  # also of copies that broke off: their memory may be another's as soon as nobody holds it
            stream.synchronize()

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._staged is None:
            self._staged = StagedUpload(CudaStages(self._copies))
        self._staged(target, source)

    @property
    def _copies(self) -> torch.cuda.Stream:
        """One for all: torch hands out 32 in turn, of which the 32nd would be that on which prompts run and are
        captured, and a capture would take copies of weights into its graph.
        """
        if self._made_copies is None:
            self._made_copies = torch.cuda.Stream(self.device)
        return self._made_copies

    def pin(self, memory: torch.Tensor) -> None:
        memory.zero_()  # the system finds pages for it now, not while the driver holds up launches
        self._check(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))

    def unpin(self, memory: torch.Tensor) -> None:
        self._check(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()))

    def _check(self, result: Any) -> None:
        """CUDA keeps an error for this thread's next launch, which would fail in its place: that is one of nothing."""
        try:
            torch.cuda.check_error(result)
        except RuntimeError:
            with suppress(RuntimeError):
                torch.zeros(1, device=self.device)
            raise
