"""Runs on a rank that follows what the leading rank tells it to."""

from collections.abc import Mapping

import torch

from pdmux_actor.executor.model_runner import AttachedModel, ModelRunner, UnfinishedPrefill
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.lane_models import LaneModels, with_decoder
from pdmux_actor.executor.ranks.rank_frames import ForwardPass, HeadPass, LanePass
from pdmux_actor.models.lora import TokenRun


class FollowingRunner(ModelRunner):
    """Implements following_rank.FollowsPasses: the leader's hidden states, with this rank's heads and columns."""

    def __init__(self, models: Mapping[str, AttachedModel], group: LaneGroup) -> None:
        self._lane_models = LaneModels(models, group, with_decoder)
        super().__init__(self._lane_models)

    def do(self, told: LanePass) -> None:
        if isinstance(told, ForwardPass):
            self._pass(told)
        else:
            assert isinstance(told, HeadPass), f"not for CPU cores: {told}"
            self._head(told)

    def _pass(self, told: ForwardPass) -> None:
        model = self._lane_models[told.model]
        if told.batch is None:
            assert told.batch_id is not None, "only slices of a prefill go on"
            state = self._prefills.pop(told.batch_id)
        else:
            told.batch.note_blocks(model.row_table)
            batch = told.batch.batch(model.kv.tokens_per_row)
            hidden, rotary = model.decoder.start(batch.token_ids, batch.positions, batch.prompts)
            slots, runs = model.decoder.adapters, [TokenRun(*run) for run in told.adapters]
            adapters = slots.batch(runs) if runs and slots is not None else None
            state = UnfinishedPrefill(told.model, batch, rotary, hidden, 0, adapters)
        assert state.next_layer == told.first_layer, "slices of a prefill batch must follow one another"
        state.hidden = self._forward(
            model, state.batch, state.hidden, state.rotary, told.first_layer, told.last_layer, state.adapters
        )
        state.next_layer = told.last_layer
        if told.batch_id is not None and told.last_layer < model.info.spec.num_layers:
            self._prefills[told.batch_id] = state

    def forget_model(self, model: str) -> None:
        super().forget_model(model)
        self._lane_models.forget(model)

    def _head(self, told: HeadPass) -> None:
        model = self._lane_models[told.model]
        shape = (told.num_tokens, model.info.spec.hidden_size)
        self._lane_models.head(told.model).follow(torch.empty(shape, dtype=model.kv.dtype))
