"""Tropical (arXiv:2606.16264): prefill runs in the slack that decode has before its targets, on the whole device.

One launch at a time. A sequence with target tau that had its last token at t_n is due for the next at t_n + tau. With a
step of t_d and a prompt of t_P on N_T layers

    slack = min over sequences of (t_n + tau) - now - t_d,    layers = floor(slack N_T / t_P)

of the prompt run now; if that is none, decode does. The paper starts whole prompts only; taking as many layers as fit
is the variant for small slacks that MuxWise's authors built to compare with (MuxWise §6). Its targets are of TPOT, a
mean, so that slack is saved up over an answer; targets here are of every gap, and what one gap leaves is lost.
Tropical also sends requests to workers that only prefill, which is the fleet's and not here.

Assumed: 95 % of a target are used, and where that leaves no room for one layer beside a step, layers and steps take
turns. The paper serves one model; several take turns, so that t_d is that of all steps up to the sequence's own.
"""

import math
from collections.abc import Sequence

from pdmux_actor.scheduling.batching import preview_chunks
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, RoundRobin, StartPrefill, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.forecast import decode_cycle_s, tightest_tbt_s, whole_prefill_s
from pdmux_actor.scheduling.policies.whole_prefills import WholePrefills
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.latency import ChunkShape

_KEPT = 0.95  # of a target: a slice that fills slack to the brim is late by whatever its prediction missed


class Tropical:
    target_aware = False

    def __init__(self) -> None:
        self._prefills = WholePrefills()
        self._decode_turn = RoundRobin()
        self._phase_turn = RoundRobin()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if not state.idle:
            return ()
        prefilling = self._prefills.next_model(state)
        layers = 0 if prefilling is None else self._layers_now(state, prefilling, now_s)
        if layers:
            return self._prefill(state, layers)
        model = self._decode_turn.take(q.model for q in state.decoding())
        return () if model is None else (Decode(model, state.total_sms),)

    def _prefill(self, state: UnitState, layers: int) -> Sequence[Action]:
        (action,) = self._prefills.act(state, state.total_sms)
        assert isinstance(action, StartPrefill | ContinuePrefill)
        if isinstance(action, ContinuePrefill):
            return (ContinuePrefill(min(layers, action.layers), action.sms),)
        return (StartPrefill(action.model, min(layers, action.layers), action.sms),)

    def _layers_now(self, state: UnitState, prefilling: str, now_s: float) -> int:
        num_layers = state.queues[prefilling].info.spec.num_layers
        if not state.decoding():
            return num_layers
        decoding = state.decoding()
        steps_s = [decode_cycle_s(state, [queue], state.total_sms) for queue in decoding]  # never two at once
        prompt_s = whole_prefill_s(state, prefilling, _next_shapes(state, prefilling), state.total_sms)
        if (_KEPT * tightest_tbt_s(decoding) - sum(steps_s)) * num_layers < prompt_s:
            return int(self._phase_turn.take(("decode", "prefill")) == "prefill")
        dues_s = [min([_next_due_s(s, now_s) for s in queue.running]) for queue in decoding]
        slack_s = _slack_s(sorted(zip(dues_s, steps_s, strict=True)), now_s)
        return num_layers if slack_s >= prompt_s else max(0, math.floor(slack_s * num_layers / prompt_s))


POLICY = PolicyEntry(
    name="tropical",
    rule="one launch at a time on all SMs: as many layers of a prompt as fit into what the TBT targets of running "
    "sequences leave beside their next step, else decode",
    source="Tropical, with MuxWise's slices",
    make=Tropical,
)


def _next_shapes(state: UnitState, model: str) -> Sequence[ChunkShape]:
    """Of the batch under way, else of the one that would be taken."""
    if state.batch is not None:
        return state.batch.shapes
    return preview_chunks(state.queues[model], state.settings, state.settings.max_batch_tokens, whole_prompts=True)


def _slack_s(steps: Sequence[tuple[float, float]], now_s: float) -> float:
    """`steps` are when a model's is due to end, the next first, and what it takes: it waits for those before it only.

    With those behind it as well, several models in turn would never leave a layer any room.
    """
    slack_s, taken_s = math.inf, 0.0
    for due_s, step_s in steps:
        taken_s += step_s
        slack_s = min(slack_s, due_s - now_s - taken_s)
    return slack_s


def _next_due_s(sequence: TokenSequence, now_s: float) -> float:
    return (now_s if sequence.last_token_s is None else sequence.last_token_s) + _KEPT * sequence.tbt_s
