"""Defines what a family of models says of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from profiler.families.config_names import Renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGate:
    """Says that an MLP makes (up + 1) * gate * sigmoid(alpha * gate) of gate, at most `limit`, and up, within both
    limits, in place of silu(gate) * up.
    """

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureTraits:
    """Holds where a checkpoint keeps a mixture of experts: `router`, and below `experts` each one's `gate`, `up` and
    `down`. `normalises`: the shares of the experts that a token passes sum to one, which is a softmax over their scores
    alone. `dense_layers` have an ordinary MLP. `has_biases`: router and experts have. `is_stacked`: `gate_up_proj` and
    `down_proj` below `experts` are those of all, [experts, in, out], the outputs of gate and up in turns.
    """

    router: str
    experts: str
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    normalises: bool = True
    dense_layers: frozenset[int] = frozenset()
    has_biases: bool = False
    is_stacked: bool = False
    clamped_gate: ClampedGate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTraits:
    """Holds what layers have beyond RMS norms, rotary attention and a gated MLP. `qk_norm`: queries and keys are normed
    head by head. `window_tokens` is the longest sequence for which full attention equals the model's own; None: any.
    `mixture`: what is in place of MLPs. `layer_windows` has the tokens that a query of each layer sees, itself among
    them, None: all; empty: every layer sees all. `has_sinks`: each head has a score of a key whose value is zero.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    window_tokens: int | None = None
    mixture: MixtureTraits | None = None
    layer_windows: tuple[int | None, ...] = ()
    has_sinks: bool = False


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
    docs/models.md. `traits` reads config.json for the own engine's fast decoder; None: the family runs by transformers'
    code. `experts` reads the sizes of a mixture; None: the family is dense. `names` gives config.json under Llama's
    names. `refusal`: why transformers' code cannot run layer by layer over the paged KV cache; None: it can. Without
    `is_planned` its shape is none that plans know. `in_sglang`: SGLang has it. `in_linear_modules`: transformers keeps
    the weights of its products in torch.nn.Linear. `native_on_gpus`: kernels for GPUs have what its `traits` ask for.
    `changes_scores`: attention caps its scores, or has sinks, which kernels for GPUs here do not; `slides`: layers see
    a window of tokens where config.json says so, and those kernels all tokens.
    """

    name: str
    model_type: str
    models: str
    traits: Traits | None = None
    experts: Callable[[Mapping[str, Any]], ExpertSizes | None] | None = None
    names: Renamed | None = None
    refusal: str | None = None
    is_planned: bool = True
    in_sglang: bool = True
    in_linear_modules: bool = True
    native_on_gpus: bool = True
    changes_scores: bool = False
    slides: bool = False

    @property
    def is_rounded_by_transformers(self) -> bool:
        """Returns whether `weights: int8 | int4` is for its modules in transformers; experts are no modules."""
        return self.refusal is None and self.experts is None and self.in_linear_modules

    @property
    def takes_adapters(self) -> bool:
        """Returns whether LoRA adapters are served beside it."""
        return self.traits is not None
