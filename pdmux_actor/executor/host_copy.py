"""A decoder's weights in one stretch of host memory, in the plain layout: what wakes needs no file, parsing or cast."""

import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.decoder import AnyConfig, AnyWeights, LayeredDecoder
from pdmux_actor.models.linear import Projection
from pdmux_actor.models.weights_copy import copied, num_bytes_of

_ALIGNMENT = 64  # a cache line; wide loads and copy engines want no less

Copying = Callable[[], AbstractContextManager[object]]
"""Within it copies need not be done before the next one starts; at its end all are."""


class HostRegion:
    """Pages of its own, given back to the system as soon as no tensor in them is left."""

    def __init__(self, num_bytes: int) -> None:
        self._pages = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # far fewer of them to map, and to pin
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self._filled_bytes = 0
        self.whole = torch.frombuffer(self._pages, dtype=torch.uint8)

    def place(self, tensor: Tensor) -> Tensor:
        """Room for one like it."""
        target = torch.frombuffer(self._pages, dtype=tensor.dtype, count=tensor.numel(), offset=self._filled_bytes)
        self._filled_bytes += _aligned(tensor.numel() * tensor.dtype.itemsize)
        return target.view(tensor.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """`weights` cannot be computed with. `region` holds all of them."""

    info: ModelInfo
    config: AnyConfig
    weights: AnyWeights
    region: HostRegion


def host_bytes(weights: AnyWeights) -> int:
    """Returns what a copy of them takes."""
    return num_bytes_of(weights, _aligned)


def copy_to_host(info: ModelInfo, decoder: LayeredDecoder, region: HostRegion, copying: Copying) -> HostCopy:
    with copying():

        def placed(tensor: Tensor) -> Tensor:
            return region.place(tensor).copy_(tensor, non_blocking=True)

        def plain(projection: Projection) -> Projection:
            return projection.copied(placed, packed=False)

        return HostCopy(info=info, config=decoder.config, weights=copied(decoder.weights, placed, plain), region=region)


def packed_from_host(host: HostCopy) -> AnyWeights:
    """Packs weights for products on a CPU, whose layout is made from the host copy itself."""
    return copied(host.weights, torch.clone, lambda projection: projection.repacked())


def moved_from_host(host: HostCopy, device: torch.device, copying: Copying) -> AnyWeights:
    def moved(tensor: Tensor) -> Tensor:
        target = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        with copying():
            return target.copy_(tensor, non_blocking=True)

    return copied(host.weights, moved, lambda projection: projection.copied(moved, packed=True))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
