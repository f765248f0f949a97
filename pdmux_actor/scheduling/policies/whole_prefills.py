"""Prefill batches in one piece, models in turn, alone or beside decode steps: what policies without slicing share."""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, RoundRobin, StartPrefill, UnitState


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


class SplitLanes:
    def __init__(self) -> None:
        self._prefills = WholePrefills()
        self._decode_turn = RoundRobin()

    def act(self, state: UnitState, decode_sms: int) -> Sequence[Action]:
        """Launches what idle lanes can have: decode the first `decode_sms` SMs, prefill the others. What is in flight
        may hold more than its share, by a former partition or policy: the other lane then has what is left.
        """
        actions: list[Action] = []
        held_sms = state.decode_lane.sms
        free_sms = min(decode_sms, state.total_sms - state.prefill_lane.sms)
        if not state.decode_lane.busy and free_sms > 0:
            model = self._decode_turn.take(q.model for q in state.decoding())
            if model is not None:
                actions.append(Decode(model, free_sms))
                held_sms = free_sms
        prefill_sms = state.total_sms - max(decode_sms, held_sms)
        if not state.prefill_lane.busy and prefill_sms > 0:
            actions += self._prefills.act(state, prefill_sms)
        return actions

    def next_prefill(self, state: UnitState) -> str | None:
        """The model of the batch under way, else the next in turn; None where no prompt can start."""
        return self._prefills.next_model(state)
