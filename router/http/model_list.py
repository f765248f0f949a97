"""GET /v1/models: the fleet's models as clients see them."""

from collections.abc import Callable
from typing import Literal

from pdmux_actor.lease import ModelPhase
from router.live_view import LiveView
from router.openai.schemas import Model, ModelList, SloTargets
from router.view import ModelCard


def model_list(
    view: LiveView, may_see: Callable[[str], bool], lacks_tokenizer: Callable[[ModelCard], bool]
) -> ModelList:
    cards = [card for card in view.current.models if may_see(card.model)]
    return ModelList(data=[model_entry(view, card, lacks_tokenizer=lacks_tokenizer(card)) for card in cards])


def model_entry(view: LiveView, card: ModelCard, *, lacks_tokenizer: bool) -> Model:
    return Model(
        id=card.model,
        created=card.created_s,
        root=card.adapter_of or card.model,
        parent=card.adapter_of,
        max_model_len=view.max_model_len(card.model),
        status="failed" if lacks_tokenizer else _status(view.phases(card.model)),
        slo=SloTargets(ttft_s=card.slo.ttft_s, tbt_s=card.slo.tbt_s),
    )


def _status(phases: frozenset[ModelPhase]) -> Literal["ready", "loading", "failed", "unavailable"]:
    if ModelPhase.READY in phases:
        return "ready"
    if ModelPhase.LOADING in phases:
        return "loading"
    return "failed" if ModelPhase.FAILED in phases else "unavailable"
