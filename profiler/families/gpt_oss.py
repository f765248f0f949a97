"""gpt-oss: a mixture of experts in every layer, attention with sinks, a sliding window in every other layer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from profiler.config_fields import count
from profiler.errors import UnsupportedModel
from profiler.families.config_readers import MIXTURE
from profiler.families.entry import ClampedGate, DecoderTraits, MixtureTraits, ModelFamily

# Of a config.json that names none.
_ROPE: Mapping[str, Any] = MappingProxyType(
    {
        "rope_theta": 150_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    }
)


def _named(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**_ROPE, **MIXTURE.names(config)}


def _layer_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    num_layers = count(config, "num_hidden_layers")
    window = config.get("sliding_window", 128)
    kinds = config.get("layer_types") or [("sliding_attention", "full_attention")[i % 2] for i in range(num_layers)]
    if len(kinds) != num_layers:
        remedy = f"name the kind of each of num_hidden_layers={num_layers} layers"
        raise UnsupportedModel(field="layer_types", value=str(kinds), remedy=remedy)
    slides = (window is not None and kind == "sliding_attention" for kind in kinds)
    return tuple(int(window) if is_sliding else None for is_sliding in slides)


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    bias = bool(config.get("attention_bias", True))
    gate = ClampedGate(
        alpha=float(config.get("swiglu_alpha", 1.702)),
        limit=float(config.get("swiglu_limit", 7.0)),
    )
    mixture = MixtureTraits(
        router="mlp.router", experts="mlp.experts", has_biases=True, is_stacked=True, clamped_gate=gate
    )
    return DecoderTraits(
        qkv_bias=bias, output_bias=bias, mixture=mixture, layer_windows=_layer_windows(config), has_sinks=True
    )


FAMILY = ModelFamily(
    name="GptOssForCausalLM",
    model_type="gpt_oss",
    models="gpt-oss 20B and 120B, in bfloat16 or MXFP4",
    traits=_traits,
    experts=MIXTURE.experts,
    names=_named,
    native_on_gpus=False,
    changes_scores=True,
    slides=True,
)
