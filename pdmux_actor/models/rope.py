"""Rotary position embeddings: the frequencies a config.json asks for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pdmux_actor.errors import ModelLoadError

_DEFAULT_THETA = 10_000.0
# Parameters that each scaling type cannot do without.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_NEEDS_ORIGINAL_LENGTH = ("llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """`scaling` holds the numbers of `rope_scaling` / `rope_parameters` that `rope_type` uses."""

    rope_type: str
    theta: float
    scaling: Mapping[str, float]

    @classmethod
    def from_config(cls, model: str, config: Mapping[str, Any]) -> "RopeConfig":
        """Reads both layouts: `rope_theta` + `rope_scaling`, and `rope_parameters` (transformers 5).

        Raises:
            ModelLoadError: a scaling type that is not supported, or one of its parameters is missing.
        """
        given = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(given, dict):
            raise ModelLoadError(
                model=model, reason=f"config.json: rope_scaling={given!r} is no object", remedy="correct config.json"
            )
        parameters = dict(given)
        rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
        if rope_type not in _REQUIRED:
            raise ModelLoadError(
                model=model,
                reason=f"config.json: rope_scaling.rope_type={rope_type!r} is not supported",
                remedy=f"use a checkpoint with one of {', '.join(_REQUIRED)}",
            )
        partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if partial is not None and float(partial) != 1.0:
            raise ModelLoadError(
                model=model,
                reason=f"config.json: partial_rotary_factor={partial!r} is not supported",
                remedy="use a checkpoint that rotates whole heads",
            )
        if rope_type in _NEEDS_ORIGINAL_LENGTH:
            original = config.get("original_max_position_embeddings") or parameters.get(
                "original_max_position_embeddings", config.get("max_position_embeddings")
            )
            parameters["original_max_position_embeddings"] = original
        for name in _REQUIRED[rope_type]:
            if parameters.get(name) is None:
                raise ModelLoadError(
                    model=model,
                    reason=f"config.json: rope_scaling.{name} is missing for rope_type {rope_type!r}",
                    remedy="add it to config.json",
                )
            if not _is_positive(parameters[name]):
                raise ModelLoadError(
                    model=model,
                    reason=f"config.json: rope_scaling.{name}={parameters[name]!r} is no number above 0",
                    remedy="correct config.json",
                )
        theta = parameters.get("rope_theta", config.get("rope_theta"))
        theta = _DEFAULT_THETA if theta is None else theta
        if not _is_positive(theta):
            raise ModelLoadError(
                model=model,
                reason=f"config.json: rope_theta={theta!r} is no number above 0",
                remedy="correct config.json",
            )
        numbers = {name: float(v) for name, v in parameters.items() if isinstance(v, int | float)}
        return cls(rope_type=rope_type, theta=float(theta), scaling=numbers)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def rotary_table(config: RopeConfig, head_dim: int, num_positions: int) -> npt.NDArray[np.float32]:
    """`[num_positions, 2, head_dim]`: factors of x, (cos, cos), and of x with its halves swapped, (-sin, sin)."""
    frequencies, attention_factor = _inverse_frequencies(config, head_dim)
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * frequencies[None, :]
    cos, sin = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    table = np.stack((np.concatenate((cos, cos), axis=1), np.concatenate((-sin, sin), axis=1)), axis=1)
    return table.astype(np.float32)


def _inverse_frequencies(config: RopeConfig, head_dim: int) -> tuple[npt.NDArray[np.float32], np.float32]:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies: npt.NDArray[np.float32] = np.float32(1.0) / np.power(np.float32(config.theta), exponents)
    match config.rope_type:
        case "linear":
            return np.asarray(frequencies / config.scaling["factor"], dtype=np.float32), np.float32(1.0)
        case "llama3":
            return _llama3(frequencies, config.scaling), np.float32(1.0)
        case "yarn":
            return _yarn(frequencies, config, head_dim)
        case _:
            return frequencies, np.float32(1.0)


def _llama3(frequencies: npt.NDArray[np.float32], scaling: Mapping[str, float]) -> npt.NDArray[np.float32]:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between interpolated."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original_length = scaling["original_max_position_embeddings"]
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((original_length / wavelengths - low) / (high - low), 0.0, 1.0)
    scaled = (1 - smooth) * frequencies / scaling["factor"] + smooth * frequencies
    return np.asarray(scaled, dtype=np.float32)


def _yarn(
    frequencies: npt.NDArray[np.float32], config: RopeConfig, head_dim: int
) -> tuple[npt.NDArray[np.float32], np.float32]:
    """YaRN (arXiv 2309.00071, section 3.2), with transformers' defaults for what the config leaves out."""
    scaling = config.scaling
    factor, original_length = scaling["factor"], scaling["original_max_position_embeddings"]

    def correction_dim(rotations: float) -> float:
        return head_dim * math.log(original_length / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low = correction_dim(scaling.get("beta_fast") or 32.0)
    high = correction_dim(scaling.get("beta_slow") or 1.0)
    if scaling.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp below would divide by zero
    interpolated_share = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low), 0.0, 1.0)
    scaled = frequencies / factor * interpolated_share + frequencies * (1 - interpolated_share)
    return scaled.astype(np.float32), np.float32(_yarn_attention_factor(scaling, factor))


def _yarn_attention_factor(scaling: Mapping[str, float], factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = scaling.get("attention_factor")
    if given is not None:
        return given
    numerator, denominator = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if numerator and denominator:
        return mscale(numerator) / mscale(denominator)
    return mscale(1.0)
