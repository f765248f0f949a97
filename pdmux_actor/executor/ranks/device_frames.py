"""Defines what the leading rank of a unit of GPUs tells the others of a pass: arrays that each sends to its device."""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from pdmux_actor.models.rope import PromptPiece

Arrays = Mapping[str, npt.NDArray[np.generic]]


class ArrayOnWire(msgspec.Struct, frozen=True, array_like=True, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: npt.NDArray[np.generic]) -> "ArrayOnWire":
        return cls(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> npt.NDArray[np.generic]:
        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


def on_wire(arrays: Arrays) -> dict[str, ArrayOnWire]:
    return {name: ArrayOnWire.of(array) for name, array in arrays.items()}


class DeviceBatchOnWire(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A DeviceBatch without what is sampled. Chunks and prompts are the fields of ChunkExtent and PromptPiece."""

    arrays: dict[str, ArrayOnWire]
    chunks: tuple[tuple[int, int, int], ...]
    num_decodes: int
    has_prefix: bool
    prompts: tuple[tuple[int, int, int], ...]

    def prompt_pieces(self) -> tuple[PromptPiece, ...]:
        return tuple(PromptPiece(first=f, last=last, prompt_tokens=n) for f, last, n in self.prompts)


class DevicePass(msgspec.Struct, frozen=True, tag="device_pass", gc=False):
    """Layers `[first_layer, last_layer)` of a batch, as ForwardPass, on `num_cores` SMs from `first_core` on; -1: on
    the lane's whole share.
    """

    lane: int
    first_core: int
    num_cores: int
    model: str
    batch_id: int | None
    first_layer: int
    last_layer: int
    num_splits: int
    batch: DeviceBatchOnWire | None


class BucketInputs(msgspec.Struct, frozen=True, tag="bucket_inputs", gc=False):
    """Holds what a launch of decode steps of a bucket of `size` sequences begins with."""

    lane: int
    first_core: int
    num_cores: int
    model: str
    size: int
    arrays: dict[str, ArrayOnWire]


class DecodePass(msgspec.Struct, frozen=True, tag="decode_pass", gc=False):
    """One step of them. All but the first get its tokens from the lane's group."""

    lane: int
    first_core: int
    num_cores: int
    model: str
    size: int
    is_first: bool
    num_splits: int


DeviceFrame = DevicePass | BucketInputs | DecodePass
