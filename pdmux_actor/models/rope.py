"""Rotary position embeddings: the frequencies a config.json asks for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pdmux_actor.errors import ModelLoadError

_DEFAULT_THETA = 10_000.0
_DEFAULT_LENGTH = 2048  # as ModelSpec has it
# Parameters that each scaling type cannot do without.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "dynamic": ("factor",),
    "longrope": (),
}
_NEEDS_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """`scaling` holds the numbers of `rope_scaling` / `rope_parameters` that are used; the factors are LongRoPE's,
    one per pair of a head's dimensions.
    """

    rope_type: str
    theta: float
    scaling: Mapping[str, float]
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    @property
    def own_kv_beyond_tokens(self) -> int | None:
        """Prompts longer than this are rotated by frequencies that follow from their length: their KV is no other
        prompt's, even where it starts alike. None: a position is all that counts.
        """
        match self.rope_type:
            case "dynamic":
                return int(self.scaling["max_position_embeddings"])
            case "longrope":
                return int(self.scaling["original_max_position_embeddings"])
            case _:
                return None

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
        parameters["max_position_embeddings"] = config.get("max_position_embeddings") or _DEFAULT_LENGTH
        _check_required(model, rope_type, parameters)
        theta = parameters.get("rope_theta", config.get("rope_theta"))
        theta = _DEFAULT_THETA if theta is None else theta
        if not _is_positive(theta):
            raise ModelLoadError(
                model=model,
                reason=f"config.json: rope_theta={theta!r} is no number above 0",
                remedy="correct config.json",
            )
        numbers = {name: float(v) for name, v in parameters.items() if isinstance(v, int | float)}
        return cls(
            rope_type=rope_type,
            theta=float(theta),
            scaling=numbers,
            short_factors=_factors(model, parameters, "short_factor") if rope_type == "longrope" else (),
            long_factors=_factors(model, parameters, "long_factor") if rope_type == "longrope" else (),
        )

    def check(self, model: str, head_dim: int) -> None:
        """Raises ModelLoadError where the factors are not those of heads of that size."""
        for name, factors in (("short_factor", self.short_factors), ("long_factor", self.long_factors)):
            if factors and len(factors) != head_dim // 2:
                raise ModelLoadError(
                    model=model,
                    reason=f"config.json: rope_scaling.{name} has {len(factors)} numbers, head_dim={head_dim} needs "
                    f"{head_dim // 2}",
                    remedy="correct config.json",
                )


def _check_required(model: str, rope_type: str, parameters: Mapping[str, Any]) -> None:
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


def _factors(model: str, parameters: Mapping[str, Any], name: str) -> tuple[float, ...]:
    given = parameters.get(name)
    if not isinstance(given, list) or not given or not all(_is_positive(factor) for factor in given):
        raise ModelLoadError(
            model=model,
            reason=f"config.json: rope_scaling.{name}={given!r} is no list of numbers above 0",
            remedy="correct config.json",
        )
    return tuple(float(factor) for factor in given)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPiece:
    """Tokens `[first, last)` of a batch, all of one prompt of `prompt_tokens`."""

    first: int
    last: int
    prompt_tokens: int


def rotary_table(config: RopeConfig, head_dim: int, num_positions: int) -> npt.NDArray[np.float32]:
    """`[num_positions, 2, head_dim]`: factors of x, (cos, cos), and of x with its halves swapped, (-sin, sin).

    Of tokens that were generated, and of prompts that are not longer than `own_kv_beyond_tokens`: each position is
    rotated as the last of a sequence that ends there.
    """
    positions = np.arange(num_positions, dtype=np.float32)
    frequencies, attention_factor = inverse_frequencies(config, head_dim)
    if (limit := config.own_kv_beyond_tokens) is None:
        angles = positions[:, None] * frequencies[None, :]
    else:
        angles = positions[:, None] * _frequencies_by_length(config, head_dim, num_positions, limit)
    cos, sin = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    table = np.stack((np.concatenate((cos, cos), axis=1), np.concatenate((-sin, sin), axis=1)), axis=1)
    return table.astype(np.float32)


def _frequencies_by_length(config: RopeConfig, head_dim: int, longest: int, limit: int) -> npt.NDArray[np.float32]:
    """`[longest, head_dim / 2]`, of sequences of 1, 2, ... tokens."""
    by_length = np.empty((longest, head_dim // 2), dtype=np.float32)
    by_length[:limit], _ = inverse_frequencies(config, head_dim)
    if config.rope_type == "dynamic":
        thetas = np.array([theta_of_prompt(config, head_dim, n) for n in range(limit + 1, longest + 1)])
        by_length[limit:] = _unscaled(thetas[:, None], head_dim)
    else:
        by_length[limit:], _ = inverse_frequencies(config, head_dim, limit + 1)
    return by_length


def _unscaled(theta: float | npt.NDArray[np.float64], head_dim: int) -> npt.NDArray[np.float32]:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.asarray(np.float32(1.0) / np.power(np.asarray(theta, dtype=np.float32), exponents), dtype=np.float32)


def exponents_and_factors(config: RopeConfig, head_dim: int) -> npt.NDArray[np.float32]:
    """`[2, head_dim / 2]`: a prompt longer than `own_kv_beyond_tokens` has the wavelengths theta ** exponent *
    factor.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.stack((exponents, np.array(config.long_factors or np.ones(head_dim // 2), dtype=np.float32)))


def inverse_frequencies(
    config: RopeConfig, head_dim: int, prompt_tokens: int = 0
) -> tuple[npt.NDArray[np.float32], np.float32]:
    """`[head_dim / 2]`, and what cosines and sines are multiplied by, of a prompt of that length."""
    frequencies = _unscaled(theta_of_prompt(config, head_dim, prompt_tokens), head_dim)
    match config.rope_type:
        case "linear":
            return np.asarray(frequencies / config.scaling["factor"], dtype=np.float32), np.float32(1.0)
        case "llama3":
            return _llama3(frequencies, config.scaling), np.float32(1.0)
        case "yarn":
            return _yarn(frequencies, config, head_dim)
        case "longrope":
            is_long = prompt_tokens > config.scaling["original_max_position_embeddings"]
            factors = np.array(config.long_factors if is_long else config.short_factors, dtype=np.float32)
            return np.asarray(frequencies / factors, dtype=np.float32), _longrope_attention_factor(config.scaling)
        case _:
            return frequencies, np.float32(1.0)


def theta_of_prompt(config: RopeConfig, head_dim: int, prompt_tokens: int) -> float:
    """Returns theta, which grows with the prompt under dynamic scaling (NTK-aware, as transformers has it)."""
    if config.rope_type != "dynamic":
        return config.theta
    factor, named = config.scaling["factor"], config.scaling["max_position_embeddings"]
    stretch = factor * max(prompt_tokens, named) / named - (factor - 1)
    return config.theta * float(stretch ** (head_dim / (head_dim - 2)))


def _longrope_attention_factor(scaling: Mapping[str, float]) -> np.float32:
    """LongRoPE (arXiv 2402.13753), with transformers' defaults for what the config leaves out."""
    original = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or scaling["max_position_embeddings"] / original
    given = scaling.get("attention_factor")
    if given is not None:
        return np.float32(given)
    return np.float32(1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original)))


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
