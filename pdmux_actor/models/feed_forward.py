"""The part of a layer after its attention: a gated MLP, or whatever stands in its place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pdmux_actor.models.linear import Projection
from pdmux_actor.models.operators import DecoderOperators


class FeedForward(Protocol):
    @property
    def is_tiled(self) -> bool:
        """Returns whether a CPU does better with tiles of a launch's tokens, whose values stay in its cache."""
        ...

    def plus(self, inputs: Tensor, addend: Tensor, operators: DecoderOperators) -> Tensor:
        """Its output for normed `inputs`, and `addend`, the residual; both are [tokens, hidden_size], and `addend` may
        be overwritten.
        """
        ...

    def copied(self, of_projection: Callable[[Projection], Projection]) -> "FeedForward":
        """The same over other projections, each passed on once, always in the same order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMlp:
    """Implements FeedForward: down(silu(gate) * up). `gate_up` stacks the gate and up projections."""

    gate_up: Projection
    down: Projection

    @property
    def is_tiled(self) -> bool:
        return True

    def plus(self, inputs: Tensor, addend: Tensor, operators: DecoderOperators) -> Tensor:
        return self.down.plus(operators.silu_product(self.gate_up(inputs)), addend)

    def copied(self, of_projection: Callable[[Projection], Projection]) -> "GatedMlp":
        return GatedMlp(gate_up=of_projection(self.gate_up), down=of_projection(self.down))
