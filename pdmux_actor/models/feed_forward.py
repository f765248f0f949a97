"""The part of a layer after its attention: a gated MLP, or whatever stands in its place."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from pdmux_actor.models.linear import Projection
from pdmux_actor.models.operators import DecoderOperators
from profiler.families.entry import ClampedGate


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
    """Implements FeedForward: down(silu(gate) * up), or what `clamped` makes of gate and up. `gate_up` stacks the gate
    and up projections.
    """

    gate_up: Projection
    down: Projection
    clamped: ClampedGate | None = None

    @property
    def is_tiled(self) -> bool:
        return True

    def plus(self, inputs: Tensor, addend: Tensor, operators: DecoderOperators) -> Tensor:
        return self.down.plus(self.gated(inputs, operators), addend)

    def gated(self, inputs: Tensor, operators: DecoderOperators) -> Tensor:
        """Returns what `down` multiplies with."""
        gate_up = operators.product(self.gate_up, inputs)
        return operators.silu_product(gate_up) if self.clamped is None else _clamped_product(gate_up, self.clamped)

    def copied(self, of_projection: Callable[[Projection], Projection]) -> "GatedMlp":
        return replace(self, gate_up=of_projection(self.gate_up), down=of_projection(self.down))


def _clamped_product(gate_up: Tensor, clamped: ClampedGate) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    gate, up = gate.clamp(max=clamped.limit), up.clamp(-clamped.limit, clamped.limit)
    return torch.sigmoid(gate * clamped.alpha).mul_(gate).mul_(up.add_(1))
