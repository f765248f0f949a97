"""Defines what a family of models says of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTraits:
    """Holds what layers have beyond RMS norms, rotary attention and a gated MLP. `qk_norm`: queries and keys are normed
    head by head. `window_tokens` is the longest sequence for which full attention equals the model's own; None: any.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    window_tokens: int | None = None


Traits = Callable[[Mapping[str, Any]], DecoderTraits]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSizes:
    """Holds the sizes of a mixture of experts. `num_dense_layers` have an ordinary MLP."""

    num_experts: int
    expert_intermediate_size: int
    num_dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """`name` and `model_type` are what config.json calls it (`architectures`, `model_type`); `models` is its line of
    docs/models.md. `traits` reads config.json for muxfleet's own engine; None: that engine does not serve the family,
    only plans, simulations and SGLang know it. `experts` reads the sizes of a mixture; None: the family is dense.
    """

    name: str
    model_type: str
    models: str
    traits: Traits | None = None
    experts: Callable[[Mapping[str, Any]], ExpertSizes] | None = None
