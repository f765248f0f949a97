"""Qwen 2 and 2.5: queries, keys and values have biases, whatever config.json says of others."""

from collections.abc import Mapping
from typing import Any

from profiler.families.entry import DecoderTraits, ModelFamily
from profiler.families.layer_windows import window_tokens


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    return DecoderTraits(qkv_bias=True, window_tokens=window_tokens(config))


FAMILY = ModelFamily(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    models="Qwen 2, 2.5 and QwQ, dense",
    traits=_traits,
)
