"""Reads the config.json of many families: what sets them apart is a few traits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from profiler.config_fields import count
from profiler.families.config_names import Renamed, llama_names
from profiler.families.entry import ExpertSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReader:
    """`names` and `experts` as ModelFamily has them."""

    names: Renamed
    experts: Callable[[Mapping[str, Any]], ExpertSizes | None] | None = None


def _mixture(config: Mapping[str, Any], names: Renamed = llama_names) -> Mapping[str, Any]:
    """Shared experts are experts that every token passes."""
    named = dict(names(config))
    size = count(named, "moe_intermediate_size", default=count(named, "intermediate_size"))
    shared = -(-int(named.get("shared_expert_intermediate_size") or 0) // size) or named.get("num_shared_experts") or 0
    shared = max(shared) if isinstance(shared, list) else int(shared)
    return {
        **named,
        "moe_intermediate_size": size,
        "num_experts": count(named, "num_experts") + shared,
        "num_experts_per_tok": count(named, "num_experts_per_tok") + shared,
    }


def _experts(config: Mapping[str, Any]) -> ExpertSizes:
    return ExpertSizes(
        num_experts=count(config, "num_experts"),
        expert_intermediate_size=count(config, "moe_intermediate_size"),
        num_dense_layers=min(int(config.get("first_k_dense_replace") or 0), count(config, "num_hidden_layers")),
    )


def _latent(config: Mapping[str, Any], names: Renamed) -> Mapping[str, Any]:
    """Latents (MLA) are expanded before they are kept: every query head has a key of its own, and a value padded to
    its width. Projections count as if they were not factored, a few per cent too many of a large mixture.
    """
    named = dict(names(config))
    width = count(named, "qk_nope_head_dim") + count(named, "qk_rope_head_dim")
    return {**named, "num_key_value_heads": count(named, "num_attention_heads"), "head_dim": width}


def _multi_query(config: Mapping[str, Any]) -> Mapping[str, Any]:
    named = llama_names(config, is_gated=False, tie_word_embeddings=True)
    return {**named, "num_key_value_heads": 1} if config.get("multi_query", True) else named


def _either(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mixture where it names experts."""
    named = llama_names(config)
    return _mixture(config) if named.get("num_experts") and named.get("num_experts_per_tok") else named


def _experts_if_any(config: Mapping[str, Any]) -> ExpertSizes | None:
    return _experts(config) if config.get("num_experts") and config.get("num_experts_per_tok") else None


_tied = partial(llama_names, tie_word_embeddings=True)
GATED = ConfigReader(names=llama_names)
GATED_TIED = ConfigReader(names=_tied)
GEMMA = ConfigReader(names=partial(_tied, head_dim=256))
PLAIN = ConfigReader(names=partial(llama_names, is_gated=False))
PLAIN_TIED = ConfigReader(names=partial(llama_names, is_gated=False, tie_word_embeddings=True))
MULTI_QUERY = ConfigReader(names=_multi_query)
MIXTURE = ConfigReader(names=_mixture, experts=_experts)
MIXTURE_TIED = ConfigReader(names=partial(_mixture, names=_tied), experts=_experts)
LATENT_TIED = ConfigReader(names=partial(_latent, names=_tied))
LATENT_MIXTURE = ConfigReader(names=partial(_latent, names=_mixture), experts=_experts)
DENSE_OR_MIXTURE = ConfigReader(names=_either, experts=_experts_if_any)
