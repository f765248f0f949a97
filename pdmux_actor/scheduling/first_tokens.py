"""First tokens that are held back until the second can follow within the TBT target.

A sequence whose prefill ends while a decode step runs joins the batch when that step ends, and gets its second token
after the rest of it and a whole step: a gap of up to two steps. Where its TTFT target allows, the first token is handed
over later instead, by as much as the gap would be too long. Nothing waits for it: the sequence decodes as it would.
"""

from collections.abc import Iterable, Mapping
from math import isinf

import msgspec

from pdmux_actor.messages import SampledToken, Slo
from pdmux_actor.scheduling.batch import PrefillBatches
from pdmux_actor.scheduling.launch import Lane
from pdmux_actor.scheduling.launches_in_flight import LanesInFlight
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import TokenSequence

_MARGIN = 0.2  # on predictions of decode steps: a prompt may start beside one that is under way
_SHARE_OF_TTFT = 0.98  # within which the first token is handed over whatever the second takes


def longest_hold_s(slo: Slo, step_s: float) -> float:
    """Returns the longest hold of a sequence that joins just after a decode step of `step_s` has started. To be left of
    its TTFT target.
    """
    return max(0.0, 2 * (1 + _MARGIN) * step_s - slo.tbt_s) + (1 - _SHARE_OF_TTFT) * slo.ttft_s


class HeldToken(msgspec.Struct, gc=False):
    sequence: TokenSequence
    tokens: tuple[SampledToken, ...]
    until_s: float


class FirstTokens:
    """Holds first tokens: those that `hold` takes leave with `take` or `take_due`."""

    def __init__(
        self,
        queues: Mapping[str, ModelQueue],
        batches: PrefillBatches,
        lanes: LanesInFlight,
        predictor: LatencyPredictor,
    ) -> None:
        self._queues = queues
        self._batches = batches
        self._lanes = lanes
        self._predictor = predictor
        self._held: dict[str, HeldToken] = {}
        self.may_hold = True  # False: none is held back from now on

    def hold(self, sequence: TokenSequence, tokens: tuple[SampledToken, ...], now_s: float) -> bool:
        """Returns whether these are a first token that waits."""
        if not self.may_hold:
            return False
        is_first = sequence.num_output_tokens == 1 and not sequence.request.output_token_ids
        if not is_first or isinf(sequence.request.slo.tbt_s):
            return False
        until_s = _handed_over_s(sequence, now_s, self._next_token_s(now_s, sequence.request.slo.tbt_s))
        if until_s <= now_s:
            return False
        self._held[sequence.request.request_id] = HeldToken(sequence, tokens, until_s)
        return True

    def expect(self, sequences: Iterable[TokenSequence], now_s: float, next_token_s: float) -> None:
        """A decode step of these sequences starts."""
        if self._held:
            for sequence in sequences:
                held = self._held.get(sequence.request.request_id)
                if held is not None:
                    held.until_s = _handed_over_s(sequence, now_s, next_token_s)

    def take(self, request_id: str) -> HeldToken | None:
        """Its sequence has more to hand over, or ends."""
        return self._held.pop(request_id, None)

    def take_due(self, now_s: float) -> list[HeldToken]:
        if not self._held:
            return []
        due = [held for held in self._held.values() if held.until_s <= now_s]
        for held in due:
            del self._held[held.sequence.request.request_id]
        return due

    @property
    def holds_any(self) -> bool:
        return bool(self._held)

    def next_due_s(self) -> float | None:
        return min([held.until_s for held in self._held.values()], default=None)

    def _next_token_s(self, now_s: float, tbt_s: float) -> float:
        """When a sequence that joins now is expected to have its next token: after the decode step in flight, and one
        of every model. Where prompts are there, such a step may be given as few SMs as its target `tbt_s` bears.
        """
        decode = self._lanes.lane_state(Lane.DECODE)
        rest_s = max(0.0, decode.ends_s - now_s) if decode.busy else 0.0
        sms = decode.sms or self._lanes.partition.decode_sms or self._lanes.total_sms
        cycle_s = 0.0
        for queue in self._queues.values():
            if queue.running:
                cycle_s += self._predictor.decode_s(queue.model, queue.info.spec, queue.context_tokens, sms)
        if self._batches or any(queue.waiting or queue.partial for queue in self._queues.values()):
            cycle_s = max(cycle_s, tbt_s)
        return now_s + rest_s + cycle_s


def _handed_over_s(sequence: TokenSequence, now_s: float, next_token_s: float) -> float:
    slo = sequence.request.slo
    early_enough_s = sequence.arrival_s + _SHARE_OF_TTFT * slo.ttft_s
    return min(now_s + (1 + _MARGIN) * (next_token_s - now_s) - slo.tbt_s, early_enough_s)
