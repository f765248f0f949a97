"""A checkpoint made ready to launch: what every torch executor does when a model is loaded."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pdmux_actor.errors import ModelLoadError, ModelTooLarge
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.checkpoint import eos_token_ids, read_json, resolve_checkpoint
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import Decoder
from pdmux_actor.models.operators import DecoderOperators
from pdmux_actor.models.weights import load_weights
from placement.estimation.memory import resident_bytes
from placement.launch_limits import LaunchLimits
from profiler.specs import AUTO_DTYPE, ModelSpec

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    info: ModelInfo
    decoder: Decoder


def load_decoder(
    model: str,
    source: str,
    *,
    revision: str | None,
    dtype: str | None,
    max_model_len: int | None,
    block_bytes: int,
    available_bytes: int,
    fastest_dtype: Callable[[ModelSpec], str],
    device: torch.device | None = None,
    operators: DecoderOperators | None = None,
    launch_limits: LaunchLimits | None = None,
) -> LoadedModel:
    """`available_bytes` are free for weights; `fastest_dtype` answers for `dtype` auto; `device` None is the CPU.
    With `launch_limits` there must be room for what launches need beside the weights, too.

    Raises:
        ModelLoadError: the checkpoint is missing, broken, unsupported or too large; the message names the remedy.
    """
    folder = resolve_checkpoint(model, source, revision)
    raw_config = read_json(model, folder, "config.json")
    config = DecoderConfig.from_config(model, raw_config, None if dtype == AUTO_DTYPE else dtype)
    if dtype == AUTO_DTYPE:
        config = DecoderConfig.from_config(model, raw_config, fastest_dtype(config.spec))
    geometry = KvGeometry.of(config.spec, block_bytes)
    spec = config.spec
    needed_bytes = spec.weight_bytes if launch_limits is None else resident_bytes(spec, limits=launch_limits)
    _check_block(model, config, geometry, block_bytes)
    check_room(model, config.spec, needed_bytes, available_bytes)
    info = ModelInfo(
        model=model,
        spec=config.spec,
        geometry=geometry,
        eos_token_ids=eos_token_ids(model, folder, raw_config),
        max_model_len=_max_model_len(model, config, max_model_len),
        own_kv_beyond_tokens=config.rope.own_kv_beyond_tokens,
    )
    weights = load_weights(model, folder, config, device)
    return LoadedModel(info=info, decoder=Decoder(config, weights, info.max_model_len, operators))


def _check_block(model: str, config: DecoderConfig, geometry: KvGeometry, block_bytes: int) -> None:
    spec = config.spec
    if geometry.tokens_per_row == 0:
        needed_bytes = 2 * spec.head_dim * spec.dtype_bytes
        raise ModelLoadError(
            model=model,
            reason=f"a token block of {block_bytes} bytes holds no token of head_dim={spec.head_dim}",
            remedy=f"set the engine's block_bytes to at least {needed_bytes}",
        )


def check_room(model: str, spec: ModelSpec, needed_bytes: int, available_bytes: int) -> None:
    """Raises ModelTooLarge."""
    if needed_bytes > available_bytes:
        raise ModelTooLarge(
            model=model,
            reason=f"its weights as {spec.dtype}{' and workspace' if needed_bytes > spec.weight_bytes else ''} take "
            f"{needed_bytes} bytes, {available_bytes} are free",
            remedy="use a smaller model or dtype, a smaller KV pool, or place fewer models here",
        )


def _max_model_len(model: str, config: DecoderConfig, requested: int | None) -> int:
    length = config.spec.context_tokens(requested)
    window = config.traits.window_tokens
    if window is not None and window < length:
        _LOG.warning("%s: sequences are limited to its sliding window of %d tokens", model, window)
        length = window
    if requested is not None and requested > length:
        _LOG.warning("%s: max_model_len %d exceeds what the checkpoint supports, %d", model, requested, length)
    return length
