"""Formats that the projections of a model are kept in instead of its dtype, and what config.json says of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

INT4_GROUPS = (128, 64, 32)
"""Weights of a row that share a scale and a zero point; 4-bit kernels have these."""

_INT4_ROWS = 32  # 4-bit kernels take so many rows together


def int4_group(rows: int, columns: int, largest: int = INT4_GROUPS[0]) -> int | None:
    """Returns the group that a weight is kept in 4 bits with; None: no kernel has its shape, it is kept in 8.

    >>> int4_group(64, 256), int4_group(64, 192), int4_group(64, 256, largest=32), int4_group(48, 256)
    (128, 64, 32, None)
    """
    if rows % _INT4_ROWS:
        return None
    return next((group for group in INT4_GROUPS if group <= largest and columns % group == 0), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """`group`: weights of a row that share a scale and a middle, both of the model's dtype, fewer where so many do not
    divide a row; None: a row has one scale. With `scale_bytes` a group has a scale of that size, and no middle.
    `of_experts`: only experts are kept so, other products in the model's dtype.
    """

    level_bytes: float
    group: int | None = None
    scale_bytes: int | None = None
    of_experts: bool = False

    def bytes_each(self, dtype_bytes: int) -> float:
        """Returns the bytes of one weight of long rows.

        >>> WeightFormat(level_bytes=0.5, group=32).bytes_each(2), WeightFormat(level_bytes=0.5, group=32).bytes_each(4)
        (0.625, 0.75)
        """
        scale_bytes = 2 * dtype_bytes if self.scale_bytes is None else self.scale_bytes
        return self.level_bytes + (scale_bytes / self.group if self.group else 0.0)

    def product_bytes(self, rows: int, columns: int, dtype_bytes: int) -> int:
        """Returns what a weight `[rows, columns]` takes with its scales.

        >>> WeightFormat(level_bytes=0.5, group=128).product_bytes(32, 64, 2)  # a group a row
        1152
        >>> WeightFormat(level_bytes=0.5, group=128).product_bytes(16, 64, 2)  # in 8 bits: a scale a row
        1056
        """
        if self.group is not None and self.scale_bytes is not None:
            return rows * (columns // 2 + -(-columns // self.group) * self.scale_bytes)
        group = None if self.group is None else int4_group(rows, columns, self.group)
        if group is None:
            return rows * (columns + dtype_bytes)
        return rows * columns // 2 + rows * (columns // group) * 2 * dtype_bytes


MXFP4 = "mxfp4"
"""4-bit floats with a power of two for each 32 of a row, which is how the experts of gpt-oss are published."""

WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        "int8": WeightFormat(level_bytes=1.0),
        "fp8": WeightFormat(level_bytes=1.0),
        "int4": WeightFormat(level_bytes=0.5, group=128),
        "int4_group64": WeightFormat(level_bytes=0.5, group=64),
        "int4_group32": WeightFormat(level_bytes=0.5, group=32),
        MXFP4: WeightFormat(level_bytes=0.5, group=32, scale_bytes=1, of_experts=True),
    }
)

QUANTISABLE = ("int8", "int4")
"""Formats that an engine makes of any weights when it loads them."""

PLAIN = "dtype"
"""In place of a format: weights become plain numbers of the model's dtype, whatever the checkpoint has."""


GGUF_PLAIN = ("F32", "F16", "BF16", "F64")
_GGUF_INT4 = ("Q4_0", "Q4_1", "Q4_K")  # groups of 32 columns


def format_of(config: Mapping[str, Any], requested: str | None) -> str | None:
    """Returns the format of WEIGHT_FORMATS that projections are kept in: `requested` or the checkpoint's own."""
    if requested == PLAIN:
        return None
    own = checkpoint_format(config)
    if requested is None or (requested == "int4" and own is not None and own.startswith("int4")):
        return own  # 4 bits are not rounded to larger groups
    return requested


def checkpoint_format(config: Mapping[str, Any]) -> str | None:
    """Returns the format of WEIGHT_FORMATS that a checkpoint's projections are stored in; None: none of them."""
    quantisation = config.get("quantization_config")
    if not isinstance(quantisation, Mapping):
        return None
    method = quantisation.get("quant_method")
    if method == "fp8":
        return "fp8"
    if method in ("awq", "gptq"):
        grouped = not quantisation.get("desc_act")
        return _integer(quantisation.get("bits"), quantisation.get("group_size") if grouped else 1)
    if method == MXFP4:
        return MXFP4
    if method == "gguf":
        return _of_gguf(quantisation.get("types"))
    return _compressed(quantisation) if method == "compressed-tensors" else None


def _of_gguf(types: object) -> str | None:
    """Of the types of its products. Products of several types are stacked, so some of more bits put all in 8."""
    found = set(types) if isinstance(types, list | tuple) else set()
    if found <= set(GGUF_PLAIN):
        return None
    return "int4_group32" if found <= set(_GGUF_INT4) else "int8"


def _compressed(quantisation: Mapping[str, Any]) -> str | None:
    groups = quantisation.get("config_groups")
    found = [_of_group(group) for group in groups.values()] if isinstance(groups, Mapping) else []
    return max((f for f in found if f is not None), key=lambda f: (WEIGHT_FORMATS[f].bytes_each(2), f), default=None)


def _of_group(group: object) -> str | None:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    if weights.get("type") == "float":
        return "fp8" if weights.get("num_bits") == 8 else None
    ordered = weights.get("actorder") in (None, "weight", "static")
    return _integer(weights.get("num_bits"), weights.get("group_size") if ordered else 1)


def _integer(bits: object, group: object) -> str | None:
    """4 bits in groups that no kernel has are kept in 8."""
    if bits == 4:
        return _int4(group)
    return "int8" if bits == 8 else None


def _int4(group: object) -> str:
    if not isinstance(group, int) or group <= 0:  # one for each row, which is taken for groups of the standard size
        return "int4"
    size = next((size for size in INT4_GROUPS if group % size == 0), None)
    if size is None:
        return "int8"
    return "int4" if size == INT4_GROUPS[0] else f"int4_group{size}"
