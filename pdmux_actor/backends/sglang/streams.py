"""Requests in SGLang, and their tokens on the way out: one message per step, not one per request."""

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import Any

from pdmux_actor.backends.sglang.launch import Launch
from pdmux_actor.backends.sglang.requests import generate_arguments, token_event
from pdmux_actor.messages import FinishReason, GenerateRequest, TokenEvent
from pdmux_actor.serving.notice_sender import NoticeSender

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StreamCounts:
    """Totals since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Stream:
    """`sglang_id` has a fixed width: SGLang aborts every request whose id begins with the one given."""

    request: GenerateRequest
    sglang_id: str
    task: asyncio.Task[None] | None = None


class RequestStreams:
    def __init__(self, sender: NoticeSender) -> None:
        self.counts = StreamCounts()
        self._sender = sender
        self._engine: Any = None
        self._launch: Launch | None = None
        self._quota_blocks = 0
        self._streams: dict[str, _Stream] = {}
        self._numbers = itertools.count()
        self._outgoing: list[TokenEvent] = []

    def open(self, engine: Any, launch: Launch, quota_blocks: int) -> None:
        self._engine, self._launch, self._quota_blocks = engine, launch, quota_blocks

    def limit(self, quota_blocks: int) -> None:
        self._quota_blocks = quota_blocks

    def close(self, reason: str) -> None:
        """Ends every request with an error."""
        self._launch = None
        for stream in tuple(self._streams.values()):
            if stream.task is not None:
                stream.task.cancel()
            self._end(stream.request, FinishReason.ERROR, reason)

    def submit(self, request: GenerateRequest) -> None:
        if (unsupported := _unsupported(request)) is not None:
            param, error = unsupported
            self._put(TokenEvent(request_id=request.request_id, finish=FinishReason.ERROR, error=error, param=param))
            return
        if (refusal := self._refusal(request)) is not None:
            finish, error = refusal
            self._put(TokenEvent(request_id=request.request_id, finish=finish, error=error))
            return
        stream = self._streams[request.request_id] = _Stream(request, f"{next(self._numbers):016x}")
        self.counts.prompt_tokens += len(request.prompt_token_ids)
        stream.task = asyncio.create_task(self._run(stream))

    def abort(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            self._engine.tokenizer_manager.abort_request(rid=stream.sglang_id)
            self._end(stream.request, FinishReason.ABORT)

    def _refusal(self, request: GenerateRequest) -> tuple[FinishReason, str] | None:
        launch = self._launch
        if launch is None or launch.info.model != request.model:
            return FinishReason.ERROR, f"model {request.model!r} is not on this unit"
        known = len(request.prompt_token_ids) + len(request.output_token_ids)
        limit = launch.max_len(self._quota_blocks)
        if not 0 < known < limit:
            reason = f"{known} tokens do not fit: model {request.model!r} takes 1 to {limit - 1} on this unit"
            # As our own engine: the quota changes while models move, and is another one on other units.
            finish = FinishReason.ABORT if 0 < known < launch.info.max_model_len else FinishReason.ERROR
            return finish, f"{reason}; shorten the prompt, or raise the model's max_model_len or its KV quota"
        vocabulary = launch.info.spec.vocab_size
        named = itertools.chain(request.prompt_token_ids, request.sampling.named_tokens)
        stranger = next((t for t in named if not 0 <= t < vocabulary), None)
        if stranger is not None:
            reason = f"token id {stranger} is not in the vocabulary of model {request.model!r}"
            return FinishReason.ERROR, f"{reason}; tokenise with the model's own tokenizer"
        return None

    async def _run(self, stream: _Stream) -> None:
        request, seen = stream.request, 0
        if request.request_id not in self._streams:
            return  # aborted before it began: SGLang takes no abort of a request that it has yet to get
        assert self._launch is not None
        arguments = generate_arguments(request, stream.sglang_id, self._launch.max_len(self._quota_blocks))
        try:
            async for chunk in await self._engine.async_generate(**arguments):
                event = token_event(request, chunk, seen)
                seen += len(event.tokens)
                if request.request_id not in self._streams:
                    continue  # aborted: its last tokens were on their way
                self.counts.output_tokens += len(event.tokens)
                if event.finish is not None:
                    self.counts.cached_tokens += int(chunk["meta_info"].get("cached_tokens") or 0)
                    del self._streams[request.request_id]
                self._put(event)
        except ValueError as error:  # how SGLang refuses a request
            told = {"generation_id": request.request_id, "model": request.model, "reason": str(error)}
            logger.info("SGLang refuses a request", extra=told)
            self._end(request, FinishReason.ERROR, f"SGLang refused it: {error}")
        except Exception:  # this request's only: unanswered, its client would wait for ever
            logger.exception("a request fails", extra={"generation_id": request.request_id, "model": request.model})
            self._end(request, FinishReason.ERROR, "the unit failed on this request; its log has the traceback")

    def _end(self, request: GenerateRequest, finish: FinishReason, error: str | None = None) -> None:
        if self._streams.pop(request.request_id, None) is not None:
            self._put(TokenEvent(request_id=request.request_id, finish=finish, error=error))

    def _put(self, event: TokenEvent) -> None:
        """What one step of SGLang produced wakes all its requests in one turn of the event loop."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(event)

    def _flush(self) -> None:
        events, self._outgoing = self._outgoing, []
        self._sender.send_tokens(events)


def _unsupported(request: GenerateRequest) -> tuple[str, str] | None:
    """The parameter that SGLang does not take, and why."""
    if request.embeds:
        reason = f"units of {request.model!r} run SGLang; embeddings and scores come from pools of our own engine only"
        return "model", f"{reason}: put the model on one"
    sampling = request.sampling
    if sampling.processing is not None and sampling.processing.bad_words:
        return (
            "bad_words",
            "SGLang knows no bad words; ban single tokens by logit_bias, or use a pool of our own engine",
        )
    if sampling.prompt_logprobs is not None:
        reason = "log-probabilities of prompts (also 'echo' with 'logprobs') come from pools of our own engine only"
        return "prompt_logprobs", reason
    return None
