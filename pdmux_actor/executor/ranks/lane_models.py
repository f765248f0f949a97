"""An executor's models as one lane of a rank computes with them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from pdmux_actor.executor.model_runner import AttachedModel
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.parallel_projections import VocabularyParts, on_lane
from pdmux_actor.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class _OfLane:
    whole: AttachedModel
    model: AttachedModel
    head: VocabularyParts


class LaneModels(Mapping[str, AttachedModel]):
    """The same models, with decoders that sum over the ranks in this lane's group."""

    def __init__(
        self,
        models: Mapping[str, AttachedModel],
        group: LaneGroup,
        around_head: Callable[[str, int], AbstractContextManager[None]] = lambda model, num_tokens: nullcontext(),
    ) -> None:
        """`around_head` is entered for products of a model's vocabulary with so many tokens."""
        self._around_head = around_head
        self._models = models
        self._group = group
        self._made: dict[str, _OfLane] = {}

    def __getitem__(self, model: str) -> AttachedModel:
        return self._of_lane(model).model

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def head(self, model: str) -> VocabularyParts:
        return self._of_lane(model).head

    def forget(self, model: str) -> None:
        self._made.pop(model, None)

    def _of_lane(self, model: str) -> _OfLane:
        whole = self._models[model]
        made = self._made.get(model)
        if made is None or made.whole is not whole:
            assert isinstance(whole.decoder, Decoder), "what cannot be divided was refused when it was loaded"
            decoder, head = on_lane(whole.decoder, self._group, partial(self._around_head, model))
            made = self._made[model] = _OfLane(whole, replace(whole, decoder=decoder), head)
        return made
