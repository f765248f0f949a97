"""A decoder's weights in one stretch of host memory, in the plain layout: what wakes needs no file, parsing or cast."""

import mmap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.decoder import AnyConfig, AnyWeights, DecoderWeights, LayeredDecoder, LayerWeights
from pdmux_actor.models.linear import Classifier, Projection
from pdmux_actor.models.module_weights import ModuleWeights
from pdmux_actor.models.operators import HeadNorms

_ALIGNMENT = 64  # a cache line; wide loads and copy engines want no less
PIECE_BYTES = 32 << 20

Copying = Callable[[], AbstractContextManager[object]]
"""Within it copies need not be done before the next one starts; at its end all are."""


class Pinning(Protocol):
    """Locks pages of host memory, so that a device copies from and to them by itself."""

    def pin(self, memory: Tensor) -> None: ...

    def unpin(self, memory: Tensor) -> None: ...


class HostRegion:
    """Pages of its own, given back to the system as soon as no tensor in them is left. They are locked in pieces of
    PIECE_BYTES while they are filled: the driver holds up whoever launches while it locks, for seconds with all of a
    large model's. It copies within one locked piece only.
    """

    def __init__(self, num_bytes: int, pinning: Pinning | None = None) -> None:
        """`pinning` None: they are not locked."""
        self._pages = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # far fewer of them to map, and to pin
            with suppress(OSError):  # of a kernel that has none
                self._pages.madvise(mmap.MADV_HUGEPAGE)
        self._filled_bytes = 0
        self._pinning = pinning
        self._pinned: list[Tensor] = []
        self.whole = torch.frombuffer(self._pages, dtype=torch.uint8)

    def take(self, tensor: Tensor) -> Tensor:
        """Begins to copy a tensor to where there is room for it yet."""
        target = torch.frombuffer(self._pages, dtype=tensor.dtype, count=tensor.numel(), offset=self._filled_bytes)
        self._filled_bytes += _aligned(tensor.numel() * tensor.dtype.itemsize)
        for part, source in self.parts(target, tensor):
            self._pin_as_far_as(part)
            part.copy_(source, non_blocking=True)
        return target.view(tensor.shape)

    def parts(self, taken: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """A tensor that was taken, and another one of its size, flat and cut where pieces end."""
        flat, other_flat = taken.view(-1), other.reshape(-1)
        first_byte = taken.data_ptr() - self.whole.data_ptr()
        first = 0
        while first < len(flat):
            left_bytes = PIECE_BYTES - (first_byte + first * taken.itemsize) % PIECE_BYTES
            last = min(len(flat), first + left_bytes // taken.itemsize)
            yield flat[first:last], other_flat[first:last]
            first = last

    def _pin_as_far_as(self, part: Tensor) -> None:
        end_byte = part.data_ptr() + part.nbytes - self.whole.data_ptr()
        while self._pinning is not None and len(self._pinned) * PIECE_BYTES < end_byte:
            first_byte = len(self._pinned) * PIECE_BYTES
            piece = self.whole[first_byte : first_byte + PIECE_BYTES]
            self._pinning.pin(piece)
            self._pinned.append(piece)

    def let_go_of_a_piece(self) -> bool:
        """Unlocks a piece, and gives its pages back to the system: nobody reads them or copies to them any more.
        Returns whether one was locked.
        """
        if self._pinning is None or not self._pinned:
            return False
        piece = self._pinned.pop()
        self._pinning.unpin(piece)
        first_byte = piece.data_ptr() - self.whole.data_ptr()
        # To unmap all of a large model at once takes as long as several steps.
        if hasattr(mmap, "MADV_DONTNEED") and first_byte % mmap.PAGESIZE == 0:
            self._pages.madvise(mmap.MADV_DONTNEED, first_byte, piece.nbytes)
        return True

    def let_go(self) -> None:
        """Lets go of all pieces."""
        while self.let_go_of_a_piece():
            pass


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

        def plain(projection: Projection) -> Projection:
            return projection.copied(region.take, packed=False)

        weights = copied(decoder.weights, region.take, plain)
        return HostCopy(info=info, config=decoder.config, weights=weights, region=region)


def packed_from_host(host: HostCopy) -> AnyWeights:
    """Packs weights for products on a CPU, whose layout is made from the host copy itself."""
    return copied(host.weights, torch.clone, lambda projection: projection.repacked())


def moved_from_host(host: HostCopy, device: torch.device, copying: Copying) -> AnyWeights:
    def moved(tensor: Tensor) -> Tensor:
        target = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        with copying():
            for part, on_device in host.region.parts(tensor, target):
                on_device.copy_(part, non_blocking=True)
        return target

    return copied(host.weights, moved, lambda projection: projection.copied(moved, packed=True))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


OfTensor = Callable[[Tensor], Tensor]
OfProjection = Callable[[Projection], Projection]


def copied(weights: AnyWeights, of_tensor: OfTensor, of_projection: OfProjection) -> AnyWeights:
    """Returns the same structure over other tensors. A classifier that is the embedding stays that."""
    if isinstance(weights, ModuleWeights):
        return weights.mapped(of_tensor, of_projection)
    embedding = of_tensor(weights.embedding)
    layers = tuple(_layer(layer, of_tensor, of_projection) for layer in weights.layers)
    final_norm, head = of_tensor(weights.final_norm), weights.lm_head
    is_tied = head.shares(weights.embedding)
    copied_head = head.copied(lambda _: embedding, packed=False) if is_tied else of_projection(head)
    assert isinstance(copied_head, Classifier), "a classifier's copy is one"
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, lm_head=copied_head)


def _layer(layer: LayerWeights, of_tensor: OfTensor, of_projection: OfProjection) -> LayerWeights:
    norms = layer.head_norms
    return LayerWeights(
        input_norm=of_tensor(layer.input_norm),
        qkv=of_projection(layer.qkv),
        head_norms=None if norms is None else HeadNorms(query=of_tensor(norms.query), key=of_tensor(norms.key)),
        output=of_projection(layer.output),
        post_attention_norm=of_tensor(layer.post_attention_norm),
        feed_forward=layer.feed_forward.copied(of_projection),
        sinks=None if layer.sinks is None else of_tensor(layer.sinks),
    )


def num_bytes_of(weights: AnyWeights, rounded: Callable[[int], int]) -> int:
    """Sums the bytes of all tensors, each `rounded`."""
    total = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal total
        total += rounded(tensor.numel() * tensor.dtype.itemsize)
        return tensor

    def count_projection(projection: Projection) -> Projection:
        nonlocal total
        total += sum(map(rounded, projection.tensor_bytes))
        return projection

    copied(weights, count, count_projection)
    return total
