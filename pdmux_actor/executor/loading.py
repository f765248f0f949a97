"""A checkpoint made ready to launch: what every torch executor does when a model is loaded."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from pdmux_actor.errors import ModelLoadError, ModelTooLarge
from pdmux_actor.executor.lanes import available_cores
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models.checkpoint import eos_token_ids, read_json, resolve_checkpoint
from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels, CompiledOperators
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import AnyConfig, AnyWeights, Decoder, DecoderWeights, LayeredDecoder
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.models.module_weights import ModuleWeights
from pdmux_actor.models.operators import DecoderOperators
from pdmux_actor.models.quantised import projection_maker
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.transformers_config import TransformersConfig
from pdmux_actor.models.transformers_loading import decoder_of, load_transformers_decoder
from pdmux_actor.models.uploads import Upload, copy_in_place
from pdmux_actor.models.weights import load_weights
from placement.estimation.memory import held_weight_bytes, resident_bytes
from placement.launch_limits import LaunchLimits
from profiler.families.registry import FAMILIES
from profiler.native_refusal import NativeRefusal, native_refusal, without_kernels
from profiler.specs import AUTO_DTYPE, ModelSpec

_MOST_READING_THREADS = 8  # a drive or a network file system gives no more to more
_MAKE_ROOM = "use a smaller model or dtype, `weights: int8`, a smaller KV pool, or place fewer models here"
_NO_MEMORY = ("allocate memory", "not enough memory")  # torch's and the system's own words
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    info: ModelInfo
    decoder: LayeredDecoder


ModelImplementation = Literal["auto", "transformers"]
"""Whose code runs the layers: the fast decoder where it knows the family, or always that of transformers."""


def load_decoder(
    source: ModelSource,
    *,
    block_bytes: int,
    available_bytes: int,
    fastest_dtype: Callable[[ModelSpec], str],
    device: torch.device | None = None,
    operators: DecoderOperators | None = None,
    kernels: CompiledKernels = BY_TORCH,
    launch_limits: LaunchLimits | None = None,
    implementation: ModelImplementation = "auto",
    on_progress: OnProgress = ignore_progress,
    share: RankShare = WHOLE,
    upload: Upload = copy_in_place,
    on_admitted: Callable[[str, int], None] = lambda what, num_bytes: None,
) -> LoadedModel:
    """`available_bytes` are free for weights; `fastest_dtype` answers for `dtype` auto; `device` None is the CPU,
    `upload` copies to others. What is loaded, and described, is the model's `share`. With `launch_limits` there must be
    room for what launches need beside the weights, too. `on_admitted` is told what takes how many bytes, before any is
    taken.

    Raises:
        ModelLoadError: the checkpoint is missing, broken, unsupported or too large; the message names the remedy.
    """
    model, dtype = source.model, source.dtype
    folder = resolve_checkpoint(model, source.source, source.revision)
    raw_config = read_json(model, folder, "config.json")
    config = _config(model, raw_config, None if dtype == AUTO_DTYPE else dtype, implementation, source.weights)
    if dtype == AUTO_DTYPE:
        config = _config(model, raw_config, fastest_dtype(config.spec), implementation, source.weights)
    _check_engine(model, config, device, share.num_ranks)
    spec = share.spec_of(config.spec)
    geometry = KvGeometry.of(spec, block_bytes)
    max_model_len = _max_model_len(model, config, source.max_model_len)
    needed_bytes = _needed_bytes(config.spec, share.num_ranks, launch_limits, max_model_len)
    _check_block(model, spec, geometry, block_bytes)
    check_room(model, spec, needed_bytes, available_bytes)
    on_admitted(needed_by(spec, needed_bytes), needed_bytes)
    info = ModelInfo(
        model=model,
        spec=spec,
        geometry=geometry,
        # A tokenizer may have tokens for which there are no logits: a mask for those would fail all of a launch.
        eos_token_ids=frozenset(i for i in eos_token_ids(model, folder, raw_config) if 0 <= i < spec.vocab_size),
        max_model_len=max_model_len,
        own_kv_beyond_tokens=config.rope.own_kv_beyond_tokens if isinstance(config, DecoderConfig) else None,
        whole=None if share.num_ranks == 1 else config.spec,
    )
    return LoadedModel(
        info=info, decoder=_decoder(info, folder, config, device, operators, kernels, on_progress, share, upload)
    )


def _config(
    model: str,
    config: Mapping[str, Any],
    dtype: str | None,
    implementation: ModelImplementation,
    weights: str | None,
) -> AnyConfig:
    architecture = str((config.get("architectures") or [None])[0])
    if implementation == "transformers" or architecture not in FAMILIES or FAMILIES[architecture].traits is None:
        return TransformersConfig.from_config(model, config, dtype, weights)
    return DecoderConfig.from_config(model, config, dtype, weights)


def _decoder(
    info: ModelInfo,
    folder: Path,
    config: AnyConfig,
    device: torch.device | None,
    operators: DecoderOperators | None,
    kernels: CompiledKernels,
    on_progress: OnProgress,
    share: RankShare,
    upload: Upload,
) -> LayeredDecoder:
    if isinstance(config, TransformersConfig):
        decoder = load_transformers_decoder(info.model, folder, config, device, kernels, upload)
        beyond = None if device is None else decoder.beyond_flash(info.max_model_len)
        if beyond is not None:
            remedy = "set max_model_len within its window"
            raise _refused(info.model, without_kernels(config.spec.architecture, beyond, remedy))
        return decoder
    bfloat16 = kernels.serving(info.spec)
    if bfloat16 is not None:
        operators = CompiledOperators(bfloat16)
    num_threads = min(_MOST_READING_THREADS, len(available_cores()))
    weights = load_weights(
        info.model,
        folder,
        config,
        device,
        projection_maker(config.spec.weights, kernels),
        kernels,
        upload=upload,
        num_threads=num_threads,
        on_progress=on_progress,
        share=share,
    )
    return Decoder(replace(config, spec=info.spec), weights, info.max_model_len, operators, upload)


def _check_engine(model: str, config: AnyConfig, device: torch.device | None, num_ranks: int) -> None:
    refused = native_refusal(
        config.spec,
        "cpu" if device is None or device.type == "cpu" else "cuda",
        num_ranks,
        by_transformers=isinstance(config, TransformersConfig),
    )
    if refused is not None:
        raise _refused(model, refused)


def _refused(model: str, refused: NativeRefusal) -> ModelLoadError:
    return ModelLoadError(model=model, reason=refused.reason, remedy=refused.remedy)


def _needed_bytes(spec: ModelSpec, num_ranks: int, limits: LaunchLimits | None, max_model_len: int) -> int:
    """Of each rank, as plans count it."""
    if limits is None:
        return held_weight_bytes(spec, num_ranks) // num_ranks
    return resident_bytes(spec, num_ranks, limits, max_model_len) // num_ranks


def awakened(
    config: AnyConfig,
    weights: AnyWeights,
    max_model_len: int,
    operators: DecoderOperators | None = None,
    kernels: CompiledKernels = BY_TORCH,
    upload: Upload = copy_in_place,
) -> LayeredDecoder:
    """A decoder of weights that slept in host memory and are where they are computed with again, whereto `upload`
    copies. `operators` None: those of a CPU, by `kernels` as far as they go.
    """
    if operators is None and (bfloat16 := kernels.serving(config.spec)) is not None:
        operators = CompiledOperators(bfloat16)
    if isinstance(config, DecoderConfig) and isinstance(weights, DecoderWeights):
        return Decoder(config, weights, max_model_len, operators, upload)
    assert isinstance(config, TransformersConfig)
    assert isinstance(weights, ModuleWeights)
    return decoder_of(config, weights, kernels)


def _check_block(model: str, spec: ModelSpec, geometry: KvGeometry, block_bytes: int) -> None:
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
        raise too_large(model, needed_by(spec, needed_bytes), needed_bytes, available_bytes)


def needed_by(spec: ModelSpec, needed_bytes: int) -> str:
    """Says for people what takes so many bytes."""
    return f"its weights as {spec.weights or spec.dtype}{' and workspace' if needed_bytes > spec.weight_bytes else ''}"


def too_large(model: str, what: str, needed_bytes: int, available_bytes: int) -> ModelTooLarge:
    return ModelTooLarge(
        model=model, reason=f"{what} take {needed_bytes} bytes, {available_bytes} are free", remedy=_MAKE_ROOM
    )


@contextmanager
def refusals_of_memory(model: str) -> Iterator[None]:
    """Makes ModelTooLarge of what is raised where the system refuses host memory, as under a limit of address space."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        said = str(error)
        if not (isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY)):
            raise
        raise ModelTooLarge(
            model=model,
            reason=f"the system gives no more memory ({said.splitlines()[0] if said else 'MemoryError'})",
            remedy=f"raise the limit of its processes (ulimit -v, MemoryMax), or {_MAKE_ROOM}",
        ) from error


def _max_model_len(model: str, config: AnyConfig, requested: int | None) -> int:
    length = config.spec.context_tokens(requested)
    window = config.traits.window_tokens if isinstance(config, DecoderConfig) else config.window_tokens
    if window is not None and window < length:
        what = "sliding window" if isinstance(config, DecoderConfig) else "length before the rotary scaling"
        _LOG.warning("%s: sequences are limited to its %s of %d tokens", model, what, window)
        length = window
    if requested is not None and requested > length:
        _LOG.warning("%s: max_model_len %d exceeds what the checkpoint supports, %d", model, requested, length)
    return length
