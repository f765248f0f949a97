"""Loads a checkpoint with transformers' own code and makes it a decoder that runs layer by layer."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.faster_modules import FixedLayoutLinear, PackedLinear, make_faster
from pdmux_actor.models.layer_seams import LayerSeams
from pdmux_actor.models.linear import MakeProjection
from pdmux_actor.models.memory_shortage import lacked_memory
from pdmux_actor.models.module_weights import ModuleWeights
from pdmux_actor.models.quantised import projection_maker
from pdmux_actor.models.quantised_weight import QuantisedWeight
from pdmux_actor.models.shard_files import open_shard, shard_files
from pdmux_actor.models.stored_formats.entry import StoredWeights
from pdmux_actor.models.tensor_reader import TensorReader
from pdmux_actor.models.transformers_attention import (
    MASK_PROBE,
    MODEL_CODE,
    AttentionCalls,
    UnservableAttention,
    register_attention,
)
from pdmux_actor.models.transformers_check import check_against, example_tokens
from pdmux_actor.models.transformers_config import TransformersConfig
from pdmux_actor.models.transformers_decoder import TransformersDecoder
from pdmux_actor.models.uploads import Upload, copy_in_place, moved
from pdmux_actor.models.weights import torch_dtype
from profiler.specs import ModelSpec

_LOG = logging.getLogger(__name__)
_ELSEWHERE = "serve it in a pool with `backend: sglang`, if SGLang has it (docs/models.md)"


def load_transformers_decoder(
    model: str,
    folder: Path,
    config: TransformersConfig,
    device: torch.device | None = None,
    kernels: CompiledKernels = BY_TORCH,
    upload: Upload = copy_in_place,
) -> TransformersDecoder:
    """Onto `device`, by `upload`; None is the CPU, where the kernels run what they can. The answer to a few
    tokens is compared with the model's own.

    Raises:
        ModelLoadError: the checkpoint is broken, or the model computes something that cannot be cut into layers with
            paged attention.
    """
    register_attention()
    weights = config.spec.weights
    if weights is not None and device is not None and device.type != "cpu":
        reason = f"weights={weights} of {config.spec.architecture}, which runs by transformers' code, is for CPUs"
        raise ModelLoadError(model=model, reason=reason, remedy="set `weights: dtype`, or serve it in an SGLang pool")
    dtype = torch_dtype(config.spec.dtype)
    with torch.inference_mode():
        for path in shard_files(model, folder):  # transformers would name neither the file nor what of it is cut off
            open_shard(model, path)
        unpacked = None if config.stored is None else unpack_checkpoint(model, folder, config.stored, dtype, weights)
        causal_lm = _from_checkpoint(model, folder, dtype, None if unpacked is None else unpacked.tensors)
        prefix = ""
        if weights is not None:
            layers = _layer_list(causal_lm.base_model, config.spec.num_layers)
            check_quantisable(model, config.spec, layers)
            prefix = next(name for name, module in causal_lm.named_modules() if module is layers)
        if device is not None:
            for tensor in (*causal_lm.parameters(), *causal_lm.buffers()):
                tensor.data = moved(device, upload, tensor.data)
        try:
            decoder = _taken_apart(causal_lm, config, kernels, is_rounded=False)
        # Anything may fail in code that nobody here has seen, when it runs in parts.
        except (UnservableAttention, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError,
                TypeError, ValueError) as error:  # fmt: skip
            if lacked_memory(error):
                raise
            raise ModelLoadError(
                model=model,
                reason=f"{config.spec.architecture} is not served by this engine: {error}",
                remedy=_ELSEWHERE,
            ) from error
        if weights is not None:  # after its answers were compared: roundings are no fault
            kept = {} if unpacked is None else unpacked.kept
            quantise(decoder.seams.layers, projection_maker(weights, kernels), kept, prefix)
        return decoder


def _from_checkpoint(model: str, folder: Path, dtype: torch.dtype, tensors: Mapping[str, Tensor] | None) -> Any:  # noqa: ANN401 - transformers has no types
    """`tensors` in place of those in the folder, by the same names."""
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        config, of_class = None, AutoModelForCausalLM
        source: Path | None = folder
        if tensors is not None:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            del config.quantization_config
            of_class, source = AutoModelForCausalLM._model_mapping[type(config)], None
        loaded, info = of_class.from_pretrained(
            source,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below, here they would be in a log
        )
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelLoadError(
            model=model,
            reason=f"transformers cannot load {folder}: {error}",
            remedy="copy or download the checkpoint again, or use one that this version of transformers has",
        ) from error
    for kind, remedy in (
        ("missing_keys", "check that config.json belongs to these weights and that every shard is there"),
        ("mismatched_keys", "check that config.json belongs to these weights"),
    ):
        if info[kind]:
            named = sorted(str(key) for key in info[kind])
            raise ModelLoadError(
                model=model,
                reason=f"{kind.replace('_keys', '')} tensors: {', '.join(named[:3])}{' ...' if named[3:] else ''}",
                remedy=remedy,
            )
    if info["unexpected_keys"]:
        unused = sorted(info["unexpected_keys"])
        _LOG.warning("%s: %d tensors of the checkpoint are not used, among them %s", model, len(unused), unused[0])
    return loaded.eval().requires_grad_(False)


def decoder_of(
    config: TransformersConfig, weights: ModuleWeights, kernels: CompiledKernels = BY_TORCH
) -> TransformersDecoder:
    """Makes one of weights that slept."""
    from transformers import AutoModelForCausalLM  # has been imported before

    with torch.inference_mode():
        with torch.device("meta"):
            causal_lm = AutoModelForCausalLM.from_config(
                weights.config, dtype=torch_dtype(config.spec.dtype), attn_implementation="eager"
            )
        weights.fill(causal_lm, tuple(_layer_list(causal_lm.base_model, config.spec.num_layers)))
        causal_lm.tie_weights()
        return _taken_apart(causal_lm.eval(), config, kernels, is_rounded=config.spec.weights is not None)


def _taken_apart(
    causal_lm: Any,  # noqa: ANN401 - as above
    config: TransformersConfig,
    kernels: CompiledKernels,
    *,
    is_rounded: bool,
) -> TransformersDecoder:
    spec = config.spec
    device = next(causal_lm.parameters()).device
    tokens = example_tokens(spec.vocab_size).to(device)
    holder = _layer_list(causal_lm.base_model, spec.num_layers)
    expected, returns = _own_answer(causal_lm, holder, tokens)
    make_faster(causal_lm, kernels)
    calls = AttentionCalls(spec.num_kv_heads, spec.head_dim)
    decoder = TransformersDecoder(config, causal_lm, LayerSeams(holder, returns), calls)
    causal_lm.config._attn_implementation = MASK_PROBE
    check_against(decoder, calls, tokens, expected, is_rounded=is_rounded)
    causal_lm.config._attn_implementation = MODEL_CODE
    return decoder


def _layer_list(base_model: nn.Module, num_layers: int) -> nn.ModuleList:
    """The outermost list as long as config.json says."""
    found = [
        (name.count("."), name, module)
        for name, module in base_model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers
    ]
    if not found:
        raise UnservableAttention(f"it has no list of {num_layers} layers")
    return min(found, key=lambda entry: entry[:2])[2]


def _own_answer(
    causal_lm: nn.Module, layers: Sequence[nn.Module] | nn.ModuleList, tokens: Tensor
) -> tuple[Tensor, list[int | None]]:
    """Logits by the model's own forward, and what each layer returns: the length of a tuple, None for no tuple."""
    returns: list[list[int | None]] = [[] for _ in layers]

    def noted(index: int) -> Any:  # noqa: ANN401 - a hook
        return lambda _module, _inputs, made: returns[index].append(len(made) if isinstance(made, tuple) else None)

    hooks = [layer.register_forward_hook(noted(index)) for index, layer in enumerate(layers)]
    logits: Tensor = causal_lm(input_ids=tokens[None], use_cache=False).logits[0].float()
    for hook in hooks:
        hook.remove()
    for index, of_layer in enumerate(returns):
        if len(of_layer) != 1:
            raise UnservableAttention(f"layer {index} runs {len(of_layer)} times for a token")
    return logits, [of_layer[0] for of_layer in returns]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedCheckpoint:
    """`tensors` by name, all plain; `kept` are the very levels of those weights that the engine keeps so."""

    tensors: Mapping[str, Tensor]
    kept: Mapping[str, QuantisedWeight]


def unpack_checkpoint(
    model: str, folder: Path, stored: StoredWeights, dtype: torch.dtype, weights: str | None
) -> UnpackedCheckpoint:
    """`weights` is ModelSpec's. Raises ModelLoadError: a file or tensor is missing or broken."""
    reader = TensorReader(model, folder, dtype=dtype, stored=stored)
    tensors, kept = dict[str, Tensor](), dict[str, QuantisedWeight]()
    for name, found in reader.all_tensors():
        if isinstance(found, Tensor):
            tensors[name] = found
            continue
        tensors[name] = torch.empty(found.shape, dtype=dtype)
        found.write_dense(tensors[name])
        levels = found.kept_as(weights, dtype)
        if levels is not None:
            kept[name] = levels
    return UnpackedCheckpoint(tensors=tensors, kept=kept)


def check_quantisable(model: str, spec: ModelSpec, layers: nn.ModuleList) -> None:
    """Raises ModelLoadError: a layer keeps weights in something else than a torch.nn.Linear, such as experts in one
    tensor; plans would count as rounded what is not.
    """
    for name, module in layers.named_modules():
        if type(module) is nn.Linear:
            continue
        for attribute, tensor in module._parameters.items():
            if tensor is not None and tensor.dim() > 1:
                named = f"{name}.{attribute}"
                raise ModelLoadError(
                    model=model,
                    reason=f"weights={spec.weights} cannot be had of {spec.architecture}, which runs by transformers' "
                    f"code: {named} of its layers is no product that is rounded",
                    remedy="set `weights: dtype`, or serve it in a pool with `backend: sglang`, if SGLang has it",
                )


def quantise(
    layers: Sequence[nn.Module], make_projection: MakeProjection, kept: Mapping[str, QuantisedWeight], prefix: str
) -> None:
    """One product after the other: beside them one is held in plain numbers. `kept` are weights whose levels a
    checkpoint has, by their names, which begin with `prefix` and the layer's number.
    """
    for index, layer in enumerate(layers):
        for name, module in layer.named_modules():
            if isinstance(module, PackedLinear):
                rounded = make_projection(kept.get(f"{prefix}.{index}.{name}.weight", module.weight), module.bias)
                assert isinstance(rounded, FixedLayoutLinear), "what is rounded is kept so"
                module.linear = rounded
