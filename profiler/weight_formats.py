"""Formats that the projections of a model are kept in instead of its dtype, and what config.json says of them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

INT4_GROUP = 128
"""Weights of a row that share a scale and a zero point."""

WEIGHT_BYTES: Mapping[str, float] = MappingProxyType({"int8": 1.0, "fp8": 1.0, "int4": 0.5 + 2 * 2 / INT4_GROUP})
"""Of one weight. The scales of int8 and fp8, one for a row or a block, are negligible."""

QUANTISABLE = ("int8", "int4")
"""Formats that an engine makes of any weights when it loads them."""


def checkpoint_format(config: Mapping[str, Any]) -> str | None:
    """Returns the format of WEIGHT_BYTES that a checkpoint's projections are stored in; None: none of them."""
    quantisation = config.get("quantization_config")
    if not isinstance(quantisation, Mapping):
        return None
    method = quantisation.get("quant_method")
    if method == "fp8":
        return "fp8"
    if method in ("awq", "gptq"):
        return _integer(quantisation.get("bits"))
    return _compressed(quantisation) if method == "compressed-tensors" else None


def _compressed(quantisation: Mapping[str, Any]) -> str | None:
    groups = quantisation.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    if weights.get("type") == "float":
        return "fp8" if weights.get("num_bits") == 8 else None
    return _integer(weights.get("num_bits"))


def _integer(bits: object) -> str | None:
    return {8: "int8", 4: "int4"}.get(bits) if isinstance(bits, int) else None
