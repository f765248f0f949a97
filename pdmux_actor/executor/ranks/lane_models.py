"""An executor's models as one lane of a rank computes with them."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from pdmux_actor.executor.model_runner import AttachedModel
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.models.decoder import Decoder, DecoderWeights, LayeredDecoder, LayerWeights
from pdmux_actor.models.linear import Classifier, Projection
from pdmux_actor.models.mixture import FeedForward, GatedMlp, Mixture
from pdmux_actor.models.operators import DecoderOperators

AroundHead = Callable[[int], AbstractContextManager[None]]
"""Within it are products with the vocabulary for so many tokens: the leader calls the other ranks to them."""


class ColumnParts:
    """Implements Projection over the columns of W that this rank has: products are partial, and summed over ranks."""

    def __init__(self, part: Projection, group: LaneGroup) -> None:
        self._part = part
        self._group = group

    @property
    def dtype(self) -> torch.dtype:
        return self._part.dtype

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        return self._part.tensor_bytes

    def copied(self, of_tensor: Callable[[Tensor], Tensor], *, packed: bool) -> "ColumnParts":
        return ColumnParts(self._part.copied(of_tensor, packed=packed), self._group)

    def repacked(self) -> "ColumnParts":
        return ColumnParts(self._part.repacked(), self._group)

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._group.sum(self._part(inputs))

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        """The leader's part of the sum has the addend in it: all ranks get it with the rest."""
        return self._group.sum(self._partial(inputs, addend))

    def plus_changed(self, inputs: Tensor, addend: Tensor, change: Callable[[Tensor], None]) -> Tensor:
        partial_sum = self._partial(inputs, addend)
        change(partial_sum)
        return self._group.sum(partial_sum)

    def _partial(self, inputs: Tensor, addend: Tensor) -> Tensor:
        return self._part.plus(inputs, addend) if self._group.leads else self._part(inputs)


class VocabularyParts(ColumnParts):
    """Implements Classifier over the rows of the vocabulary that this rank has. The leader gets all logits."""

    def __init__(self, part: Classifier, group: LaneGroup, around: AroundHead) -> None:
        super().__init__(part, group)
        self._around = around
        self._shares = part.shares

    @property
    def has_plain_rows(self) -> bool:
        return False

    def rows(self, indices: Tensor) -> Tensor:
        raise AssertionError("a rank has no whole rows")

    def shares(self, tensor: Tensor) -> bool:
        return self._shares(tensor)

    def __call__(self, inputs: Tensor) -> Tensor:
        with self._around(len(inputs)):
            return torch.cat(self.follow(inputs.contiguous()), dim=1)

    def follow(self, inputs: Tensor) -> list[Tensor]:
        """Computes this rank's part of the logits: `inputs` has the shape, the leader's values come."""
        return self._group.to_leader(self._part(self._group.from_leader(inputs)))


class MixtureParts:
    """Implements FeedForward over this rank's columns of every expert. All ranks route alike: their hidden states and
    routers are the same.
    """

    is_tiled = False

    def __init__(self, part: Mixture, group: LaneGroup) -> None:
        self._part = part
        self._group = group

    def plus(self, inputs: Tensor, addend: Tensor, operators: DecoderOperators) -> Tensor:
        """The leader's part of the sum has the addend in it."""
        added = addend if self._group.leads else torch.zeros_like(addend)
        return self._group.sum(self._part.plus(inputs, added, operators))

    def copied(self, of_projection: Callable[[Projection], Projection]) -> "MixtureParts":
        return MixtureParts(self._part.copied(of_projection), self._group)


def on_lane(decoder: Decoder, group: LaneGroup, around_head: AroundHead) -> tuple[Decoder, VocabularyParts]:
    """The same decoder over the same tensors, for one lane, and its head."""

    def of_layer(layer: LayerWeights) -> LayerWeights:
        of_rank = layer.feed_forward
        feed_forward: FeedForward
        if isinstance(of_rank, Mixture):
            feed_forward = MixtureParts(of_rank, group)
        else:
            assert isinstance(of_rank, GatedMlp), "what cannot be divided was refused when it was loaded"
            feed_forward = replace(of_rank, down=ColumnParts(of_rank.down, group))
        return replace(layer, output=ColumnParts(layer.output, group), feed_forward=feed_forward)

    weights: DecoderWeights = decoder.weights
    head = VocabularyParts(weights.lm_head, group, around_head)
    laned = copy.copy(decoder)
    laned.weights = replace(weights, layers=tuple(map(of_layer, weights.layers)), lm_head=head)
    return laned, head


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
    """Returns it without compiled layers, which would sum nothing over the ranks."""
    return replace(whole, decoder=decoder, compiled_layers=None)


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
