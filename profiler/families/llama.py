"""Llama, and what bears its architecture's name."""

from collections.abc import Mapping
from typing import Any

from profiler.families.entry import DecoderTraits, ModelFamily


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    bias = bool(config.get("attention_bias", False))
    return DecoderTraits(qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)))


FAMILY = ModelFamily(
    name="LlamaForCausalLM",
    model_type="llama",
    models="Llama 2 and 3, and the many models of other makers in its layout",
    traits=_traits,
)
