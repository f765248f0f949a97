"""The life of one accepted generation: choose a unit, stream, and go on elsewhere if the unit is lost."""

import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace

import msgspec

from pdmux_actor.errors import StreamRefused, UnitLost, UnitStalled
from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import FinishReason, GenerateRequest, Slo
from pdmux_actor.serving.frames import Delta, KvMoved, TokenLogprob
from router.errors import (
    ContextLengthExceeded,
    GatewayNotReady,
    GenerationFailed,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    RequestKilledUnits,
    UnitsLost,
    WeightsChanged,
)
from router.gateway_scheduler import GatewayScheduler
from router.generation import Generation, Output, ThinkingBudget
from router.limits import GatewayLimits
from router.live_view import LiveView
from router.routing.routing import UnitChoice
from router.serving.unit_losses import UnitLosses
from router.transport.frame_connection import DeltaStream, GatewayStood, Stall
from router.transport.unit_client import UnitPool, UnitUnreachable

logger = logging.getLogger(__name__)

_POLL_S = 0.5  # units become reachable again without a new view
_RETRY_AFTER_S = 5
_ENDED_RETRY_AFTER_S = 1  # another gateway is there


class _GivenBack(UnitLost):
    """The unit lives and does not want the request: the model left it, or it shuts down."""


_BLAMELESS = (UnitUnreachable, StreamRefused, GatewayStood, _GivenBack)  # no unit was lost


@dataclass(slots=True)
class _Progress:
    """Tokens of a generation. `final` ones are reflected in text that was handed out and survive the unit; `open`
    ones (held back by the detokenizer) do not: another unit generates them again, and only then are they reported.
    The prompt's log-probabilities come whole, from one unit (`has_prompt`). `cached_tokens` of the prompt wait for the
    first tokens that are final: another unit finds those beside the prompt. `kv_from` is the frame stream of the unit
    that computed the prompt and has handed over; what others find cached is what they were sent. `stop_token_ids` are
    those that the request asked to end at. `budget` is of thoughts, as long as they may yet exceed it; `said` is what
    was said meanwhile.
    """

    choice: int
    stop_token_ids: tuple[int, ...] = ()
    budget: ThinkingBudget | None = None
    said: str = ""
    final: list[int] = field(default_factory=list)
    open: list[tuple[int, TokenLogprob | None]] = field(default_factory=list)
    has_prompt: bool = False
    cached_tokens: int = 0
    kv_from: str = ""

    def take(self, delta: Delta) -> Output:
        if not self.final and not self.kv_from:
            self.cached_tokens = self.cached_tokens or delta.cached_tokens
        token_ids, logprobs = self._settle(delta)
        self.final.extend(token_ids)
        if self.budget is not None:
            self.said += delta.text
        is_told = bool(token_ids) or delta.finish is not None
        cached_tokens, self.cached_tokens = (self.cached_tokens, 0) if is_told else (0, self.cached_tokens)
        self.has_prompt = self.has_prompt or bool(delta.prompt)
        return Output(
            text=delta.text,
            num_tokens=len(token_ids),
            choice=self.choice,
            cached_tokens=cached_tokens,
            logprobs=logprobs,
            token_ids=token_ids,
            prompt=delta.prompt,
            embedding=delta.embedding,
            unshown_tokens=0 if delta.text else len(delta.token_ids),
            finish=delta.finish,
            stop=delta.stop,
            stop_token_id=self._stop_token_id(delta),
        )

    def overthinks(self) -> bool:
        if self.budget is None or len(self.final) < self.budget.tokens:
            return False
        if not self.budget.is_thinking(self.said):
            self.budget = None
        return self.budget is not None

    def end_thoughts(self) -> Output:
        """Puts their end into the reply: what units have said beyond it is lost."""
        assert self.budget is not None
        budget, self.budget = self.budget, None
        self.open.clear()
        self.final.extend(budget.end_token_ids)
        num_tokens = len(budget.end_token_ids)
        return Output(text=budget.end, num_tokens=num_tokens, choice=self.choice, token_ids=budget.end_token_ids)

    def lose_unit(self, endpoint: str) -> None:
        self.open.clear()
        if self.kv_from == endpoint:
            self.kv_from = ""
        if not self.kv_from:
            self.cached_tokens = 0

    def hand_over(self, endpoint: str) -> None:
        """The unit there has computed the prompt, and is done."""
        self.open.clear()
        self.kv_from = endpoint

    def _stop_token_id(self, delta: Delta) -> int | None:
        """Returns the last token where it is one that the request asked to end at, and ended it."""
        if delta.finish is not FinishReason.STOP or delta.stop or not self.final:
            return None
        return self.final[-1] if self.final[-1] in self.stop_token_ids else None

    def _settle(self, delta: Delta) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        """Moves what is final now out of `open`."""
        held_back = 0 if delta.finish is not None else delta.held_back
        if not (self.open or held_back or delta.logprobs):  # most Deltas
            return tuple(delta.token_ids), ()
        logprobs: Sequence[TokenLogprob | None] = delta.logprobs or [None] * len(delta.token_ids)
        self.open.extend(zip(delta.token_ids, logprobs, strict=True))
        kept = len(self.open) - held_back
        settled, self.open = self.open[:kept], self.open[kept:]
        return tuple(token_id for token_id, _ in settled), tuple(p for _, p in settled if p is not None)


class GenerationRelay:
    def __init__(
        self,
        *,
        view: LiveView,
        pool: UnitPool,
        scheduler: GatewayScheduler,
        limits: GatewayLimits,
        clock: Callable[[], float],
        on_continuation: Callable[[Generation, str, str], None],
        on_kv_moved: Callable[[str, KvMoved], None],
    ) -> None:
        """`on_continuation` is told of the generation, the unit that it lost, and why; `on_kv_moved` of a model's
        prompt whose KV went from unit to unit.
        """
        self._view = view
        self._pool = pool
        self._scheduler = scheduler
        self._limits = limits
        self._clock = clock
        self._on_continuation = on_continuation
        self._on_kv_moved = on_kv_moved

    async def run(self, generation: Generation, choice: UnitChoice) -> AsyncGenerator[Output, None]:
        """Yields the outputs of a generation that was admitted to `choice`, on whatever units it runs.

        Ends with exactly one Output that has `finish` set, or raises; closing it early cancels the generation.

        Raises:
            ModelUnavailable: no unit with room for it became ready in time.
            GenerationFailed: the engine gave it up for a reason that another unit would share.
            UnitsLost: too many units were lost under it.
            RequestKilledUnits: units died under it one after the other before they gave it a token: it may be why.
            WeightsChanged: no unit has the weights any more that it was prepared for.
            GatewayNotReady: the gateway ends.
        """
        progress = _Progress(generation.choice, generation.sampling.stop_token_ids, generation.thinking)
        failed: set[str] = set()
        waiting_since_s = self._clock()
        losses = UnitLosses()
        is_cut = False
        legs = itertools.count()
        unit = choice
        while len(progress.final) < generation.sampling.max_tokens:
            if failed or progress.kv_from or is_cut:
                is_cut = False
                next_unit = await self._wait_for_unit(generation, failed, waiting_since_s, progress)
                if next_unit is None:
                    break
                unit = next_unit if not progress.kv_from else replace(next_unit, wait_s=0.0, prefill_s=0.0)
                self._scheduler.sent(generation.request_id, unit, self._clock())
            kept_tokens = len(progress.final)
            try:
                with closing(await self._open(generation, unit, progress, next(legs))) as deltas:
                    async for delta in deltas:
                        output = self._output(generation, unit, delta, progress, failed)
                        if output is not None:
                            yield output
                            if output.finish is not None:
                                return
                            waiting_since_s = self._clock()
                            if is_cut := progress.overthinks():
                                break
                if not (is_cut or unit.hands_over):
                    raise UnitLost(endpoint=unit.endpoint, reason="the stream ended without a last Delta")
                self._scheduler.left(generation.request_id, self._clock())
                if is_cut:
                    yield progress.end_thoughts()
                else:
                    progress.hand_over(unit.endpoint)
            except (UnitLost, StreamRefused) as error:
                self._scheduler.left(generation.request_id, self._clock())
                self._check_pool()
                _count(losses, error, was_served=len(progress.final) > kept_tokens)
                failed.add(unit.unit_id)
                progress.lose_unit(unit.endpoint)
                self._note_loss(generation, unit, progress, error)
            if losses.deaths >= self._limits.max_deaths:
                raise RequestKilledUnits(model=generation.model, units=losses.deaths)
            if losses.attempts >= self._limits.max_attempts:
                raise UnitsLost(model=generation.model, attempts=losses.attempts, retry_after_s=_RETRY_AFTER_S)
        # Nothing but the end was lost.
        yield Output(text="", num_tokens=0, choice=generation.choice, finish=FinishReason.LENGTH)

    async def _open(self, generation: Generation, unit: UnitChoice, progress: _Progress, leg: int) -> DeltaStream:
        slo = self._scheduler.slo_left(generation.request_id)
        request = _continuation(generation, progress, leg, slo)
        if unit.hands_over:
            request = replace(request, hands_over=True, sampling=replace(request.sampling, max_tokens=1))
        elif progress.kv_from != unit.endpoint:
            request = replace(request, kv_from=progress.kv_from)
        return await self._pool.open(unit.endpoint, request)

    def _output(
        self, generation: Generation, unit: UnitChoice, delta: Delta | Stall, progress: _Progress, failed: Set[str]
    ) -> Output | None:
        """None: it says nothing that can be told."""
        if isinstance(delta, Stall):
            self._raise_if_others_can(generation, unit, delta, failed, progress)
            return None
        if delta.finish is not None:
            if delta.finish in (FinishReason.ERROR, FinishReason.ABORT):
                raise _failure(generation.model, unit, delta)
            if unit.hands_over and delta.finish is FinishReason.LENGTH:
                delta = msgspec.structs.replace(delta, finish=None)  # it goes on
        if delta.kv_moved is not None:
            self._on_kv_moved(generation.model, delta.kv_moved)
        output = progress.take(delta)
        tells = output.text or output.num_tokens or output.prompt or output.finish is not None
        keeps_pace = output.unshown_tokens and generation.shows_output and not unit.hands_over
        return output if tells or keeps_pace else None

    def _raise_if_others_can(
        self, generation: Generation, unit: UnitChoice, stall: Stall, failed: Set[str], progress: _Progress
    ) -> None:
        """Where no other unit can serve it, the stream stays where it is: the unit comes to itself, or is replaced."""
        self._scheduler.set_unreachable(self.unreachable_units())
        if self._route(generation, failed | {unit.unit_id}, progress) is not None:
            raise UnitStalled(endpoint=unit.endpoint, reason=stall.reason)

    def _note_loss(self, generation: Generation, unit: UnitChoice, progress: _Progress, error: Exception) -> None:
        self._on_continuation(generation, unit.unit_id, str(error))
        logger.warning(
            "request lost its unit",
            extra={
                "request_id": generation.client_request_id,
                "generation_id": generation.request_id,
                "model": generation.model,
                "unit": unit.unit_id,
                "reason": str(error),
                "kept_tokens": len(progress.final),
            },
        )

    async def _wait_for_unit(
        self, generation: Generation, failed: set[str], since_s: float, progress: _Progress
    ) -> UnitChoice | None:
        """None: it has come to the end of the context that it was to fill, which is shorter than it was."""
        started_s = self._clock()
        left_out = set(failed)
        while True:
            if progress.final and self._fills_context(generation, len(progress.final)):
                return None
            self._check_pool()
            self._check_weights(generation, progress)
            self._scheduler.set_unreachable(self.unreachable_units())
            unit = self._route(generation, left_out, progress)
            if unit is not None:
                return unit
            waited_s, patience_s = self._clock() - since_s, self._patience_s(generation, progress)
            self._raise_if_hopeless(generation, waited_s, patience_s)
            await self._view.changed(min(_POLL_S, patience_s - waited_s))
            if self._clock() - started_s >= self._limits.avoid_s:
                left_out.clear()

    def _check_pool(self) -> None:
        if self._pool.is_ended:
            raise gateway_ends()

    def _check_weights(self, generation: Generation, progress: _Progress) -> None:
        """Raises WeightsChanged: the rest of what was begun would be another model's, and so might its prompt."""
        model = generation.model
        if not self._view.offers(model, generation.weights):
            raise WeightsChanged(model=model, has_begun=bool(progress.final), retry_after_s=_RETRY_AFTER_S)

    def _route(self, generation: Generation, avoid: Set[str], progress: _Progress) -> UnitChoice | None:
        is_prefilled = bool(progress.kv_from or progress.final)
        return self._scheduler.route(generation.request_id, self._clock(), avoid=avoid, is_prefilled=is_prefilled)

    def _fills_context(self, generation: Generation, output_tokens: int) -> bool:
        context = self._view.context(generation.model)
        known = len(generation.prompt_token_ids) + output_tokens
        return generation.fills_context and context is not None and known >= context.now

    def unreachable_units(self) -> frozenset[str]:
        endpoints = self._pool.unreachable()
        if not endpoints:
            return frozenset()
        return frozenset(u.report.unit_id for u in self._view.current.units if u.report.endpoint in endpoints)

    def _patience_s(self, generation: Generation, progress: _Progress) -> float:
        card = self._view.card(generation.model)
        has_turns = card is not None and card.has_turns
        return self._limits.begun_hold_s if has_turns and progress.final else self._limits.hold_s

    def _raise_if_hopeless(self, generation: Generation, waited_s: float, patience_s: float) -> None:
        model = generation.model
        if self._view.card(model) is None:
            raise ModelNotFound(model=model)
        longest = self._view.max_model_len(model)
        if longest is not None and generation.needed_tokens > longest:
            # The length was unknown, or longer, when the request was accepted.
            raise ContextLengthExceeded(
                max_model_len=longest,
                prompt_tokens=len(generation.prompt_token_ids),
                max_tokens=generation.sampling.max_tokens,
                param=generation.prompt_param,
            )
        if waited_s >= patience_s:
            loading = ModelPhase.LOADING in self._view.phases(model)
            raise ModelUnavailable(model=model, loading=loading, waited_s=waited_s, retry_after_s=_RETRY_AFTER_S)


def _count(losses: UnitLosses, error: UnitLost | StreamRefused, *, was_served: bool) -> None:
    is_lost = not isinstance(error, _BLAMELESS)
    losses.count(is_lost=is_lost, has_died=is_lost and not isinstance(error, UnitStalled), was_served=was_served)


def gateway_ends() -> GatewayNotReady:
    return GatewayNotReady(knows_fleet=True, ends=True, retry_after_s=_ENDED_RETRY_AFTER_S)


def _continuation(generation: Generation, progress: _Progress, leg: int, slo: Slo) -> GenerateRequest:
    sampling = generation.sampling
    if progress.has_prompt:
        sampling = replace(sampling, prompt_logprobs=None)
    return GenerateRequest(
        request_id=f"{generation.request_id}.{leg}",
        model=generation.model,
        prompt_token_ids=generation.prompt_token_ids,
        sampling=sampling,
        slo=slo,
        output_token_ids=tuple(progress.final),
        stop=generation.stop,
        skip_special_tokens=generation.skip_special_tokens,
        shows_stop=generation.shows_stop,
        cache_salt=generation.cache_salt,
        gives_way=generation.gives_way,
        embeds=generation.embeds,
        scored_tokens=generation.scored_tokens,
        traceparent=generation.traceparent,
        weights=generation.weights,
    )


def _failure(model: str, unit: UnitChoice, delta: Delta) -> UnitLost | GenerationFailed | InvalidRequest:
    # An abort that nobody asked for: the unit let go of the model.
    if delta.retryable or delta.finish is FinishReason.ABORT:
        reason = delta.error or "the unit gave the request back"
        loss = UnitLost if delta.engine_died else _GivenBack
        return loss(endpoint=unit.endpoint, reason=reason)
    if delta.param is not None:
        return InvalidRequest(f"Invalid {delta.param!r}: {delta.error}", param=delta.param, code="invalid_value")
    return GenerationFailed(model=model, reason=delta.error or "no reason given")
