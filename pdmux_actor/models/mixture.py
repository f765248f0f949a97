"""A mixture of experts in place of a layer's MLP: each token passes the few experts that a router scores highest."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.linear import Linear, Projection
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


class Experts(Protocol):
    def outputs(self, rows: Tensor, expert_ids: Tensor, operators: DecoderOperators) -> Tensor:
        """Each row through its expert; `expert_ids` [rows] ascend."""
        ...

    def copied(self, of_projection: Callable[[Projection], Projection]) -> "Experts": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopedExperts:
    """Implements Experts for CPUs: one product after the other, each by its own layout and format."""

    mlps: tuple[GatedMlp, ...]

    def outputs(self, rows: Tensor, expert_ids: Tensor, operators: DecoderOperators) -> Tensor:
        outputs, first = torch.empty_like(rows), 0
        for mlp, count in zip(self.mlps, torch.bincount(expert_ids, minlength=len(self.mlps)).tolist(), strict=True):
            if count:
                part = slice(first, first + count)
                outputs[part] = mlp.down(mlp.gated(rows[part], operators))
                first += count
        return outputs

    def copied(self, of_projection: Callable[[Projection], Projection]) -> "LoopedExperts":
        return LoopedExperts(mlps=tuple(mlp.copied(of_projection) for mlp in self.mlps))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedExperts:
    """Implements Experts for GPUs: two grouped products, for which the host need not know how many rows each has.
    `gate_up` is over [experts, 2 * intermediate, hidden], `down` over [experts, hidden, intermediate].
    """

    gate_up: Linear
    down: Linear

    def outputs(self, rows: Tensor, expert_ids: Tensor, operators: DecoderOperators) -> Tensor:
        experts = torch.arange(len(self.down.weight), device=rows.device)
        ends = torch.searchsorted(expert_ids, experts, right=True, out_int32=True)
        gate_up = torch._grouped_mm(rows, self.gate_up.weight.transpose(1, 2), offs=ends)
        product: Tensor = torch._grouped_mm(
            operators.silu_product(gate_up), self.down.weight.transpose(1, 2), offs=ends
        )
        return product

    def copied(self, of_projection: Callable[[Projection], Projection]) -> "GroupedExperts":
        gate_up, down = of_projection(self.gate_up), of_projection(self.down)
        assert isinstance(gate_up, Linear)
        assert isinstance(down, Linear)
        return GroupedExperts(gate_up=gate_up, down=down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Implements FeedForward. `normalises`: the shares of the experts that a token passes sum to one."""

    router: Projection
    experts: Experts
    experts_per_token: int
    normalises: bool

    @property
    def is_tiled(self) -> bool:
        """An expert's weights are read once for all tokens of a launch that pass it."""
        return False

    def plus(self, inputs: Tensor, addend: Tensor, operators: DecoderOperators) -> Tensor:
        """Sorts tokens by expert, so that the rows of each lie together. A token's sum is over its experts in the order
        of their scores: the same in any batch.
        """
        shares, chosen = self._routed(inputs)
        expert_ids, order = torch.sort(chosen.view(-1), stable=True)
        sorted_rows = inputs.index_select(0, order // self.experts_per_token)
        outputs = self.experts.outputs(sorted_rows, expert_ids, operators)
        of_tokens = torch.empty_like(outputs).index_copy_(0, order, outputs)
        of_tokens = of_tokens.view(len(inputs), self.experts_per_token, -1)
        return torch.baddbmm(addend.unsqueeze(1), shares.unsqueeze(1), of_tokens).squeeze(1)

    def copied(self, of_projection: Callable[[Projection], Projection]) -> "Mixture":
        return Mixture(
            router=of_projection(self.router),
            experts=self.experts.copied(of_projection),
            experts_per_token=self.experts_per_token,
            normalises=self.normalises,
        )

    def _routed(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's shares, in the dtype of `inputs`, and experts; both are [tokens, experts_per_token]."""
        scores = functional.softmax(self.router(inputs), dim=-1, dtype=torch.float32)
        shares, chosen = torch.topk(scores, self.experts_per_token, dim=-1)
        if self.normalises:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return shares.to(inputs.dtype), chosen
