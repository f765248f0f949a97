"""Finds experts that stand alone, as layers are loaded by name, in the stacks that a checkpoint keeps of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pdmux_actor.models.quantised_weight import QuantisedWeight
from profiler.families.entry import MixtureTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedSource:
    """Part of tensor `stack`, whose first dimension has `num_experts`. `turn`: every other output, from that on."""

    stack: str
    expert: int
    num_experts: int
    is_bias: bool
    turn: int | None

    def outputs(self, of_expert: Tensor) -> Tensor:
        """Its own of all outputs of the stack, which are the first dimension of `of_expert`."""
        return of_expert if self.turn is None else of_expert[self.turn :: 2]


class ExpertStacks:
    """Knows the stacks of a mixture of `num_experts` in every layer."""

    def __init__(self, traits: MixtureTraits, num_experts: int) -> None:
        parts = "|".join(map(re.escape, (traits.gate, traits.up, traits.down)))
        self._name = re.compile(rf"(.+\.{re.escape(traits.experts)})\.(\d+)\.({parts})\.(weight|bias)")
        self._stacks: Mapping[str, tuple[str, int | None]] = {
            traits.gate: ("gate_up_proj", 0),
            traits.up: ("gate_up_proj", 1),
            traits.down: ("down_proj", None),
        }
        self._num_experts = num_experts

    def source_of(self, name: str) -> StackedSource | None:
        """None: `name` is no expert's."""
        match = self._name.fullmatch(name)
        if match is None:
            return None
        (stack, turn), is_bias = self._stacks[match[3]], match[4] == "bias"
        return StackedSource(
            stack=f"{match[1]}.{stack}{'_bias' if is_bias else ''}",
            expert=int(match[2]),
            num_experts=self._num_experts,
            is_bias=is_bias,
            turn=turn,
        )


@dataclass(frozen=True, slots=True)
class PlainProduct:
    """Implements StoredProduct over plain numbers, or a bias."""

    tensor: Tensor

    @property
    def shape(self) -> list[int]:
        return list(self.tensor.shape)

    def rows(self, first: int, last: int) -> "PlainProduct":
        return PlainProduct(self.tensor[first:last])

    def columns(self, first: int, last: int) -> "PlainProduct":
        return PlainProduct(self.tensor[:, first:last])

    def write_dense(self, target: Tensor) -> None:
        target.copy_(self.tensor)

    def kept_as(self, weights: str | None, dtype: torch.dtype) -> QuantisedWeight | None:
        return None
