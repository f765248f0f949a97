"""Mixtral: every layer is a mixture of experts."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from profiler.config_fields import count
from profiler.families.entry import DecoderTraits, ExpertSizes, MixtureTraits, ModelFamily

# What transformers assumes where a config.json says nothing about it, and others' families do not.
_ASSUMED: Mapping[str, float] = MappingProxyType({"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5})


def _named(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**_ASSUMED, **config}


def _experts(config: Mapping[str, Any]) -> ExpertSizes:
    return ExpertSizes(
        num_experts=count(config, "num_local_experts"), expert_intermediate_size=count(config, "intermediate_size")
    )


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    window = config.get("sliding_window")
    mixture = MixtureTraits(
        router="block_sparse_moe.gate", experts="block_sparse_moe.experts", gate="w1", up="w3", down="w2"
    )
    return DecoderTraits(window_tokens=None if window is None else int(window), mixture=mixture)


FAMILY = ModelFamily(
    name="MixtralForCausalLM",
    model_type="mixtral",
    models="Mixtral 8x7B and 8x22B",
    traits=_traits,
    experts=_experts,
    names=_named,
    slides=True,
)
