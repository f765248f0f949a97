"""An executor's models as one lane of a rank computes with them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

from pdmux_actor.executor.model_runner import AttachedModel
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.parallel_projections import VocabularyParts, on_lane
from pdmux_actor.models.decoder import Decoder, LayeredDecoder


class _WithDecoder(Protocol):
    @property
    def decoder(self) -> LayeredDecoder: ...


Model = TypeVar("Model", bound=_WithDecoder)


@dataclass(frozen=True, slots=True)
class _OfLane(Generic[Model]):
    whole: Model
    model: Model
    head: VocabularyParts


def with_decoder(whole: AttachedModel, decoder: LayeredDecoder) -> AttachedModel:
    return replace(whole, decoder=decoder)


class LaneModels(Mapping[str, Model]):
    """The same models, with decoders that sum over the ranks in this lane's group. `with_decoder` makes of a model one
    with another decoder.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        group: LaneGroup,
        with_decoder: Callable[[Model, LayeredDecoder], Model],
        around_head: Callable[[str, int], AbstractContextManager[None]] = lambda model, num_tokens: nullcontext(),
    ) -> None:
        """`around_head` is entered for products of a model's vocabulary with so many tokens."""
        self._with_decoder = with_decoder
        self._around_head = around_head
        self._models = models
        self._group = group
        self._made: dict[str, _OfLane[Model]] = {}

    def __getitem__(self, model: str) -> Model:
        return self._of_lane(model).model

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def head(self, model: str) -> VocabularyParts:
        return self._of_lane(model).head

    def forget(self, model: str) -> None:
        self._made.pop(model, None)

    def _of_lane(self, model: str) -> _OfLane[Model]:
        whole = self._models[model]
        made = self._made.get(model)
        if made is None or made.whole is not whole:
            assert isinstance(whole.decoder, Decoder), "what cannot be divided was refused when it was loaded"
            decoder, head = on_lane(whole.decoder, self._group, partial(self._around_head, model))
            made = self._made[model] = _OfLane(whole, self._with_decoder(whole, decoder), head)
        return made
