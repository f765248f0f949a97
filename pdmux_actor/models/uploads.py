"""Copies tensors of a checkpoint to where they are computed with; to a GPU through pinned memory, a piece at a time.

The driver stages a copy from pageable memory itself, and holds a lock of the device while it does, also while the pages
of a file are only being read. Whoever launches anything meanwhile waits: beside eight threads that read an 8B model, a
decode step of another one took seconds on an H200, and the loop that launches it seemed to hang.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

STAGE_BYTES = 4 << 20

Upload = Callable[[Tensor, Tensor], None]
"""Copies the second tensor, which is on the host, into the first one, of the same shape: done when it returns."""


def copy_in_place(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def moved(device: torch.device | None, upload: Upload, tensor: Tensor) -> Tensor:
    """Returns a copy on `device`; the tensor itself where it is there."""
    if device is None or tensor.device == device:
        return tensor
    target = torch.empty_like(tensor, device=device)
    upload(target, tensor)
    return target


class Stages(Protocol):
    """Pinned memory, and a stream that nothing else is on. `Any` is an event of it."""

    def new_stage(self) -> Tensor:
        """STAGE_BYTES on the host."""
        ...

    def send(self, target: Tensor, staged: Tensor) -> Any:  # noqa: ANN401
        """Begins to copy; what it returns can be waited for."""
        ...

    def wait(self, event: Any) -> None:  # noqa: ANN401
        """Sleeps until the copy is done."""
        ...


class CudaStages:
    """`copies` is the one stream of a device on which weights come and go."""

    def __init__(self, copies: torch.cuda.Stream) -> None:
        self._stream = copies
        self._default = torch.cuda.default_stream(copies.device)

    def new_stage(self) -> Tensor:
        return torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=True)

    def send(self, target: Tensor, staged: Tensor) -> torch.cuda.Event:
        self._stream.wait_stream(self._default)  # its memory was somebody's of the default stream before
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as above
        with torch.cuda.stream(self._stream):
            target.copy_(staged, non_blocking=True)
            event.record(self._stream)
        return event

    def wait(self, event: torch.cuda.Event) -> None:
        event.synchronize()


@dataclass(slots=True)
class _Stage:
    memory: Tensor
    sent: Any = None


class StagedUpload:
    """Serves any number of threads: each fills one of two stages while the other is on its way."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._of_thread = threading.local()

    def __call__(self, target: Tensor, source: Tensor) -> None:
        if not target.is_contiguous():
            contiguous = torch.empty_like(target, memory_format=torch.contiguous_format)
            self(contiguous, source)
            target.copy_(contiguous)
            return
        flat, rest = target.view(-1), source.reshape(-1)
        at_once = STAGE_BYTES // target.itemsize
        pair = self._pair()
        try:
            for number, first in enumerate(range(0, len(flat), at_once)):
                stage, piece = pair[number % 2], flat[first : first + at_once]
                self._settle(stage)
                staged = stage.memory.view(target.dtype)[: len(piece)]
                staged.copy_(rest[first : first + at_once])
                stage.sent = self._stages.send(piece, staged)
        finally:  # also where a piece cannot be read: `target` may be another's memory as soon as nobody holds it
            for stage in pair:
                self._settle(stage)

    def _pair(self) -> tuple[_Stage, _Stage]:
        if not hasattr(self._of_thread, "pair"):
            self._of_thread.pair = _Stage(self._stages.new_stage()), _Stage(self._stages.new_stage())
        pair: tuple[_Stage, _Stage] = self._of_thread.pair
        return pair

    def _settle(self, stage: _Stage) -> None:
        if stage.sent is not None:
            self._stages.wait(stage.sent)
            stage.sent = None
