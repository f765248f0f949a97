"""The newest view of the fleet, and a way to wait for the next one."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport
from router.view import FleetView, ModelCard


class ChangeSignal:
    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        """Wakes all that wait now."""
        told, self._next = self._next, asyncio.Event()
        told.set()

    async def changed(self) -> None:
        """Returns at the next change."""
        await self._next.wait()  # no deadline: the caller's

    async def changed_within(self, timeout_s: float) -> None:
        """Returns at the next change, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 can lose a cancellation
                await self._next.wait()
        except TimeoutError:
            return


_MOVE_S = 60.0  # models that come and go lower the quotas of their neighbours for about so long
_HAS_OR_WILL = frozenset({ModelPhase.READY, ModelPhase.STALLED, ModelPhase.LOADING, ModelPhase.DRAINING})
_NOTHING = FleetView(models=(), units=(), stream_token="")


@dataclass(frozen=True, slots=True)
class ContextLengths:
    """Tokens of the longest sequence that any unit takes: `now`, or, where it was more, in the last minute. What a
    quota that was lowered for a move does not admit waits for a while, and is not refused for good.
    """

    now: int
    lately: int
    lately_s: float

    def is_short_for_now(self, tokens: int) -> bool:
        return self.now < tokens <= self.lately


class LiveView:
    """Keeps the last view for as long as no newer one comes: a lost control loop does not stop traffic."""

    def __init__(self) -> None:
        self._view = _NOTHING
        self._cards: Mapping[str, ModelCard] = {}
        self._max_model_lens: dict[str, ContextLengths] = {}
        self._ready: Mapping[str, Sequence[ModelCard]] = {}
        self._signal = ChangeSignal()
        self.updated_s: float | None = None

    @property
    def current(self) -> FleetView:
        return self._view

    def update(self, view: FleetView, now_s: float) -> None:
        self._view = view
        self._cards = {card.model: card for card in view.models}
        known = {m: length for m, length in self._max_model_lens.items() if m in self._cards}
        ready, lengths = dict[str, list[ModelCard]](), dict[str, int]()
        for unit in view.units:
            for status in unit.report.models:
                if status.phase is ModelPhase.READY:
                    if (card := self._cards.get(status.model)) is not None:
                        ready.setdefault(status.model, []).append(_of_unit(card, unit.report, status))
                    if status.max_model_len is not None:
                        lengths[status.model] = max(lengths.get(status.model, 0), status.max_model_len)
        self._ready = ready
        self._max_model_lens = known | {m: _offered(known.get(m), tokens, now_s) for m, tokens in lengths.items()}
        self.updated_s = now_s
        self._signal.tell()

    def card(self, model: str) -> ModelCard | None:
        return self._cards.get(model)

    def is_ready(self, model: str) -> bool:
        """Says whether a unit has the model, or had it in the last view."""
        return model in self._ready

    def ready_cards(self, model: str) -> Sequence[ModelCard]:
        """Returns one for each unit that has the model ready: a unit that has yet to be given the fleet file's weights
        has those before.
        """
        return self._ready.get(model, ())

    def offers(self, model: str, weights: tuple[str | None, ...]) -> bool:
        """Says whether what was made for these weights of the model may still be served."""
        card = self._cards.get(model)
        return card is None or card.weights == weights or any(c.weights == weights for c in self.ready_cards(model))

    def context(self, model: str) -> ContextLengths | None:
        """None before the first unit was ready."""
        return self._max_model_lens.get(model)

    def max_model_len(self, model: str) -> int | None:
        known = self.context(model)
        return None if known is None else known.lately

    def constrains(self, model: str) -> bool:
        """Returns whether a unit with the model can make its output follow a schema. While none has it: one may
        come.
        """
        reports = [unit.report for unit in self._view.units]
        holders = [r for r in reports if any(status.model == model for status in r.models)]
        return not holders or any(r.constrains for r in holders)

    def phases(self, model: str) -> frozenset[ModelPhase]:
        return frozenset(
            status.phase for unit in self._view.units for status in unit.report.models if status.model == model
        )

    def load_failure(self, model: str) -> str | None:
        """Says why no unit has a model, where none is about to: they have failed to load it, or will not try for now.
        An adapter that fails while its base is away comes with it.
        """
        card = self._cards.get(model)
        of_model = [(unit.report, s) for unit in self._view.units for s in unit.report.models if s.model == model]
        if card is None or any(s.phase in _HAS_OR_WILL for _, s in of_model):
            return None
        failed = [s for report, s in of_model if s.phase is ModelPhase.FAILED and _has_base(report, s)]
        if failed:
            return failed[0].error or "its unit gave no reason"
        return card.problem or (None if card.adapter_of is None else self.load_failure(card.adapter_of))

    async def first(self) -> None:
        """Returns once there is a view."""
        while self.updated_s is None:
            await self._signal.changed()  # no deadline: Serve shows the replica as starting for so long

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next update, or after `timeout_s`."""
        await self._signal.changed_within(timeout_s)


def _of_unit(card: ModelCard, report: UnitReport, status: ModelStatus) -> ModelCard:
    """The card of the weights that a unit has."""
    weights = report.weights_of(status)
    if weights == card.weights or not (weights and card.weights):  # an earlier release does not tell
        return card
    text = report.base_of(status) or status  # an adapter has its base's tokenizer
    origin = text.origin or status.origin
    assert origin is not None, "it has told its weights"
    return replace(card, source=origin.source, revision=origin.revision, weights=weights)


def _has_base(report: UnitReport, status: ModelStatus) -> bool:
    base = report.base_of(status)
    return status.base is None or (base is not None and base.phase is ModelPhase.READY)


def _offered(before: ContextLengths | None, tokens: int, now_s: float) -> ContextLengths:
    if before is None or tokens >= before.lately or now_s - before.lately_s > _MOVE_S:
        return ContextLengths(tokens, tokens, now_s)
    return ContextLengths(tokens, before.lately, before.lately_s)
