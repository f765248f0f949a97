"""What config.json says about a decoder, beyond the shape in ModelSpec."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.rope import RopeConfig
from profiler.errors import UnsupportedModel
from profiler.specs import DENSE_ARCHITECTURES, ModelSpec

# The value transformers assumes where a Mistral config.json says nothing about it.
_MISTRAL_DEFAULT_WINDOW = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """`attention_window_tokens` is the longest sequence for which full attention equals the model's own."""

    spec: ModelSpec
    rope: RopeConfig
    rms_norm_eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    attention_window_tokens: int | None

    @classmethod
    def from_config(cls, model: str, config: Mapping[str, Any], dtype: str | None) -> "DecoderConfig":
        """Raises ModelLoadError naming the field of config.json that is missing or not supported."""
        try:
            return cls._read(model, config, dtype)
        except UnsupportedModel as error:
            reason = f"config.json: {error.field}={error.value!r} is not supported"
            remedy = error.remedy
            if error.field == "architectures":  # mixtures are known to plans and simulations, and refused here
                remedy = f"use a checkpoint of one of {', '.join(sorted(DENSE_ARCHITECTURES))}"
            raise ModelLoadError(model=model, reason=reason, remedy=remedy) from error
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ModelLoadError(
                model=model, reason=f"config.json holds a malformed number: {error}", remedy="correct config.json"
            ) from error

    @classmethod
    def _read(cls, model: str, config: Mapping[str, Any], dtype: str | None) -> "DecoderConfig":
        spec = ModelSpec.from_config(config, dtype)
        _refuse_unsupported(model, config, spec)
        is_qwen2 = spec.architecture == "Qwen2ForCausalLM"
        is_mistral = spec.architecture == "MistralForCausalLM"
        rope = RopeConfig.from_config(model, config)
        rope.check(model, spec.head_dim)
        attention_bias = bool(config.get("attention_bias", False)) and not is_mistral
        return cls(
            spec=spec,
            rope=rope,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            qkv_bias=is_qwen2 or attention_bias,
            output_bias=attention_bias and not is_qwen2,
            mlp_bias=spec.architecture == "LlamaForCausalLM" and bool(config.get("mlp_bias", False)),
            qk_norm=spec.architecture == "Qwen3ForCausalLM",
            attention_window_tokens=_attention_window(config, spec),
        )


def _refuse_unsupported(model: str, config: Mapping[str, Any], spec: ModelSpec) -> None:
    def refuse(field: str, remedy: str) -> ModelLoadError:
        reason = f"config.json: {field}={config.get(field)!r} is not supported"
        return ModelLoadError(model=model, reason=reason, remedy=remedy)

    if spec.is_moe:
        reason = f"config.json: architectures={spec.architecture!r} is not supported by this engine"
        raise ModelLoadError(model=model, reason=reason, remedy="use a dense checkpoint, or a simulated pool")
    if config.get("hidden_act", "silu") != "silu":
        raise refuse("hidden_act", "use a checkpoint with hidden_act silu")
    if config.get("quantization_config") is not None:
        raise refuse("quantization_config", "use an unquantised checkpoint (float32, bfloat16 or float16)")
    if spec.num_heads % spec.num_kv_heads != 0:
        raise refuse("num_key_value_heads", f"it must divide num_attention_heads={spec.num_heads}")
    if spec.head_dim % 2 != 0:
        raise refuse("head_dim", "rotary embeddings need an even head size")


def _attention_window(config: Mapping[str, Any], spec: ModelSpec) -> int | None:
    if spec.architecture == "MistralForCausalLM":
        window = config.get("sliding_window", _MISTRAL_DEFAULT_WINDOW)
        return None if window is None else int(window)
    if spec.architecture == "LlamaForCausalLM" or not config.get("use_sliding_window", False):
        return None
    window = config.get("sliding_window")
    layer_types = config.get("layer_types")
    if layer_types is not None:
        slides = "sliding_attention" in layer_types
    else:
        slides = int(config.get("max_window_layers", 0)) < spec.num_layers
    return int(window) if window is not None and slides else None
