"""Defines what an SGLang engine is started with for a model, or why it is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pdmux_actor.backends.sglang.options import (
    QUANTISED_SGLANG,
    SGLANG_MEMORY_SHARE,
    SPLIT_PREFILL_ARCHITECTURES,
    SglangOptions,
    option_problems,
    partitions_of,
)
from pdmux_actor.backends.sglang.plugin_config import PluginConfig, write_config
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.model_info import ModelInfo, longest_sequence_tokens
from pdmux_actor.models.checkpoint import read_json, resolve_checkpoint
from pdmux_actor.models.gguf_files.described_config import GGUF
from pdmux_actor.serving.commands import EngineSettings, LoadModelCommand
from profiler.errors import UnsupportedModel
from profiler.specs import DeviceSpec, ModelSpec

# Of a device, for weights and KV.
_MEMORY_SHARE: Mapping[str, float] = MappingProxyType({"cuda": SGLANG_MEMORY_SHARE, "cpu": 0.5})
_NO_GPU: Mapping[str, Any] = MappingProxyType({"disable_cuda_graph": True, "attention_backend": "torch_native"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """`arguments` are for `sglang.Engine`; `unmultiplexed` says why prefill and decode take turns, if they do."""

    info: ModelInfo
    arguments: Mapping[str, Any]
    unmultiplexed: str | None

    def quota_tokens(self, quota_blocks: int) -> int:
        geometry = self.info.geometry
        return quota_blocks // geometry.blocks_per_row * geometry.tokens_per_row

    def max_len(self, quota_blocks: int) -> int:
        return longest_sequence_tokens(self.info, quota_blocks)


def plan_launch(
    settings: EngineSettings, model: LoadModelCommand, *, policy: str, device: DeviceSpec, folder: Path, socket: str
) -> Launch:
    """Writes SGLang's multiplexing file into `folder`. May download the checkpoint.

    Raises:
        ModelLoadError: the checkpoint cannot be served, or the options do not go together.
    """
    if model.weights is not None:
        reason = f"models[].weights = {model.weights} is for muxfleet's own engine"
        raise ModelLoadError(model=model.model, reason=reason, remedy=QUANTISED_SGLANG)
    checkpoint = resolve_checkpoint(model.model, model.source, model.revision)
    spec = spec_of(model.model, checkpoint, model.dtype or settings.dtype)
    options = settings.sglang
    unmultiplexed = why_not_multiplexed(options, spec, settings.kind, device)
    if options.multiplexing == "on" and unmultiplexed is not None:
        raise ModelLoadError(
            model=model.model, reason=unmultiplexed, remedy="set pools[].sglang.multiplexing to auto or off"
        )
    for problem in option_problems(options, device, policy if unmultiplexed is None else "mux"):
        reason = f"pools[].sglang.{problem.field} = {problem.value}"
        raise ModelLoadError(model=model.model, reason=reason, remedy=problem.remedy)
    geometry = KvGeometry.of(spec, settings.block_bytes)
    context = min(model.max_model_len or spec.max_position_embeddings, spec.max_position_embeddings)
    info = ModelInfo(model=model.model, spec=spec, geometry=geometry, eos_token_ids=frozenset(), max_model_len=context)
    config = PluginConfig(
        socket=socket,
        multiplexes=unmultiplexed is None,
        model=model.model,
        spec=spec,
        device=device,
        num_gpus=settings.num_gpus,
        partitions=partitions_of(options, device) if unmultiplexed is None else (),
        policy=policy,
        profile=settings.profile,
        guard=settings.guard,
        scheduler=settings.scheduler,
        quota_tokens=model.quota_blocks // geometry.blocks_per_row * geometry.tokens_per_row,
    )
    arguments = _arguments(settings, checkpoint, info, config, folder)
    return Launch(info=info, arguments=MappingProxyType(arguments), unmultiplexed=unmultiplexed)


def why_not_multiplexed(options: SglangOptions, spec: ModelSpec, kind: str, device: DeviceSpec) -> str | None:
    """None: prefill and decode share the device."""
    if options.multiplexing == "off":
        return "sglang.multiplexing is off"
    if spec.architecture not in SPLIT_PREFILL_ARCHITECTURES:
        return f"SGLang cannot run {spec.architecture} in slices of layers"
    if not partitions_of(options, device):
        return f"{device.name} cannot be divided"
    if options.multiplexing == "auto" and kind != "sglang_cuda":
        return "partitions need an NVIDIA GPU"
    return None


def spec_of(model: str, checkpoint: Path, dtype: str | None) -> ModelSpec:
    """Raises ModelLoadError."""
    config = read_json(model, checkpoint, "config.json")
    if (config.get("quantization_config") or {}).get("quant_method") == GGUF:
        reason = "GGUF files are for muxfleet's own engine"
        raise ModelLoadError(model=model, reason=reason, remedy="name a checkpoint in Hugging Face layout")
    try:
        return ModelSpec.from_config(config, dtype)
    except UnsupportedModel as error:
        raise ModelLoadError(model=model, reason=str(error), remedy="see the list of architectures") from error


def _arguments(
    settings: EngineSettings, checkpoint: Path, info: ModelInfo, config: PluginConfig, folder: Path
) -> dict[str, Any]:
    device = "cuda" if settings.kind == "sglang_cuda" else "cpu"
    file = folder / "multiplexing.yaml"
    group_count = write_config(file, config)
    arguments: dict[str, Any] = {
        "model_path": str(checkpoint),
        "device": device,
        "dtype": info.spec.dtype,
        "tp_size": settings.num_gpus,
        "context_length": info.max_model_len,
        "max_total_tokens": (settings.kv_pool_bytes or 0) // info.spec.kv_bytes_per_token,
        "max_running_requests": settings.scheduler.max_running_sequences,
        "max_prefill_tokens": settings.scheduler.max_batch_tokens,
        "mem_fraction_static": _MEMORY_SHARE[device],
        "disable_radix_cache": not settings.scheduler.prefix_cache,
        "stream_interval": 1,
        "incremental_streaming_output": True,
        "skip_server_warmup": True,
        "log_level": "warning",
        "pdmux_config_path": str(file),  # also without multiplexing: it tells the plugin whose engine this is
    }
    if device == "cpu":
        arguments |= _NO_GPU
    elif settings.sglang.sleep:
        arguments |= {"enable_memory_saver": True, "enable_weights_cpu_backup": True}
    if config.multiplexes:
        arguments |= {
            "enable_pdmux": True,
            "sm_group_num": group_count,
            "chunked_prefill_size": -1,
            "disable_overlap_schedule": True,
        }
    elif config.policy == "chunked_prefill":
        arguments |= {"chunked_prefill_size": settings.scheduler.chunk_budget_tokens, "enable_mixed_chunk": True}
    return arguments | settings.sglang.args
