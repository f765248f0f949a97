"""Seed-OSS: Llama with biases of the attention that are switched one by one."""

from collections.abc import Mapping
from typing import Any

from profiler.families.entry import DecoderTraits, ModelFamily


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    return DecoderTraits(
        qkv_bias=bool(config.get("attention_bias", True)),
        output_bias=bool(config.get("attention_out_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


FAMILY = ModelFamily(
    name="SeedOssForCausalLM",
    model_type="seed_oss",
    models="Seed-OSS 36B",
    traits=_traits,
    in_sglang=False,
)
