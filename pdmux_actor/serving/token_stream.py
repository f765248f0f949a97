"""One request on its way to a gateway: engine events in, Deltas out (sans-I/O)."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from pdmux_actor.messages import FinishReason, GenerateRequest, SampledToken, TokenEvent
from pdmux_actor.serving.detokenizer import Detokenizer, Vocabulary
from pdmux_actor.serving.frames import Delta, KvMoved, TokenLogprob

MERGE_S = 0.01


@dataclass(slots=True, eq=False)
class DeltaPace:
    """Steps that follow each other faster than anybody reads are told together, every MERGE_S: each Delta is a write at
    the gateway, one more at its proxy, and a read at the client. A step is held only where the next one, if it takes as
    long as the last, comes in time to be told with it: those that take half of MERGE_S or more are told as they come.
    """

    _told_s: float = float("-inf")
    _stepped_s: float = float("-inf")

    def holds(self, now_s: float) -> bool:
        """Returns whether the tokens of a step that ended now wait for the next."""
        step_s, self._stepped_s = now_s - self._stepped_s, now_s
        if now_s + step_s < self._told_s + MERGE_S:
            return True
        self._told_s = now_s
        return False


class TokenStream:
    """Sends one Delta per event while it has credit, merges events while it has none or is told to hold, and ends with
    exactly one Delta whose `finish` is set; that one needs no credit. After `cancel` it sends nothing.
    """

    def __init__(
        self,
        *,
        stream: int,
        request: GenerateRequest,
        vocabulary: Vocabulary,
        credit: int,
        send: Callable[[Delta], None],
    ) -> None:
        self.request = request
        self.finished = False
        self._vocabulary = vocabulary
        self._wants_logprobs = request.sampling.logprobs is not None
        self._owes_prompt = request.sampling.prompt_logprobs is not None
        self._detokenizer = Detokenizer(
            vocabulary,
            stop=request.stop,
            min_tokens=request.sampling.min_tokens,
            prompt_token_ids=request.prompt_token_ids,
            prior_token_ids=request.output_token_ids,
            skip_special_tokens=request.skip_special_tokens,
            shows_stop=request.shows_stop,
        )
        self._credit = credit
        self._send = send
        self._pending = Delta(stream=stream, sequence=0, text="", token_ids=[])
        self._has_pending = False
        self._has_sent = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def absorb(self, event: TokenEvent, *, retryable: bool = False, holds: bool = False) -> bool:
        """`finished` afterwards although the event did not say so: a stop string is complete.

        `retryable` belongs to an event that fails the request. With `holds` its tokens wait for those of the next event
        or for `release`, unless they are the first or the last ones. Returns whether they do.
        """
        if self.finished:
            return False
        if event.cached_tokens:
            self._pending = msgspec.structs.replace(self._pending, cached_tokens=event.cached_tokens)
        if self._owes_prompt and event.tokens:
            self._owes_prompt = False
            prompt = self._vocabulary.prompt(self.request.prompt_token_ids[0], event.prompt_logprobs)
            self._pending = msgspec.structs.replace(self._pending, prompt=prompt)
        if event.embedding:
            self._pending = msgspec.structs.replace(self._pending, embedding=event.embedding)
        ends = event.finish is FinishReason.STOP
        piece = self._detokenizer.push([token.token_id for token in event.tokens], ends=ends)
        text, stop = piece.text, piece.stop
        goes_on = retryable or (self.request.hands_over and event.finish is FinishReason.LENGTH)
        if event.finish is not None and not stop and not goes_on:  # elsewhere, what is held back may go on
            rest = self._detokenizer.finish()
            text, stop = text + rest.text, rest.stop
        self._merge(text, event.tokens[: piece.num_tokens])
        if stop:
            self._pending = msgspec.structs.replace(self._pending, stop=stop)
            self._end(FinishReason.STOP)
        elif event.finish is not None:
            self._end(event.finish, event.error, event.param, retryable=retryable)
        elif holds and self._has_sent:
            return True
        else:
            self.release()
        return False

    def release(self) -> None:
        """Sends what is held, if there is credit."""
        if self._has_pending and self._credit > 0 and not self.finished:
            self._credit -= 1
            self._flush()

    def fail(self, error: str, *, retryable: bool, engine_died: bool = False) -> None:
        if engine_died:
            self._pending = msgspec.structs.replace(self._pending, engine_died=True)
        event = TokenEvent(request_id=self.request_id, finish=FinishReason.ERROR, error=error)
        self.absorb(event, retryable=retryable)

    def fail_on_ours(self, error: str) -> None:
        """Ends after an exception of our own while its tokens were handled: nothing of them is looked at again."""
        if not self.finished:
            self._pending = msgspec.structs.replace(self._pending, held_back=0)
            self._end(FinishReason.ERROR, error)

    def note_moved(self, moved: KvMoved) -> None:
        """The prompt's KV has come from another unit, or will not. Told with the first token."""
        self._pending = msgspec.structs.replace(self._pending, kv_moved=moved)

    def grant(self, deltas: int) -> None:
        self._credit += deltas
        self.release()

    def cancel(self) -> None:
        self.finished = True

    def _merge(self, text: str, tokens: tuple[SampledToken, ...]) -> None:
        pending = self._pending
        self._has_pending = True
        self._pending = msgspec.structs.replace(
            pending,
            text=pending.text + text,
            token_ids=[*pending.token_ids, *(token.token_id for token in tokens)],
            logprobs=[*(pending.logprobs or ()), *self._logprobs(tokens)] if self._wants_logprobs else None,
            held_back=self._detokenizer.held_back_tokens,
        )

    def _logprobs(self, tokens: tuple[SampledToken, ...]) -> list[TokenLogprob]:
        return [self._vocabulary.logprob(token) for token in tokens]

    def _end(
        self, finish: FinishReason, error: str | None = None, param: str | None = None, *, retryable: bool = False
    ) -> None:
        self._pending = msgspec.structs.replace(
            self._pending, finish=finish, error=error, param=param, retryable=retryable
        )
        self._flush()
        self.finished = True

    def _flush(self) -> None:
        delta = self._pending
        self._pending = Delta(stream=delta.stream, sequence=delta.sequence + 1, text="", token_ids=[])
        self._has_pending = False
        self._has_sent = True
        self._send(delta)
