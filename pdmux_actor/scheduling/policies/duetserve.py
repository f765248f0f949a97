"""DuetServe as published (Algorithm 1): aggregate; when that would break the TBT target, the best (S_p, S_d, k).

Iterations are synchronous: the next one is planned when both lanes have ended. Look-ahead steps run in launches of as
many as the TBT target admits, at most `max_look_ahead_steps`: the tokens of a launch are handed over together. The
paper serves one model; several take turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pdmux_actor.scheduling.batching import preview_chunks
from pdmux_actor.scheduling.launch import decode_shares
from pdmux_actor.scheduling.policies.base import (
    Action,
    ContinuePrefill,
    Decode,
    Mixed,
    RoundRobin,
    StartPrefill,
    StretchView,
    UnitState,
)
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.queues import ModelQueue
from profiler.latency import ChunkShape


@dataclass(frozen=True, slots=True)
class Configuration:
    """S_p, S_d and k of Algorithm 1."""

    prefill_sms: int
    decode_sms: int
    decode_steps: int


class DuetServe:
    target_aware = False

    def __init__(self) -> None:
        self._turn = RoundRobin()
        self._steps_left = 0  # of k, for the iteration under way
        self._model: str | None = None

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if not state.idle:
            return self._go_on(state)
        self._steps_left = 0
        if state.batch is not None:  # left over from another policy
            return (ContinuePrefill(state.batch.layers_left, state.total_sms),)
        model = self._turn.take({q.model for q in state.decoding()} | set(state.prefillable_models()))
        return () if model is None else self._iteration(state, state.queues[model])

    def go_on(self, view: StretchView) -> Decode | Mixed:
        return view.last  # the same model on the same share

    def _iteration(self, state: UnitState, queue: ModelQueue) -> Sequence[Action]:
        budget = state.settings.max_batch_tokens
        chunks = preview_chunks(queue, state.settings, budget - len(queue.running), whole_prompts=False)
        spec, contexts, sms = queue.info.spec, queue.context_tokens, state.total_sms
        t_mixed = state.predictor.mixed_s(queue.model, spec, chunks, contexts, sms)
        if not chunks or not contexts or t_mixed <= queue.tightest_tbt_s:
            return (Mixed(queue.model, budget, sms),)
        best = best_configuration(state, queue, chunks)
        if best is None:
            return (Mixed(queue.model, budget, sms),)
        self._model, self._steps_left = queue.model, best.decode_steps
        decode = self._decode(state, best.decode_sms)
        prefill = StartPrefill(queue.model, spec.num_layers, best.prefill_sms, token_budget=budget - len(contexts))
        return (*decode, prefill)

    def _go_on(self, state: UnitState) -> Sequence[Action]:
        """The rest of k decode steps beside the prefill."""
        queue = None if self._model is None else state.queues.get(self._model)
        if state.decode_lane.busy or queue is None or not queue.running:
            return ()
        return self._decode(state, state.total_sms - state.prefill_lane.sms)

    def _decode(self, state: UnitState, sms: int) -> Sequence[Action]:
        queue = None if self._model is None else state.queues.get(self._model)
        if queue is None or not self._steps_left:
            return ()
        step_s = state.predictor.decode_s(queue.model, queue.info.spec, queue.context_tokens, sms)
        most = min(self._steps_left, state.settings.max_look_ahead_steps)
        # A target may be infinite: the bound comes before the rounding.
        steps = max(1, int(min(most, queue.tightest_tbt_s / step_s))) if step_s > 0 else 1
        self._steps_left -= steps
        return (Decode(queue.model, sms, steps),)


POLICY = PolicyEntry(
    name="duetserve",
    rule="aggregate; when the predicted mixed step breaks the TBT target, the (S_p, S_d, k) with most tokens per "
    "second, its k steps handed over in portions that the target admits",
    source="DuetServe, Algorithm 1",
    make=DuetServe,
    fuses=True,
)


def best_configuration(state: UnitState, queue: ModelQueue, chunks: Sequence[ChunkShape]) -> Configuration | None:
    """Lines 7 to 21 of Algorithm 1: max over (S_p, S_d, k) of (k T_decode + T_prefill) / max(k t_d(S_d), t_p(S_p)).

    Subject to t_d(S_d) <= TBT target. None when no share of the device meets it.
    """
    spec, contexts = queue.info.spec, queue.context_tokens
    tokens_decode, tokens_prefill = len(contexts), sum(chunk.new_tokens for chunk in chunks)
    best, best_rho = None, 0.0
    for s_d in decode_shares(state.device):
        t_d = state.predictor.decode_s(queue.model, spec, contexts, s_d)
        if t_d > queue.tightest_tbt_s or t_d <= 0:
            continue
        s_p = state.total_sms - s_d
        t_p = state.predictor.prefill_s(queue.model, spec, chunks, s_p, beside_decode=True)
        for k in (int(t_p / t_d), int(t_p / t_d) + 1):
            rho = (k * tokens_decode + tokens_prefill) / max(k * t_d, t_p)
            if k > 0 and rho > best_rho:
                best, best_rho = Configuration(s_p, s_d, k), rho
    return best
