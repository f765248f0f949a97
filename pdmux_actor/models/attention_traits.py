"""Defines what a layer's attention does beyond softmax(q k / sqrt(head_dim)) over every earlier token."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionTraits:
    """`scale` multiplies the scores; None: 1 / sqrt(head_dim). `window_tokens`: a query sees that many tokens, itself
    among them; None: all. `softcap` c makes c tanh(s / c) of a score s (Gemma 2). `sinks` [heads] are scores of a key
    that every query sees and whose value is zero (gpt-oss).
    """

    scale: float | None = None
    window_tokens: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_fused(self) -> bool:
        """A fused kernel computes it: neither the scores nor their sum are changed."""
        return self.softcap is None and self.sinks is None

    def scaled(self, query: Tensor) -> Tensor:
        """[tokens, heads, head_dim] for kernels that divide scores by sqrt(head_dim), and know no other trait."""
        assert self.is_fused, "loading refuses a model that changes scores"
        if self.scale is None:
            return query
        factor = self.scale * math.sqrt(query.shape[-1])
        return query.contiguous() if math.isclose(factor, 1.0) else query * factor


PLAIN = AttentionTraits()
