"""Joins what a request meets between HTTP and the units. Knows neither FastAPI nor Ray."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from pdmux_actor.messages import StructuredOutput
from router.access.access_control import AccessControl
from router.admission.demand_report import DemandReport
from router.errors import (
    GatewayNotReady,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RouterError,
    UnsupportedParameter,
    WeightsChanged,
)
from router.gateway_scheduler import GatewayScheduler
from router.generation import Generation, Output
from router.limits import GatewayLimits
from router.live_view import ContextLengths, LiveView
from router.openai.chat import ChatCompletionRequest
from router.openai.chat_reply import chat_reply
from router.openai.completion_reply import CompletionReply
from router.openai.completions import CompletionRequest
from router.openai.embeddings import EmbeddingsRequest
from router.openai.parameters import GenerationParameters
from router.openai.reply import ReplyFormat, new_head
from router.openai.rerank import RerankRequest
from router.openai.score import ScoreRequest
from router.openai.tokenize_requests import DetokenizeBody, Detokenized, Tokenized, TokenizeRequest
from router.request_terms import ANYBODY, AdmissionRequest, Caller, Priority
from router.serving.context_wait import ContextWait, ModelAbsence, load_failed
from router.serving.generation_relay import GenerationRelay
from router.serving.generation_runner import GenerationRunner, WaitingRequests
from router.serving.pooling import PoolingPrompts
from router.serving.prompts import (
    Prompt,
    bad_word_tokens,
    chat_prompt,
    check_named_tokens,
    check_prompt_logprobs,
    completion_prompts,
    longest_of,
    too_long,
)
from router.serving.reply_reading import read_parts, without_completion
from router.serving.response import (
    AnswerT,
    GenerationResponse,
    RenewedDocument,
    RenewedResponse,
    generations_of,
    interleave,
    so_many_at_once,
)
from router.serving.tokenizing import detokenize, tokenize
from router.serving.turns_of_weights import TurnsOfWeights
from router.telemetry.fleet_event import RequestEvents
from router.telemetry.metrics import GatewayMetrics
from router.telemetry.service_report import ReceiptBook, ServiceReport
from router.text.lane import StartText, TextProcess
from router.text.replies import Replies
from router.text.tokenization import Tokenizers
from router.transport.frame_connection import SilenceLimits
from router.transport.unit_client import UnitPool
from router.view import FleetView, ModelCard

VERSION = version("muxfleet")
_RETRY_AFTER_S = 5
_FIRST_VIEW_RETRY_S = 1
_PRELOADED_TOKENIZERS = 16


class Gateway:
    """Call from one event loop. `update_view` is its only news of the fleet."""

    def __init__(
        self,
        limits: GatewayLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        start_text: StartText = TextProcess.start,
    ) -> None:
        """`start_text` starts what works on prompts' text."""
        self.limits = limits or GatewayLimits()
        self.view = LiveView()
        self.scheduler = GatewayScheduler(gateway_id=uuid.uuid4().hex, limits=self.limits)
        self.clock = clock
        self.access = AccessControl(
            clock=clock,
            num_gateways=lambda: self.view.current.num_gateways,
            on_keys=lambda names: self.metrics.start_keys(names),
        )
        self.large_bodies = asyncio.Lock()  # held while one is read
        self._pool = UnitPool(SilenceLimits(suspect_s=self.limits.suspect_s, lost_s=self.limits.lost_s))
        self._tokenizers = Tokenizers(self.limits, clock=clock, start=start_text)
        self._replies = Replies(self.limits, start=start_text)
        self.metrics = GatewayMetrics(
            version=VERSION,
            view=lambda: self.view.current,
            view_age_s=lambda: -1.0 if self.view.updated_s is None else clock() - self.view.updated_s,
            ledger=self.scheduler.ledger,
        )
        self._relay = GenerationRelay(
            view=self.view,
            pool=self._pool,
            scheduler=self.scheduler,
            limits=self.limits,
            clock=clock,
            on_continuation=lambda *told: self._runner.moved(*told),
            on_kv_moved=self.metrics.kv_moved,
        )
        self.events = RequestEvents()
        self.receipts = ReceiptBook()
        self.absence = ModelAbsence(self.view, clock)
        self._context = ContextWait(
            self.view, self.scheduler, self.absence, self.metrics, self.events, self.limits, clock
        )
        self._weights = TurnsOfWeights(self._tokenizers)
        self._room = WaitingRequests(
            self.scheduler, clock=clock, unavailable=self.absence.error, in_vain=self._waits_in_vain
        )
        self._runner = GenerationRunner(
            scheduler=self.scheduler,
            room=self._room,
            dispatcher=self._relay,
            metrics=self.metrics,
            events=self.events,
            limits=self.limits,
            clock=clock,
            spend=self.access.spend,
        )

    def update_view(self, view: FleetView) -> None:
        now_s = self.clock()
        self.view.update(view, now_s)
        self.absence.update()
        self.metrics.start_models(card.model for card in view.models)
        self._pool.update(view)
        self.scheduler.set_unreachable(self._relay.unreachable_units())
        self.scheduler.update_view(view, now_s)
        self._room.refuse()
        self._room.pump()
        for card in view.models[:_PRELOADED_TOKENIZERS]:
            self._tokenizers.preload(card)

    def _waits_in_vain(self, request: AdmissionRequest) -> RouterError | None:
        if not self.view.offers(request.model, request.weights):
            return WeightsChanged(model=request.model, has_begun=False, retry_after_s=_RETRY_AFTER_S)
        if (reason := self.view.load_failure(request.model)) is not None:
            return load_failed(request.model, reason)
        return too_long(request, self.view.max_model_len(request.model))

    def note_unreachable(self) -> None:
        """Keeps requests from units that this gateway does not reach now, or again lets them go there."""
        self.scheduler.set_unreachable(self._relay.unreachable_units())
        self._room.pump()

    def end_answers(self) -> None:
        """Ends what waits or has begun with an error that says to ask again."""
        self._room.close()
        self._pool.end()

    async def close(self) -> None:
        self.end_answers()
        await self._pool.close()
        self._tokenizers.close()
        self._replies.close()

    def known_view(self) -> LiveView:
        """The view, for answers that say what the fleet has not got: before there is one, nobody knows.

        Raises:
            GatewayNotReady: the control loop has told nothing yet.
        """
        if self.view.updated_s is None:
            raise GatewayNotReady(knows_fleet=False, retry_after_s=_FIRST_VIEW_RETRY_S)
        return self.view

    def patience_s(self, caller: Caller) -> float:
        """Returns how long a request of the caller waits for a unit."""
        return self._context.patience_s(caller)

    def demand_report(self) -> DemandReport:
        """Returns what this gateway has been asked for, for the control loop."""
        return self.scheduler.demand_report(self.clock())

    def ready_models(self) -> list[str]:
        """Raises:
        GatewayNotReady: no model is routable, nor can be woken by a request.
        """
        view, models = self.known_view(), self.routable_models()
        if not models and not any(card.can_wake for card in view.current.models):
            raise GatewayNotReady(knows_fleet=True, retry_after_s=_RETRY_AFTER_S)
        return models

    def routable_models(self) -> list[str]:
        """Models that a request would find ready here: on a unit, and their tokenizer loaded, which takes seconds."""
        cards = [card for card in self.view.current.models if self.scheduler.is_ready(card.model)]
        return [card.model for card in cards if not (self._tokenizers.is_loading(card) or self.lacks_tokenizer(card))]

    def lacks_tokenizer(self, card: ModelCard) -> bool:
        """Its tokenizer did not load: requests to the model are refused until it does."""
        return self._tokenizers.has_failed(card)

    def card(self, model: str) -> ModelCard:
        """Raises:
        ModelNotFound: the fleet does not offer it.
        GatewayNotReady: it is not known yet what the fleet offers.
        """
        card = self.known_view().card(model)
        if card is None:
            raise ModelNotFound(model=model)
        return card

    def _card_to_serve(self, model: str) -> ModelCard:
        """Names the weights that a prompt is made for. Raises as `card`."""
        card, ready = self.card(model), self.view.ready_cards(model)
        return card if all(of_unit is card for of_unit in ready) else self._weights.among(ready)

    async def chat(
        self,
        request: ChatCompletionRequest,
        caller: Caller = ANYBODY,
        make_reply: Callable[[str], ReplyFormat] | None = None,
    ) -> RenewedResponse:
        """`make_reply` makes the reply's form for a model, that of chat completions by default.

        Raises a RouterError if the request cannot be accepted; errors of its generation come with its outputs.
        """
        caller = caller.asking(request.asked_priority, request.session_id)
        report = self._enter(request.model, caller)

        async def prepared() -> GenerationResponse:
            card = self._card_to_serve(request.model)
            prompt = await chat_prompt(request, card, self._tokenizers, max_tokens=self._longest(card))
            reply = chat_reply(request, caller, prompt.token_ids) if make_reply is None else make_reply(card.model)
            return await self._answer(card, request, [prompt], reply, caller, report, param="messages")

        return await RenewedResponse.of(prepared)

    async def prompt_of(self, request: ChatCompletionRequest) -> Prompt:
        """Makes the prompt that the request would have. Raises a RouterError."""
        card = self.card(request.model)
        return await chat_prompt(request, card, self._tokenizers, max_tokens=self._longest(card))

    async def tokenize(self, request: TokenizeRequest) -> Tokenized:
        """Raises a RouterError."""
        card = self.card(request.model)
        longest = self.limits.max_prompt_tokens
        token_ids, names = await tokenize(request, card, self._tokenizers, max_tokens=longest)
        context = self.view.context(card.model)
        max_model_len = context and context.lately
        return Tokenized(count=len(token_ids), max_model_len=max_model_len, tokens=token_ids, token_strs=names)

    async def detokenize(self, request: DetokenizeBody) -> Detokenized:
        """Raises a RouterError."""
        card = self.card(request.model)
        longest = self.limits.max_prompt_tokens
        return Detokenized(prompt=await detokenize(request, card, self._tokenizers, max_tokens=longest))

    async def complete(self, request: CompletionRequest, caller: Caller = ANYBODY) -> RenewedResponse:
        """Answers a completion as `chat` does a chat."""
        caller = caller.asking(request.asked_priority, request.session_id)
        report = self._enter(request.model, caller)
        if len(request.prompts) * request.num_choices > self.limits.max_choices:
            message = f"Prompts times n, or best_of, exceed {self.limits.max_choices} choices; send fewer per request."
            raise InvalidRequest(message, param="prompt")

        async def prepared() -> GenerationResponse:
            card = self._card_to_serve(request.model)
            prompts = await completion_prompts(request, card, self._tokenizers, max_tokens=self._longest(card))
            choices = [prompt for prompt in prompts for _ in range(request.num_choices)]
            reply = CompletionReply(
                new_head("cmpl-", card.model, service_tier=caller.service_tier if request.service_tier else None),
                request,
                echoes=[prompt.echo for prompt in choices],
                prompt_token_ids=[prompt.token_ids for prompt in choices] if request.return_token_ids else None,
            )
            return await self._answer(card, request, prompts, reply, caller, report, param="prompt")

        return await RenewedResponse.of(prepared)

    async def pooled(
        self,
        make: Callable[..., Awaitable[PoolingPrompts[AnswerT]]],
        request: EmbeddingsRequest | RerankRequest | ScoreRequest,
        caller: Caller = ANYBODY,
    ) -> RenewedDocument[AnswerT]:
        """Answers as `chat` does a chat what `make` makes of the request: prompts of which nothing is generated. Those
        beyond `max_choices` wait for those before them.
        """
        model = request.model
        report = self._enter(model, caller)

        async def prepared() -> AnswerT:
            card = self._card_to_serve(model)
            asked = await make(request, card, self._tokenizers, max_tokens=self._longest(card))
            report.prompt_tokens = asked.num_tokens
            longest = longest_of(asked.prompts, self.limits, asked.param) + 1
            context = await self._context_for(card.model, caller, report, longest)
            generations = asked.generations(card, context, report, gives_way=caller.priority is Priority.LOW)
            outputs = [self._runner.run(generation, caller, report) for generation in generations]
            return asked.answer(interleave(so_many_at_once(outputs, self.limits.max_choices)), report)

        return await RenewedDocument.of(prepared)

    def _enter(self, model: str, caller: Caller) -> ServiceReport:
        """Raises what `card` raises, and:
        Overloaded: its queue is full of what nobody would give way for; said before the prompt is worked on.
        """
        card = self.card(model)
        admission = self.scheduler.admission
        if admission.num_waiting(model) >= self.limits.max_queued and not admission.queues.size(model):
            self.metrics.shed.labels(model).inc(int(caller.is_judged))
            self.events.shed(model=model, request_id=caller.request_id)
            retry_after_s = self.scheduler.turned_away(model, is_judged=caller.is_judged)
            raise Overloaded(model=model, retry_after_s=retry_after_s)
        return ServiceReport(
            granted=caller.slo(card.slo),
            started_s=self.clock(),
            request_id=caller.request_id,
            traceparent=caller.traceparent,
        )

    async def _context_for(self, model: str, caller: Caller, report: ServiceReport, longest: int) -> ContextLengths:
        """Returns the model's context length, at once where it is known. Raises as `ContextWait.until_taken`."""
        context = self.view.context(model)
        if context is None or context.is_short_for_now(longest):
            context = await self._context.until_taken(model, caller, report, longest)
        return context

    def _longest(self, card: ModelCard) -> int:
        """Tokens of the longest sequence: what the model's units take, or any, before one was ready."""
        context = self.view.context(card.model)
        return self.limits.max_prompt_tokens if context is None else min(context.lately, self.limits.max_prompt_tokens)

    async def _answer(
        self,
        card: ModelCard,
        request: GenerationParameters,
        prompts: Sequence[Prompt],
        reply: ReplyFormat,
        caller: Caller,
        report: ServiceReport,
        *,
        param: str,
    ) -> GenerationResponse:
        prompt_tokens = report.prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        longest = longest_of(prompts, self.limits, param) + (request.asked_max_tokens or 1)
        check_prompt_logprobs(request, prompts)
        context = await self._context_for(card.model, caller, report, longest)
        form = request.structured_output
        self._check_form(card, form)
        if form is None and self.view.constrains(card.model):
            form = prompts[0].calls_form
        if form is not None and prompts[0].before_answer:
            form = replace(form, before=prompts[0].before_answer)
        await check_named_tokens(request, card, self._tokenizers)
        bad_words = await bad_word_tokens(request, card, self._tokenizers)
        sampling = partial(request.sampling, form=form, bad_words=bad_words)
        gives_way = caller.priority is Priority.LOW
        generations = generations_of(card, request, prompts, param, context, report, sampling, gives_way=gives_way)
        return GenerationResponse(
            interleave([self._outputs(generation, request, caller, report) for generation in generations]),
            reply,
            num_choices=len(generations),
            choices_per_prompt=request.num_choices,
            prompt_tokens=prompt_tokens,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
            report=report,
        )

    def _outputs(
        self, generation: Generation, request: GenerationParameters, caller: Caller, report: ServiceReport
    ) -> AsyncGenerator[Output, None]:
        outputs = self._runner.run(generation, caller, report)
        if request.is_prompt_only:
            return without_completion(outputs)
        if generation.reply is None:
            return outputs
        reply = self._replies.opened(generation.model, generation.reply)
        return read_parts(outputs, reply, streams=request.streams, max_calls=request.max_calls)

    def _check_form(self, card: ModelCard, form: StructuredOutput | None) -> None:
        if form is not None and not self.view.constrains(card.model):
            message = (
                f"No unit that serves {card.model!r} can make its output follow a format; "
                f"leave {form.param} out, or serve the model on a pool that can (SGLang's with a grammar_backend)."
            )
            raise UnsupportedParameter(message, param=form.param)
