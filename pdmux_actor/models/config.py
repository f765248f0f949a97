"""Defines what config.json says about a decoder, beyond the shape in ModelSpec."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.described_config import GGUF
from pdmux_actor.models.rope import RopeConfig
from pdmux_actor.models.stored_formats.entry import StoredWeights
from pdmux_actor.models.stored_formats.registry import stored_weights
from profiler.errors import UnsupportedModel
from profiler.families.entry import DecoderTraits
from profiler.families.registry import FAMILIES, family_of
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """`stored` is the format of a quantised checkpoint; with `is_gguf` a GGUF file has the weights."""

    spec: ModelSpec
    rope: RopeConfig
    rms_norm_eps: float
    traits: DecoderTraits
    stored: StoredWeights | None = None
    is_gguf: bool = False

    @classmethod
    def from_config(
        cls, model: str, config: Mapping[str, Any], dtype: str | None, weights: str | None = None
    ) -> "DecoderConfig":
        """Raises ModelLoadError naming the field of config.json that is missing or not supported."""
        try:
            return cls._read(model, config, dtype, weights)
        except UnsupportedModel as error:
            reason = f"config.json: {error.field}={error.value!r} is not supported"
            remedy = error.remedy
            if error.field == "architectures":  # plans and simulations know more families than engines run
                remedy = f"use a checkpoint of one of {', '.join(_served())}"
            raise ModelLoadError(model=model, reason=reason, remedy=remedy) from error
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ModelLoadError(
                model=model, reason=f"config.json holds a malformed number: {error}", remedy="correct config.json"
            ) from error

    @classmethod
    def _read(cls, model: str, config: Mapping[str, Any], dtype: str | None, weights: str | None) -> "DecoderConfig":
        spec = ModelSpec.from_config(config, dtype, weights)
        if spec.weights == "fp8":  # as many bytes, and CPUs multiply them
            spec = replace(spec, weights="int8")
        family = family_of(spec.architecture)
        if family.traits is None:
            reason = f"config.json: architectures={spec.architecture!r} is not supported by the native decoder"
            remedy = f"use a checkpoint of one of {', '.join(_served())}, or transformers' code"
            raise ModelLoadError(model=model, reason=reason, remedy=remedy)
        _refuse_unsupported(model, config, spec)
        quantisation = config.get("quantization_config")
        is_gguf = isinstance(quantisation, Mapping) and quantisation.get("quant_method") == GGUF
        traits, stored = family.traits(config), None if is_gguf else stored_weights(config)
        if stored is not None and stored.format.of_stacks and (traits.mixture is None or not traits.mixture.is_stacked):
            value, remedy = stored.format.name, "it is read of stacked experts only, as gpt-oss has them"
            raise UnsupportedModel(field="quantization_config.quant_method", value=value, remedy=remedy)
        named = config if family.names is None else family.names(config)
        rope = RopeConfig.from_config(model, named)
        rope.check(model, spec.head_dim)
        return cls(
            spec=spec,
            rope=rope,
            rms_norm_eps=float(named.get("rms_norm_eps", 1e-6)),
            traits=traits,
            stored=stored,
            is_gguf=is_gguf,
        )


def _served() -> list[str]:
    return [name for name, family in FAMILIES.items() if family.traits is not None]


def _refuse_unsupported(model: str, config: Mapping[str, Any], spec: ModelSpec) -> None:
    def refuse(field: str, remedy: str) -> ModelLoadError:
        reason = f"config.json: {field}={config.get(field)!r} is not supported"
        return ModelLoadError(model=model, reason=reason, remedy=remedy)

    if config.get("hidden_act", "silu") != "silu":
        raise refuse("hidden_act", "use a checkpoint with hidden_act silu")
    if spec.num_heads % spec.num_kv_heads != 0:
        raise refuse("num_key_value_heads", f"it must divide num_attention_heads={spec.num_heads}")
    if spec.head_dim % 2 != 0:
        raise refuse("head_dim", "rotary embeddings need an even head size")
