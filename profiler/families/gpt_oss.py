"""gpt-oss: a mixture of experts in every layer, attention with sinks, a sliding window in every other layer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from profiler.families.config_readers import MIXTURE
from profiler.families.entry import ClampedGate, DecoderTraits, MixtureTraits, ModelFamily
from profiler.families.layer_windows import layer_windows

# Of a config.json that names none.
_ASSUMED: Mapping[str, Any] = MappingProxyType(
    {
        "rms_norm_eps": 1e-5,
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
    return {**_ASSUMED, **MIXTURE.names(config)}


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    bias = bool(config.get("attention_bias", True))
    gate = ClampedGate(
        alpha=float(config.get("swiglu_alpha", 1.702)),
        limit=float(config.get("swiglu_limit", 7.0)),
    )
    mixture = MixtureTraits(
        router="mlp.router", experts="mlp.experts", has_biases=True, is_stacked=True, clamped_gate=gate
    )
    windows = layer_windows(config, window=128, kinds=("sliding_attention", "full_attention"))
    return DecoderTraits(qkv_bias=bias, output_bias=bias, mixture=mixture, layer_windows=windows, has_sinks=True)


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
