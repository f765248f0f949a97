"""Qwen 3 with a mixture of experts in most layers."""

from collections.abc import Mapping
from typing import Any

from profiler.config_fields import count
from profiler.errors import UnsupportedModel
from profiler.families.config_names import llama_names
from profiler.families.entry import DecoderTraits, ExpertSizes, MixtureTraits, ModelFamily
from profiler.families.layer_windows import window_tokens


def _experts(config: Mapping[str, Any]) -> ExpertSizes:
    return ExpertSizes(
        num_experts=count(config, "num_experts"),
        expert_intermediate_size=count(config, "moe_intermediate_size"),
        num_dense_layers=len(_dense_layers(config)),
    )


def _dense_layers(config: Mapping[str, Any]) -> frozenset[int]:
    """`mlp_only_layers` are dense, and of the others those that `decoder_sparse_step` leaves out."""
    step = count(config, "decoder_sparse_step", default=1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise UnsupportedModel(field="mlp_only_layers", value=str(dense), remedy="it must be a list of layers")
    layers = range(count(config, "num_hidden_layers"))
    return frozenset(layer for layer in layers if layer in dense or (layer + 1) % step != 0)


def _traits(config: Mapping[str, Any]) -> DecoderTraits:
    bias = bool(config.get("attention_bias", False))
    mixture = MixtureTraits(
        router="mlp.gate",
        experts="mlp.experts",
        normalises=bool(config.get("norm_topk_prob", False)),
        dense_layers=_dense_layers(config),
    )
    window = window_tokens(config, by_layer=False)  # whatever is said of its layers
    return DecoderTraits(qkv_bias=bias, output_bias=bias, qk_norm=True, window_tokens=window, mixture=mixture)


FAMILY = ModelFamily(
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    models="Qwen 3 30B-A3B and 235B-A22B",
    traits=_traits,
    experts=_experts,
    names=llama_names,  # transformers 5 saves `num_local_experts`
)
