"""Carries a launch's small arrays to the device in one asynchronous copy from pinned memory."""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT_BYTES = 16
_DTYPES: Mapping[np.dtype[np.generic], torch.dtype] = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float64): torch.float64,
}

Arrays = Mapping[str, npt.NDArray[np.generic]]


class HostStage:
    """One per lane, which has two launches at most: of its two buffers the one that the launch before the last one used
    is filled, so that no copy reads what changes. A launch sends once.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned, self._other = (self._allocate(64 * 1024) for _ in range(2))

    def send(
        self, arrays: Arrays, target: Tensor | None = None, read: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        """Device views of those of `arrays` that are `read` by their views, all by default; in order, each aligned.
        `target`: uint8 on the device, for a captured graph that reads from there; None allocates.
        """
        offsets, size_bytes = layout(arrays)
        self._pinned, self._other = self._other, self._pinned
        if size_bytes > len(self._pinned):
            self._pinned = self._allocate(size_bytes + size_bytes // 4)
        host = self._pinned.numpy()
        for name, array in arrays.items():
            flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
            host[offsets[name] : offsets[name] + flat.size] = flat
        if target is None:
            target = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        assert size_bytes <= len(target), "a launch's arrays outgrow the buffer of its graph"
        target[:size_bytes].copy_(self._pinned[:size_bytes], non_blocking=True)
        return views(target, arrays, read)

    def _allocate(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=self.device.type == "cuda")


def sent(array: npt.NDArray[np.generic], device: torch.device | None) -> Tensor:
    """Sends an array by itself, on the current stream: the host does not wait, and torch keeps the pinned memory until
    it was read. None: the CPU.
    """
    host = torch.from_numpy(array)
    if device is None or device.type != "cuda":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def layout(arrays: Arrays) -> tuple[dict[str, int], int]:
    """Offset of each array, and where the last one ends."""
    offsets, end = {}, 0
    for name, array in arrays.items():
        offsets[name] = end
        end += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offsets, end


def views(buffer: Tensor, arrays: Arrays, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """`buffer` as the arrays that lie in it; of `names` only, where each view more would cost microseconds."""
    offsets, _ = layout(arrays)
    return {
        name: buffer[offsets[name] : offsets[name] + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
        for name, array in arrays.items()
        if names is None or name in names
    }
