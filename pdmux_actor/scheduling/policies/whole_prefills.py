"""Prefill batches in one piece, models in turn: what the policies without slicing share."""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, RoundRobin, StartPrefill, UnitState


class WholePrefills:
    def __init__(self) -> None:
        self._turn = RoundRobin()

    def next_model(self, state: UnitState) -> str | None:
        """The model of the batch under way, else the next in turn; None where no prompt can start."""
        return state.batch.model if state.batch is not None else self._turn.peek(state.prefillable_models())

    def act(self, state: UnitState, sms: int) -> Sequence[Action]:
        """All that is left of the batch under way (another policy may have left one), else the next model's batch."""
        if state.batch is not None:
            return (ContinuePrefill(state.batch.layers_left, sms),)
        model = self._turn.take(state.prefillable_models())
        return () if model is None else (StartPrefill(model, state.queues[model].info.spec.num_layers, sms),)
