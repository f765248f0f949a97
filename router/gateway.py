"""What a request meets between HTTP and the units. Knows neither FastAPI nor Ray."""

import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from importlib.metadata import version

from pdmux_actor.lease import ModelPhase
from router.admission import CompletionRate, Hold, Shed, admit
from router.answer import Answer, IndexedOutputs
from router.demand_report import DemandCounter
from router.dispatch import Dispatcher, Generation, Output
from router.errors import GatewayNotReady, InvalidRequest, ModelNotFound, ModelUnavailable, Overloaded
from router.fanout import interleave
from router.in_flight import InFlight
from router.limits import GatewayLimits
from router.live_view import LiveView
from router.metrics import GatewayMetrics
from router.openai.chat import ChatCompletionRequest
from router.openai.chat_reply import ChatReply
from router.openai.completion_reply import CompletionReply
from router.openai.completions import CompletionRequest
from router.openai.parameters import GenerationParameters
from router.openai.reply import ReplyHead
from router.prompts import Prompt, chat_prompt, completion_prompts, completion_tokens
from router.tokenization import Tokenizers
from router.unit_pool import UnitPool
from router.view import FleetView, ModelCard

VERSION = version("muxfleet")
_RETRY_AFTER_S = 5
_PRELOADED_TOKENIZERS = 16


class Gateway:
    """Call from one event loop. `update_view` is its only news of the fleet."""

    def __init__(self, limits: GatewayLimits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or GatewayLimits()
        self.view = LiveView()
        self._clock = clock
        self._pool = UnitPool()
        self._tokenizers = Tokenizers(max_entries=self.limits.max_tokenizers)
        self._in_flight = InFlight()
        gateway_id = uuid.uuid4().hex
        self.demand = DemandCounter(gateway_id, self._in_flight.queued)
        self._rates: dict[str, CompletionRate] = {}
        self.metrics = GatewayMetrics(
            version=VERSION,
            view=lambda: self.view.current,
            view_age_s=lambda: -1.0 if self.view.updated_s is None else clock() - self.view.updated_s,
        )
        self._dispatcher = Dispatcher(
            view=self.view,
            transports=self._pool,
            in_flight=self._in_flight,
            limits=self.limits,
            clock=clock,
            on_continuation=lambda model: self.metrics.continuations.labels(model).inc(),
            salt=gateway_id,
        )

    def update_view(self, view: FleetView) -> None:
        known = {(card.source, card.revision) for card in self.view.current.models}
        self.view.update(view, self._clock())
        self._in_flight.on_view()
        self._pool.update(view)
        self._rates = {m: r for m, r in self._rates.items() if self.view.card(m) is not None}
        self.demand.forget_all_but(card.model for card in view.models)
        for card in view.models[:_PRELOADED_TOKENIZERS]:
            if (card.source, card.revision) not in known:
                self._tokenizers.preload(card)

    async def close(self) -> None:
        await self._pool.close()
        self._tokenizers.close()

    def ready_models(self) -> list[str]:
        """Raises:
        GatewayNotReady: no model is routable.
        """
        models = self.routable_models()
        if not models:
            raise GatewayNotReady(retry_after_s=_RETRY_AFTER_S)
        return models

    def routable_models(self) -> list[str]:
        """Models that a request would find ready here: on a unit, and their tokenizer loaded, which takes seconds."""
        cards = [card for card in self.view.current.models if self.is_ready(card.model)]
        return [card.model for card in cards if not self._tokenizers.is_loading(card)]

    def is_ready(self, model: str) -> bool:
        return ModelPhase.READY in self.view.phases(model)

    def card(self, model: str) -> ModelCard:
        """Raises:
        ModelNotFound: the fleet does not offer it.
        """
        card = self.view.card(model)
        if card is None:
            raise ModelNotFound(model=model)
        return card

    async def chat(self, request: ChatCompletionRequest) -> Answer:
        """Raises a RouterError if the request cannot be accepted; errors of its generation come with its outputs."""
        card = self.card(request.model)
        self.demand.asked(card.model)
        deadline_s = self._admit(card)
        prompt = await chat_prompt(request, await self._tokenizers.of(card), self._tokenizers)
        head = self._head(card, "chatcmpl")
        with_logprobs = request.asked_logprobs is not None
        reply = ChatReply(head, with_logprobs=with_logprobs, usage_is_asked=request.include_usage)
        outputs, num_choices = await self._outputs(card, request, [prompt], "messages", deadline_s)
        return self._answer(outputs, reply, num_choices, [prompt], request)

    async def complete(self, request: CompletionRequest) -> Answer:
        """As `chat`."""
        card = self.card(request.model)
        if len(request.prompts) * request.num_choices > self.limits.max_choices:
            message = f"Prompts times n exceed {self.limits.max_choices} choices; send fewer per request."
            raise InvalidRequest(message, param="prompt")
        self.demand.asked(card.model)
        deadline_s = self._admit(card)
        prompts = await completion_prompts(request, await self._tokenizers.of(card), self._tokenizers)
        reply = CompletionReply(
            self._head(card, "cmpl"),
            with_logprobs=request.logprobs is not None,
            usage_is_asked=request.include_usage,
            echoes=[prompt.echo for prompt in prompts for _ in range(request.num_choices)],
        )
        outputs, num_choices = await self._outputs(card, request, prompts, "prompt", deadline_s)
        return self._answer(outputs, reply, num_choices, prompts, request)

    def _admit(self, card: ModelCard) -> float:
        """Until when the request may wait for a unit."""
        now_s = self._clock()
        rate = self._rates.get(card.model)
        decision = admit(
            queued=self._in_flight.queued(card.model),
            max_queued=self.limits.max_queued,
            completions_per_s=0.0 if rate is None else rate.per_s(now_s),
            ready=self.is_ready(card.model),
            now_s=now_s,
            hold_s=self.limits.hold_s,
        )
        match decision:
            case Shed(retry_after_s=retry_after_s):
                self.metrics.shed.labels(card.model).inc()
                raise Overloaded(model=card.model, retry_after_s=retry_after_s)
            case Hold(deadline_s=deadline_s):
                return deadline_s
            case _:
                return now_s

    async def _outputs(
        self,
        card: ModelCard,
        request: GenerationParameters,
        prompts: Sequence[Prompt],
        param: str,
        deadline_s: float,
    ) -> tuple[IndexedOutputs, int]:
        """The outputs of all choices, and how many choices there are."""
        max_model_len = self.view.max_model_len(card.model)
        if max_model_len is None:
            self._in_flight.enter_queue(card.model)
            try:
                max_model_len = await self._until_ready(card, deadline_s)
            finally:
                self._in_flight.leave_queue(card.model)
        generations = self._generations(card, request, prompts, param, max_model_len)
        prompt_tokens = sum(len(p.token_ids) for p in prompts)
        self.metrics.prompt_tokens.labels(card.model).inc(prompt_tokens)
        self.demand.prompt(card.model, prompt_tokens)
        return interleave([self._timed(generation) for generation in generations]), len(generations)

    @staticmethod
    def _generations(
        card: ModelCard, request: GenerationParameters, prompts: Sequence[Prompt], param: str, max_model_len: int
    ) -> list[Generation]:
        generations: list[Generation] = []
        fallback_seed = secrets.randbits(63)
        request_id = uuid.uuid4().hex
        for prompt in prompts:
            max_tokens = completion_tokens(
                prompt_tokens=len(prompt.token_ids),
                asked=request.asked_max_tokens,
                max_model_len=max_model_len,
                param=param,
            )
            for _ in range(request.num_choices):
                choice = len(generations)
                generations.append(
                    Generation(
                        request_id=f"{request_id}-{choice}",
                        model=card.model,
                        prompt_token_ids=prompt.token_ids,
                        prompt_param=param,
                        sampling=request.sampling(max_tokens=max_tokens, choice=choice, fallback_seed=fallback_seed),
                        stop=request.stop_strings,
                        slo=card.slo,
                    )
                )
        return generations

    async def _until_ready(self, card: ModelCard, deadline_s: float) -> int:
        """The model's context length, which its first ready unit tells.

        Raises:
            ModelUnavailable: no unit was ready in time.
            ModelNotFound: the fleet stopped offering the model.
        """
        while (max_model_len := self.view.max_model_len(card.model)) is None:
            self.card(card.model)
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                loading = ModelPhase.LOADING in self.view.phases(card.model)
                raise ModelUnavailable(
                    model=card.model, loading=loading, waited_s=self.limits.hold_s, retry_after_s=_RETRY_AFTER_S
                )
            await self.view.changed(left_s)
        return max_model_len

    async def _timed(self, generation: Generation) -> AsyncGenerator[Output, None]:
        model = generation.model
        stopwatch = self.metrics.stopwatch(model, generation.slo, self._clock())
        queued = True
        self._in_flight.enter_queue(model)
        try:
            with self.metrics.in_flight.labels(model).track_inprogress():
                async with aclosing(self._dispatcher.run(generation)) as outputs:
                    async for output in outputs:
                        now_s = self._clock()
                        stopwatch.on_output(output.num_tokens, now_s)
                        self.demand.output(model, output.num_tokens)
                        if queued:
                            queued = False
                            self._in_flight.leave_queue(model)
                            self._rates.setdefault(model, CompletionRate()).record(now_s)
                        if output.finish is not None:
                            stopwatch.on_finish()
                        yield output
        finally:
            stopwatch.on_end()
            if queued:
                self._in_flight.leave_queue(model)

    def _answer(
        self,
        outputs: IndexedOutputs,
        reply: ChatReply | CompletionReply,
        num_choices: int,
        prompts: Sequence[Prompt],
        request: GenerationParameters,
    ) -> Answer:
        return Answer(
            outputs,
            reply,
            num_choices=num_choices,
            prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
        )

    @staticmethod
    def _head(card: ModelCard, prefix: str) -> ReplyHead:
        return ReplyHead(reply_id=f"{prefix}-{uuid.uuid4().hex}", model=card.model, created_s=int(time.time()))
