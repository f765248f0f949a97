"""Tells every request its tokens, and exactly once how it ended."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pdmux_actor.messages import FinishReason, SampledToken, TokenEvent
from pdmux_actor.scheduling.batch import PrefillBatch, PrefillBatches
from pdmux_actor.scheduling.first_tokens import FirstTokens, HeldToken
from pdmux_actor.scheduling.launch import DropPrefill
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import SequenceStatus, TokenSequence


class Answers:
    """A request that has ended leaves `unanswered` at once; its KV goes then, or when the launch that uses it ends."""

    def __init__(self, queues: Mapping[str, ModelQueue], batches: PrefillBatches, first_tokens: FirstTokens) -> None:
        self.unanswered: dict[str, TokenSequence] = {}  # by request
        self._queues = queues
        self._batches = batches
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
    ) -> None:
        """The only place that reports an end: a request leaves `unanswered` with its one finish."""
        request_id = sequence.request.request_id
        cached, sequence.untold_cached_tokens = sequence.untold_cached_tokens, 0
        event = TokenEvent(request_id=request_id, tokens=tokens, finish=finish, error=error, cached_tokens=cached)
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

    def end(self, sequence: TokenSequence, reason: FinishReason, error: str | None = None) -> None:
        """Answers the request now; its KV goes at once, or when the launch that uses it has completed."""
        self.say(sequence, (), reason, error)
        batch = self._batches.holding(sequence)
        if batch is not None:
            self.drop_if_deserted(batch)
        elif not sequence.in_flight:
            self.release(sequence)

    def fail(self, sequences: Iterable[TokenSequence], error: str) -> None:
        for sequence in sequences:
            if sequence.pending_finish is None:
                self.end(sequence, FinishReason.ERROR, error)

    def refuse(self, queue: ModelQueue, sequence: TokenSequence) -> None:
        """It is longer than the unit takes, or as long and wants to go on."""
        known, limit = len(sequence.token_ids), queue.max_len
        reason = f"{known} tokens do not fit: model {queue.model!r} takes 1 to {limit - 1} on this unit"
        remedy = "shorten the prompt, or raise the model's max_model_len or its KV quota"
        # The quota changes while models move, and is another one on other units: the request is given back.
        finish = FinishReason.ABORT if 0 < known < queue.info.max_model_len else FinishReason.ERROR
        self.end(sequence, finish, f"{reason}; {remedy}")

    def release(self, sequence: TokenSequence) -> None:
        """Its request has been answered and no launch uses its KV."""
        assert sequence.status is not SequenceStatus.FINISHED
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
