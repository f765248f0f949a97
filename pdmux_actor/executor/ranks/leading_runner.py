"""Runs a lane's launches on the rank that leads: what it computes, the others are told to compute with it."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pdmux_actor.executor.model_runner import AttachedModel, ModelRunner, Produced
from pdmux_actor.executor.packed_batch import PackedBatch
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.lane_models import LaneModels, with_decoder
from pdmux_actor.executor.ranks.rank_frames import BatchOnWire, DropBatch, ForwardPass, HeadPass, RankLink
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.scheduling.launch import ComputeLaunch, PrefillSlice


class LeadingRunner(ModelRunner):
    """A ModelRunner whose passes over layers, and over the vocabulary, all ranks do. What fails within one ends the
    unit: the others wait in a sum that would never be complete. Packing before it and sampling after it are this
    rank's alone, and fail as they do elsewhere.
    """

    def __init__(
        self,
        number: int,
        models: Mapping[str, AttachedModel],
        *,
        group: LaneGroup,
        link: RankLink,
        cores: Sequence[int],
    ) -> None:
        """`number` is the lane's; `cores` are all that this rank has, as many as each other one."""
        self._lane_models = LaneModels(models, group, with_decoder, self._around_head)
        super().__init__(self._lane_models)
        self._number = number
        self._link = link
        self._all_cores = tuple(cores)
        self._batch_id: int | None = None

    def run(self, launch: ComputeLaunch) -> Produced:
        self._batch_id = launch.batch_id if isinstance(launch, PrefillSlice) else None
        return super().run(launch)

    def drop_prefill(self, batch_id: int) -> None:
        super().drop_prefill(batch_id)
        self._link.tell(DropBatch(batch_id))

    def forget_model(self, model: str) -> None:
        super().forget_model(model)
        self._lane_models.forget(model)

    def _forward(
        self,
        model: AttachedModel,
        batch: PackedBatch,
        hidden: Tensor,
        rotary: Tensor,
        first_layer: int,
        last_layer: int,
        adapters: AdapterBatch | None,
    ) -> Tensor:
        first_core, num_cores = self._place()
        with self._in_step():
            self._link.tell(
                ForwardPass(
                    lane=self._number,
                    first_core=first_core,
                    num_cores=num_cores,
                    model=model.info.model,
                    batch_id=self._batch_id,
                    first_layer=first_layer,
                    last_layer=last_layer,
                    batch=BatchOnWire.of(batch, model.row_table) if first_layer == 0 else None,
                    adapters=() if adapters is None or first_layer else adapters.runs,
                )
            )
            return super()._forward(model, batch, hidden, rotary, first_layer, last_layer, adapters)

    @contextmanager
    def _around_head(self, model: str, num_tokens: int) -> Iterator[None]:
        first_core, num_cores = self._place()
        with self._in_step():
            self._link.tell(HeadPass(self._number, first_core, num_cores, model, num_tokens))
            yield

    def _place(self) -> tuple[int, int]:
        """Which of its cores the lane has: its thread is bound to the first, each other one of its team to one more."""
        if sys.platform != "linux":
            return 0, len(self._all_cores)
        return self._all_cores.index(min(os.sched_getaffinity(0))), torch.get_num_threads()

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._link.end_unit(f"a launch failed on the leading rank: {type(error).__name__}: {error}")
            raise
