"""Defines what the leading rank of a unit tells the others, and what they answer."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from pdmux_actor.executor.packed_batch import DecodeGroup, PackedBatch, PackedChunk
from pdmux_actor.executor.ranks.device_frames import DeviceFrame
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.rope import PromptPiece
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from profiler.specs import DeviceSpec

_Ints = npt.NDArray[np.int64]
_WIRE = np.dtype(np.int32)


class RankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a rank's process starts with. `store` is the file through which ranks meet. On CPUs, `device` is what
    its `cores` can do; on GPUs, which are opened by their kind, the last two are as in `open_cuda_executor`.
    """

    rank: int
    num_ranks: int
    num_lanes: int
    store: str
    kv_pool_bytes: int
    block_bytes: int
    device: DeviceSpec | None = None
    cores: tuple[int, ...] = ()
    divides_decode: bool = False
    launch_limits: LaunchLimits = DEFAULT_LIMITS


class ChunkExtents(msgspec.Struct, frozen=True, array_like=True, gc=False):
    first: int
    length: int
    start: int
    rows: bytes


class GroupExtents(msgspec.Struct, frozen=True, array_like=True, gc=False):
    first: int
    context_tokens: bytes
    rows: bytes


class BatchOnWire(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A PackedBatch as arrays of int32, and the blocks of the rows that it begins: a row's blocks change only before
    its first token is written.
    """

    token_ids: bytes
    positions: bytes
    token_rows: bytes
    fresh_rows: bytes
    chunks: tuple[ChunkExtents, ...]
    decodes: tuple[GroupExtents, ...]
    prompts: tuple[tuple[int, int, int], ...]
    begun_rows: bytes
    begun_blocks: bytes

    @classmethod
    def of(cls, batch: PackedBatch, row_table: _Ints) -> "BatchOnWire":
        begun = np.unique(batch.token_rows[batch.token_offsets[:, 0].numpy() == 0])
        return cls(
            token_ids=_packed(batch.token_ids.numpy()),
            positions=_packed(batch.positions.numpy()),
            token_rows=_packed(batch.token_rows),
            fresh_rows=_packed(batch.fresh_rows),
            chunks=tuple(ChunkExtents(c.first, c.length, c.start, _packed(c.rows)) for c in batch.chunks),
            decodes=tuple(GroupExtents(g.first, _packed(g.context_tokens), _packed(g.rows)) for g in batch.decodes),
            prompts=tuple((p.first, p.last, p.prompt_tokens) for p in batch.prompts),
            begun_rows=_packed(begun),
            begun_blocks=_packed(row_table[begun]),
        )

    def note_blocks(self, row_table: _Ints) -> None:
        """Writes the blocks of begun rows into this rank's table."""
        rows = _ints(self.begun_rows)
        row_table[rows] = _ints(self.begun_blocks).reshape(len(rows), row_table.shape[1])

    def batch(self, tokens_per_row: int) -> PackedBatch:
        """Nothing of it is sampled here."""
        positions = _ints(self.positions)
        return PackedBatch(
            token_ids=torch.from_numpy(_ints(self.token_ids)),
            positions=torch.from_numpy(positions),
            token_rows=_ints(self.token_rows),
            token_offsets=torch.from_numpy(positions % tokens_per_row).unsqueeze(1),
            fresh_rows=_ints(self.fresh_rows),
            chunks=tuple(
                PackedChunk(first=c.first, length=c.length, start=c.start, rows=_ints(c.rows)) for c in self.chunks
            ),
            decodes=tuple(_group(group) for group in self.decodes),
            sample_tokens=torch.empty(0, dtype=torch.int64),
            prompts=tuple(PromptPiece(first=f, last=last, prompt_tokens=n) for f, last, n in self.prompts),
        )


class ForwardPass(msgspec.Struct, frozen=True, tag="forward", gc=False):
    """Layers `[first_layer, last_layer)` on a lane, which has `num_cores` from `first_core` on of each rank's. Between
    slices of prefill batch `batch_id` a rank keeps its hidden states; those after the first have no `batch`, and no
    `adapters`: TokenRuns of those tokens that are of one.
    """

    lane: int
    first_core: int
    num_cores: int
    model: str
    batch_id: int | None
    first_layer: int
    last_layer: int
    batch: BatchOnWire | None
    adapters: tuple[tuple[str | None, int, int], ...] = ()


class HeadPass(msgspec.Struct, frozen=True, tag="head", gc=False):
    """Products of the vocabulary's rows with hidden states of so many tokens, which the lane's group is sent next."""

    lane: int
    first_core: int
    num_cores: int
    model: str
    num_tokens: int


class DropBatch(msgspec.Struct, frozen=True, tag="drop", gc=False):
    batch_id: int


class AttachPart(msgspec.Struct, frozen=True, tag="attach"):
    model: str
    max_rows: int


class DetachPart(msgspec.Struct, frozen=True, tag="detach"):
    model: str


class LoadPart(msgspec.Struct, frozen=True, tag="load"):
    """Answered, as all that follow."""

    source: ModelSource


class LoadAdapterPart(msgspec.Struct, frozen=True, tag="load-adapter"):
    model: str
    base: str
    source: str
    revision: str | None


class ResizePart(msgspec.Struct, frozen=True, tag="resize"):
    total_blocks: int


class SleepPart(msgspec.Struct, frozen=True, tag="sleep"):
    model: str
    most_bytes: int


class WakePart(msgspec.Struct, frozen=True, tag="wake"):
    model: str


class ForgetPart(msgspec.Struct, frozen=True, tag="forget"):
    model: str


class PartDone(msgspec.Struct, frozen=True, tag="done"):
    value: int = 0


class PartFailed(msgspec.Struct, frozen=True, tag="failed"):
    """`kind` names what was raised; what it says is for people."""

    kind: str
    reason: str
    remedy: str


LanePass = ForwardPass | HeadPass | DeviceFrame
"""What a lane does, in order."""

PartCall = LoadPart | LoadAdapterPart | ResizePart | SleepPart | WakePart | ForgetPart
ToRank = LanePass | DropBatch | AttachPart | DetachPart | PartCall
FromRank = PartDone | PartFailed


def _packed(array: npt.NDArray[np.int64]) -> bytes:
    return array.astype(_WIRE).tobytes()


def _ints(data: bytes) -> _Ints:
    return np.frombuffer(data, dtype=_WIRE).astype(np.int64)


def _group(group: GroupExtents) -> DecodeGroup:
    context_tokens = _ints(group.context_tokens)
    rows = _ints(group.rows).reshape(len(context_tokens), -1)
    return DecodeGroup(first=group.first, context_tokens=context_tokens, rows=rows)


Result = TypeVar("Result")


class RankLink(Protocol):
    """Reaches the other ranks, wherever they run."""

    num_ranks: int

    def tell(self, frame: ToRank) -> None:
        """All ranks get it, all in the same order. May be called on any thread."""
        ...

    def call(self, frame: PartCall, meanwhile: Callable[[], Result]) -> tuple[tuple[FromRank, ...], Result]:
        """Returns every rank's answer, and what this one did while they worked. What `meanwhile` raises is raised when
        all have answered. One call at a time.
        """
        ...

    def end_unit(self, reason: str) -> None:
        """Ends this process and all ranks: they are no longer at the same place."""
        ...

    def close(self) -> None: ...
