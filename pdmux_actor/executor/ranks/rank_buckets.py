"""Decode steps of several ranks: the leader samples, and all get the next step's tokens from the lane's group."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from pdmux_actor.executor.cuda.decode_bucket import DecodeBucket
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.device_sampler import SamplingRows
from pdmux_actor.executor.cuda.host_stage import Arrays, HostStage
from pdmux_actor.executor.cuda.shared_logits import SharedLogits
from pdmux_actor.executor.ranks.device_frames import ArrayOnWire, BucketInputs, DecodePass, DeviceFrame, on_wire
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.rank_frames import HeadPass, RankLink
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.models.lora import AdapterBatch

WHOLE_SHARE = -1


@dataclass(slots=True, kw_only=True)
class LeadingLane:
    """`first_core` and `num_cores` are the SMs of the launch that is being enqueued, as frames name them."""

    number: int
    link: RankLink
    group: LaneGroup
    first_core: int = WHOLE_SHARE
    num_cores: int = 0

    @contextmanager
    def together(self, frame: DeviceFrame | HeadPass) -> Iterator[None]:
        """Tells the others what this rank enqueues within it. What fails there ends the unit: the others wait in a sum
        that would never be complete.
        """
        try:
            self.link.tell(frame)
            yield
        except Exception as error:
            self.link.end_unit(f"a launch failed on the leading rank: {type(error).__name__}: {error}")
            raise

    @contextmanager
    def around_head(self, model: str, num_tokens: int) -> Iterator[None]:
        with self.together(HeadPass(self.number, self.first_core, self.num_cores, model, num_tokens)):
            yield


_SENT = ("token_ids", "positions", "row_places", "new_rows", "begun_rows", "begun_blocks")


class LeadingBucket(DecodeBucket):
    """A DecodeBucket whose steps all ranks do."""

    goes_on = False  # the others are told each launch's tokens

    def __init__(
        self,
        decoder: LayeredDecoder,
        kv: DeviceKv,
        size: int,
        max_rows: int,
        logits: SharedLogits | None = None,
        *,
        model: str,
        lane: LeadingLane,
    ) -> None:
        super().__init__(decoder, kv, size, max_rows, logits)
        self._model = model
        self._lane = lane
        self._is_first = True

    def _send(self, stage: HostStage, arrays: Arrays) -> None:
        lane = self._lane
        sent = on_wire({name: arrays[name] for name in _SENT if name in arrays})
        inputs = BucketInputs(lane.number, lane.first_core, lane.num_cores, self._model, self.size, sent)
        with lane.together(inputs):
            super()._send(stage, arrays)
        self._is_first = True

    def _forward(self, num_splits: int, adapters: AdapterBatch | None) -> Tensor:
        assert adapters is None, "units of several ranks take no adapters"
        lane, is_first = self._lane, self._is_first
        self._is_first = False
        step = DecodePass(lane.number, lane.first_core, lane.num_cores, self._model, self.size, is_first, num_splits)
        with lane.together(step):
            if not is_first:
                lane.group.from_leader(self._inputs["token_ids"])
            return super()._forward(num_splits, None)


class FollowingBucket(DecodeBucket):
    """Computes the same steps with this rank's heads and columns; samples nothing."""

    def take(self, stage: HostStage, sent: Mapping[str, ArrayOnWire]) -> None:
        unsampled = SamplingRows.of((), num_rows=self.size)
        self._send(stage, self._fixed_arrays((), unsampled) | {name: array.array() for name, array in sent.items()})

    def follow(self, group: LaneGroup, *, is_first: bool, num_splits: int) -> None:
        if not is_first:
            group.from_leader(self._inputs["token_ids"])
            self._advance_positions()
        self._forward(num_splits, None)
