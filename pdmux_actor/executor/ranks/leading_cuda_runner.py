"""Enqueues a lane's launches on the leading rank of GPUs, and tells the others to enqueue the same passes."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.cuda_runner import CudaRunner, Enqueue
from pdmux_actor.executor.cuda.device_batch import DeviceBatch
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.ranks.device_frames import DeviceBatchOnWire, DevicePass, on_wire
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.lane_models import LaneModels
from pdmux_actor.executor.ranks.rank_buckets import WHOLE_SHARE, LeadingBucket, LeadingLane
from pdmux_actor.executor.ranks.rank_frames import DropBatch, RankLink
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, PrefillSlice


class LeadingCudaRunner(CudaRunner):
    """A CudaRunner whose passes all ranks do. One thread enqueues for all lanes and tells the others in that order, in
    which they enqueue, too: the groups' collectives are in one order on every rank.

    Steps are not captured: whether a rank captures depends on its own memory, and all would have to at once.
    """

    def __init__(
        self,
        number: int,
        models: Mapping[str, CudaModel],
        graphs: LaunchGraphs,
        device: torch.device,
        *,
        group: LaneGroup,
        link: RankLink,
    ) -> None:
        self._lane = LeadingLane(number=number, link=link, group=group)
        self._lane_models = LaneModels(models, group, self._of_lane, self._lane.around_head)
        super().__init__(self._lane_models, graphs, device)
        self._batch_id: int | None = None

    def prepare(
        self,
        launch: ComputeLaunch,
        sms: int,
        stream: Any,  # noqa: ANN401 - streams have no types
        *,
        first_sm: int = 0,
    ) -> Enqueue:
        self._batch_id = launch.batch_id if isinstance(launch, PrefillSlice) else None
        divides = isinstance(launch, DecodeStep) and launch.part is not None
        self._lane.first_core, self._lane.num_cores = first_sm if divides else WHOLE_SHARE, sms
        return super().prepare(launch, sms, stream, first_sm=first_sm)

    def drop_prefill(self, batch_id: int) -> None:
        super().drop_prefill(batch_id)
        self._lane.link.tell(DropBatch(batch_id))

    def forget_model(self, model: str) -> None:
        super().forget_model(model)
        self._lane_models.forget(model)

    def _of_lane(self, whole: CudaModel, decoder: LayeredDecoder) -> CudaModel:
        make_bucket = partial(LeadingBucket, model=whole.info.model, lane=self._lane)
        return replace(whole, decoder=decoder, make_bucket=make_bucket, buckets={})

    def _forward(
        self,
        model: CudaModel,
        batch: DeviceBatch,
        hidden: Tensor,
        rotary: Any,  # noqa: ANN401 - each decoder's own
        layers: tuple[int, int],
        num_splits: int,
        adapters: AdapterBatch | None,
    ) -> Tensor:
        assert adapters is None, "units of several ranks take no adapters"
        told = DevicePass(
            lane=self._lane.number,
            first_core=self._lane.first_core,
            num_cores=self._lane.num_cores,
            model=model.info.model,
            batch_id=self._batch_id,
            first_layer=layers[0],
            last_layer=layers[1],
            num_splits=num_splits,
            batch=_on_wire(batch) if layers[0] == 0 else None,
        )
        with self._lane.together(told):
            return super()._forward(model, batch, hidden, rotary, layers, num_splits, None)


def _on_wire(batch: DeviceBatch) -> DeviceBatchOnWire:
    sampled = {"sampled", "output_counts", *batch.sampling.arrays}
    return DeviceBatchOnWire(
        arrays=on_wire({name: array for name, array in batch.arrays.items() if name not in sampled}),
        chunks=tuple((c.first, c.length, c.context_tokens) for c in batch.chunks),
        num_decodes=batch.num_decodes,
        has_prefix=batch.has_prefix,
        prompts=tuple((p.first, p.last, p.prompt_tokens) for p in batch.prompts),
    )
