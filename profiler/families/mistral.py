"""Mistral: Llama with a sliding window."""

from collections.abc import Mapping
from typing import Any

from profiler.families.entry import DecoderTraits, ModelFamily

# What transformers assumes where a config.json says nothing about it.
_DEFAULT_WINDOW = 4096


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    window = config.get("sliding_window", _DEFAULT_WINDOW)
    return DecoderTraits(window_tokens=None if window is None else int(window))


FAMILY = ModelFamily(
    name="MistralForCausalLM",
    model_type="mistral",
    models="Mistral 7B and Nemo, up to their attention window",
    traits=_traits,
    slides=True,
)
