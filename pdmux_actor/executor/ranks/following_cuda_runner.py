"""Enqueues on a rank of GPUs that follows what the leading rank tells it to."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch

from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.cuda_runner import CudaRunner, UnfinishedDevicePrefill, upload_begun
from pdmux_actor.executor.cuda.device_batch import ChunkExtent, DeviceBatch
from pdmux_actor.executor.cuda.device_sampler import SamplingRows
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.ranks.device_frames import BucketInputs, DecodePass, DeviceBatchOnWire, DevicePass
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.lane_models import LaneModels
from pdmux_actor.executor.ranks.rank_buckets import FollowingBucket
from pdmux_actor.executor.ranks.rank_frames import HeadPass, LanePass
from pdmux_actor.executor.ranks.stream_order import StreamOrder
from pdmux_actor.models.decoder import LayeredDecoder


class FollowingCudaRunner(CudaRunner):
    """Implements following_rank.FollowsPasses: the leader's hidden states, with this rank's heads and columns."""

    def __init__(
        self,
        models: Mapping[str, CudaModel],
        graphs: LaunchGraphs,
        device: torch.device,
        group: LaneGroup,
    ) -> None:
        self._group = group
        self._lane_models = LaneModels(models, group, _of_lane)
        self._order = StreamOrder(torch.cuda) if device.type == "cuda" else None
        super().__init__(self._lane_models, graphs, device)

    def do(self, told: LanePass) -> None:
        model = self._lane_models[told.model]
        in_order = nullcontext() if self._order is None else self._order.behind_the_last()
        with model.workspace.using(self.arena), in_order:
            self._do(told, model)

    def _do(self, told: LanePass, model: CudaModel) -> None:
        match told:
            case DevicePass():
                self._pass(told, model)
            case BucketInputs():
                self._bucket(model, told.size).take(self._stage, told.arrays)
            case DecodePass():
                bucket = self._bucket(model, told.size)
                bucket.follow(self._group, is_first=told.is_first, num_splits=told.num_splits)
            case HeadPass():
                states = torch.empty(
                    told.num_tokens, model.info.spec.hidden_size, dtype=model.kv.pool.dtype, device=model.kv.pool.device
                )
                self._lane_models.head(told.model).follow(states)
            case _:
                raise AssertionError(f"not for a GPU: {told}")

    def forget_model(self, model: str) -> None:
        super().forget_model(model)
        self._lane_models.forget(model)

    def _pass(self, told: DevicePass, model: CudaModel) -> None:
        if told.batch is None:
            assert told.batch_id is not None, "only slices of a prefill go on"
            state = self._prefills.pop(told.batch_id)
        else:
            batch = self._staged(told.batch)
            upload_begun(model, batch)
            tensors = batch.tensors
            with nullcontext() if told.batch_id is None else model.workspace.keeping(told.batch_id):
                hidden, rotary = model.decoder.start(tensors["token_ids"], tensors["positions"], batch.prompts)
            state = UnfinishedDevicePrefill(told.model, batch, rotary, hidden, 0, None)
        assert state.next_layer == told.first_layer, "slices of a prefill batch must follow one another"
        layers = told.first_layer, told.last_layer
        state.hidden = self._forward(model, state.batch, state.hidden, state.rotary, layers, told.num_splits, None)
        state.next_layer = told.last_layer
        if told.batch_id is not None and told.last_layer < model.info.spec.num_layers:
            self._prefills[told.batch_id] = state
        elif told.batch_id is not None:
            self.arena.let_go(told.batch_id)

    def _staged(self, sent: DeviceBatchOnWire) -> DeviceBatch:
        arrays = {name: array.array() for name, array in sent.arrays.items()}
        return DeviceBatch(
            tensors=self._stage.send(arrays),
            arrays=arrays,
            chunks=tuple(ChunkExtent(first=f, length=n, context_tokens=c) for f, n, c in sent.chunks),
            num_decodes=sent.num_decodes,
            has_prefix=sent.has_prefix,
            sampling=SamplingRows.of(()),
            begun_rows=arrays["begun_rows"].astype(np.int64),
            prompts=sent.prompt_pieces(),
        )

    def _bucket(self, model: CudaModel, size: int) -> FollowingBucket:
        bucket = model.bucket(size)
        assert isinstance(bucket, FollowingBucket)
        return bucket


def _of_lane(whole: CudaModel, decoder: LayeredDecoder) -> CudaModel:
    return replace(whole, decoder=decoder, make_bucket=FollowingBucket, buckets={})
