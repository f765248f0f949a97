"""Qwen 3: queries and keys are normed head by head."""

from collections.abc import Mapping
from typing import Any

from profiler.families.entry import DecoderTraits, ModelFamily
from profiler.families.layer_windows import window_tokens


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    bias = bool(config.get("attention_bias", False))
    return DecoderTraits(qkv_bias=bias, output_bias=bias, qk_norm=True, window_tokens=window_tokens(config))


FAMILY = ModelFamily(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    models="Qwen 3, dense",
    traits=_traits,
)
