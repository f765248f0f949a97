"""Tells every request its tokens, and exactly once how it ended; first tokens when their second can follow in time."""

from collections.abc import Iterable, Sequence
from math import isinf

import msgspec

from pdmux_actor.messages import FinishReason, SampledToken, Slo, TokenEvent
from pdmux_actor.scheduling.batching import PrefillBatch
from pdmux_actor.scheduling.early_steps import EarlySteps
from pdmux_actor.scheduling.launch import DropPrefill, Lane
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import SequenceStatus, TokenSequence
from pdmux_actor.scheduling.unit_parts import UnitParts

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
    """Holds first tokens back until the second can follow within the TBT target: those that `hold` takes leave with
    `take` or `take_due`.

    A sequence whose prefill ends while a decode step runs joins the batch when that step ends, and gets its second
    token after the rest of it and a whole step: a gap of up to two steps. Where its TTFT target allows, the first token
    is handed over later instead, by as much as the gap would be too long. Nothing waits for it: the sequence decodes
    as it would.
    """

    def __init__(self, parts: UnitParts, early: EarlySteps | None) -> None:
        self._queues = parts.queues
        self._batches = parts.batches
        self._lanes = parts.lanes
        self._predictor = parts.predictor
        self._early = early
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
        return min([held.until_s for held in self._held.values()]) if self._held else None

    def _next_token_s(self, now_s: float, tbt_s: float) -> float:
        """When a sequence that joins now is expected to have its next token: after the decode step in flight, what was
        handed out behind it, and one step of every model. Where prompts are there, such a step may be given as few SMs
        as its target `tbt_s` bears.
        """
        decode = self._lanes.lane_state(Lane.DECODE)
        rest_s = max(0.0, decode.ends_s - now_s) if decode.busy else 0.0
        sms = decode.sms or self._lanes.partition.decode_sms or self._lanes.total_sms
        decoding = [queue for queue in self._queues.values() if queue.running]
        cycle_s = self._predictor.decode_steps_s(decoding, sms)
        if self._early is not None and self._early.is_handed_out:
            rest_s += cycle_s  # no other model decodes then
        if self._batches or any(queue.waiting or queue.partial for queue in self._queues.values()):
            cycle_s = max(cycle_s, tbt_s)
        return now_s + rest_s + cycle_s


def _handed_over_s(sequence: TokenSequence, now_s: float, next_token_s: float) -> float:
    slo = sequence.request.slo
    early_enough_s = sequence.arrival_s + _SHARE_OF_TTFT * slo.ttft_s
    return min(now_s + (1 + _MARGIN) * (next_token_s - now_s) - slo.tbt_s, early_enough_s)


class Answers:
    """A request that has ended leaves `unanswered` at once; its KV goes then, or when the launch that uses it ends."""

    def __init__(self, parts: UnitParts, first_tokens: FirstTokens) -> None:
        self.unanswered: dict[str, TokenSequence] = {}  # by request
        self._queues = parts.queues
        self._batches = parts.batches
        self._first_tokens = first_tokens
        self._events: list[TokenEvent] = []
        self._dropped: list[DropPrefill] = []

    def take_events(self) -> Sequence[TokenEvent]:
        """Takes what has been produced since the last call."""
        events, self._events = self._events, []
        return events

    def take_dropped(self) -> Sequence[DropPrefill]:
        """Batches that nobody waits for any more, since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def say(
        self,
        sequence: TokenSequence,
        tokens: tuple[SampledToken, ...],
        finish: FinishReason | None = None,
        error: str | None = None,
        param: str | None = None,
    ) -> None:
        """The only place that reports an end: a request leaves `unanswered` with its one finish."""
        request_id = sequence.request.request_id
        cached, sequence.untold_cached_tokens = sequence.untold_cached_tokens, 0
        event = TokenEvent(
            request_id=request_id, tokens=tokens, finish=finish, error=error, cached_tokens=cached, param=param
        )
        if tokens and sequence.prompt_logprobs is not None:
            event = msgspec.structs.replace(event, prompt_logprobs=tuple(sequence.prompt_logprobs))
            sequence.prompt_logprobs = None
        if tokens and sequence.embedding:
            event = msgspec.structs.replace(event, embedding=sequence.embedding)
            sequence.embedding = b""
        self._events.append(event)
        if finish is not None:
            self._first_tokens.take(request_id)
            sequence.pending_finish = finish
            del self.unanswered[request_id]
            if (queue := self._queues.get(sequence.model)) is not None:
                queue.note_end(sequence, finish)

    def tell(self, events: Iterable[TokenEvent]) -> None:
        """Tokens of requests that go on."""
        self._events += events

    def hand_over(self, held: HeldToken | None, now_s: float) -> None:
        """A first token that was held back."""
        if held is not None:
            self._queues[held.sequence.model].note_tokens(held.sequence, len(held.tokens), now_s)
            self.say(held.sequence, held.tokens)

    def end(
        self, sequence: TokenSequence, reason: FinishReason, error: str | None = None, param: str | None = None
    ) -> None:
        """Answers the request now; its KV goes at once, or when the launch that uses it has completed. `param` is that
        of the request's parameters that has the error.
        """
        self.say(sequence, (), reason, error, param)
        batch = self._batches.holding(sequence)
        if batch is not None:
            self.drop_if_deserted(batch)
        elif not sequence.in_flight:
            self.release(sequence)

    def fail(self, sequences: Iterable[TokenSequence], error: str) -> None:
        for sequence in sequences:
            if sequence.pending_finish is None:
                self.end(sequence, FinishReason.ERROR, error)

    def turns_away(self, sequence: TokenSequence) -> bool:
        """Answers a request that came and that no launch can serve. Returns whether it is one."""
        error, model, queue = None, sequence.request.model, self._queues.get(sequence.model)
        if queue is None or queue.removing:
            error = f"model {model!r} is not on this unit"
        elif (stranger := sequence.token_outside(queue.info.spec.vocab_size)) is not None:
            # In a launch it would fail the sequences beside it too.
            reason = f"token id {stranger} is not in the vocabulary of model {model!r}"
            error = f"{reason}; tokenise with the model's own tokenizer"
        if error is not None:
            self.say(sequence, (), FinishReason.ERROR, error)
        return error is not None

    def refuse(self, queue: ModelQueue, sequence: TokenSequence) -> None:
        """It is longer than the unit takes, or as long and wants to go on."""
        known, limit = len(sequence.token_ids), queue.max_len
        reason = f"{known} tokens do not fit: model {queue.model!r} takes 1 to {limit - 1} on this unit"
        remedy = "shorten the prompt, or raise the model's max_model_len or its KV quota"
        # The quota changes while models move, and is another one on other units: the request is given back.
        finish = FinishReason.ABORT if 0 < known < queue.info.max_model_len else FinishReason.ERROR
        self.end(sequence, finish, f"{reason}; {remedy}")

    def release(self, sequence: TokenSequence) -> None:
        """Its request has been answered and no launch uses its KV, but perhaps one that was handed out early: with that
        it goes.
        """
        assert sequence.status is not SequenceStatus.FINISHED
        if sequence.in_next_flight:
            return
        self._queues[sequence.model].withdraw(sequence)
        sequence.status = SequenceStatus.FINISHED

    def drop_if_deserted(self, batch: PrefillBatch) -> None:
        """A batch whose every request has ended is of no use; between slices it goes at once."""
        wanted = any(chunk.sequence.pending_finish is None for chunk in batch.chunks)
        if wanted or batch.in_flight or batch not in self._batches:
            return
        self._batches.end(self._queues[batch.model], batch)
        for chunk in batch.chunks:
            self.release(chunk.sequence)
        self._dropped.append(DropPrefill(batch_id=batch.batch_id))
