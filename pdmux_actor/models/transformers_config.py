"""Defines what config.json says about a decoder that runs by transformers' code, as far as it is not for that code."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.stored_formats.entry import StoredWeights
from pdmux_actor.models.stored_formats.registry import stored_weights
from profiler.errors import UnsupportedModel
from profiler.native_refusal import native_refusal
from profiler.specs import ModelSpec

# Their frequencies follow from the longest sequence of a batch once it is beyond the original length.
_ROTATE_BY_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig:
    """`window_tokens` is the longest sequence for which one batch rotates as each of its sequences alone; None: any.
    `stored` is the format of a quantised checkpoint.
    """

    spec: ModelSpec
    window_tokens: int | None = None
    stored: StoredWeights | None = None

    @classmethod
    def from_config(
        cls, model: str, config: Mapping[str, Any], dtype: str | None, weights: str | None = None
    ) -> "TransformersConfig":
        """Raises ModelLoadError naming what is not supported, and what would serve it."""
        try:
            spec = ModelSpec.from_config(config, dtype, weights)
            stored = stored_weights(config)
        except UnsupportedModel as error:
            reason = f"config.json: {error.field}={error.value!r} is not supported"
            raise ModelLoadError(model=model, reason=reason, remedy=error.remedy) from error
        if spec.weights == "fp8":  # as many bytes, and CPUs multiply them
            spec = replace(spec, weights="int8")
        if stored is not None and stored.format.of_stacks:
            raise ModelLoadError(
                model=model,
                reason=f"config.json: quantization_config.quant_method={stored.format.name!r} is not read by "
                "transformers' code here",
                remedy="serve it by the native decoder, or a checkpoint in bfloat16",
            )
        refused = native_refusal(spec, "cpu", by_transformers=True)
        if refused is not None:
            raise ModelLoadError(model=model, reason=refused.reason, remedy=refused.remedy)
        return cls(spec=spec, stored=stored, window_tokens=min(_original_lengths(config, spec), default=None))


def _original_lengths(config: Mapping[str, Any], spec: ModelSpec) -> Iterator[int]:
    for rope in _ropes(config.get("rope_scaling") or config.get("rope_parameters")):
        rope_type = rope.get("rope_type") or rope.get("type")
        if rope_type in _ROTATE_BY_LENGTH or "short_factor" in rope:  # Phi-3 calls longrope "su" and "yarn", too
            original = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
            yield int(original or spec.max_position_embeddings)


def _ropes(given: object) -> Iterator[Mapping[str, Any]]:
    """One for all layers, or one for each type of layer."""
    if isinstance(given, Mapping):
        yield given
        yield from (rope for rope in given.values() if isinstance(rope, Mapping))
