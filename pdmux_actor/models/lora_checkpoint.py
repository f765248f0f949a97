"""Reads a LoRA adapter in PEFT's layout and holds it against the shape of its base."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import read_json, resolve_checkpoint
from profiler.adapter_sites import projection_shapes
from profiler.specs import ModelSpec

MAX_RANK = 256
_CONFIG_FILE, _WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+_proj)\.lora_([AB])\.weight")
_OWNER = MappingProxyType(
    {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn"),
        **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp"),
    }
)
_REMEDY = "merge it into its base (peft: merge_and_unload) and serve the result as a model of its own"

# What changes the product in a way that two matrices do not say. Of what is left, training alone knows.
_UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
)
# Their matrices begin as a part of the base's weights, which PEFT takes out of these whenever it loads such an adapter.
_INITS_THAT_CHANGE_THE_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankPair:
    """Adds `x a^T b` to a projection's output: `a` [rank, in], `b` [rank, out], scaled as the adapter says."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """`layers[i]` has pairs by projection (q_proj, ...), of those that the adapter changes."""

    layers: tuple[Mapping[str, LowRankPair], ...]

    @property
    def rank(self) -> int:
        """The largest of any projection."""
        return max((len(pair.a) for layer in self.layers for pair in layer.values()), default=0)

    @property
    def num_bytes(self) -> int:
        return sum(pair.a.nbytes + pair.b.nbytes for layer in self.layers for pair in layer.values())

    def mapped(self, of_tensor: Callable[[Tensor], Tensor]) -> "LoraAdapter":
        """The same over other tensors."""
        return LoraAdapter(
            layers=tuple(
                {name: LowRankPair(a=of_tensor(pair.a), b=of_tensor(pair.b)) for name, pair in layer.items()}
                for layer in self.layers
            )
        )


def read_adapter(model: str, source: str, revision: str | None, spec: ModelSpec, dtype: torch.dtype) -> LoraAdapter:
    """Reads the adapter at `source`, a folder or a Hugging Face id, for a base of shape `spec`.

    Raises:
        ModelLoadError: it is missing, broken, no LoRA that can be served, or of another base.
    """
    folder = resolve_checkpoint(model, source, revision)
    config = read_json(model, folder, _CONFIG_FILE)
    check_adapter_config(model, folder / _CONFIG_FILE, config)
    tensors = _read_tensors(model, folder)
    shapes = projection_shapes(spec)
    found: list[dict[str, dict[str, Tensor]]] = [{} for _ in range(spec.num_layers)]
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None or match[2] not in shapes:
            of = "its base, a mixture of experts, takes those of attention: " if spec.is_moe else ""
            raise _refused(model, f"tensor {name} changes no projection of {of}{', '.join(shapes)}")
        layer, projection, side = int(match[1]), match[2], match[3]
        if layer >= spec.num_layers:
            raise _of_another_base(model, name, f"its base has {spec.num_layers} layers")
        found[layer].setdefault(projection, {})[side] = tensor
    layers = tuple(
        {
            p: _pair(model, config, f"model.layers.{i}.{_OWNER[p]}.{p}", shapes[p], sides, dtype)
            for p, sides in layer.items()
        }
        for i, layer in enumerate(found)
    )
    if not any(layers):
        raise _refused(model, f"{folder / _WEIGHTS_FILE} holds no LoRA matrices")
    return LoraAdapter(layers=layers)


def check_adapter_config(model: str, path: Path, config: Mapping[str, Any]) -> None:
    """Raises ModelLoadError: it is no LoRA, or one with parts beside its low-rank matrices."""
    if config.get("peft_type") != "LORA":
        raise _refused(model, f"{path}: peft_type = {config.get('peft_type')!r} is no LORA")
    if config.get("bias", "none") != "none":
        raise _refused(model, f"{path}: bias = {config['bias']!r}: biases are the base's")
    for key in _UNSUPPORTED:
        if config.get(key):
            raise _refused(model, f"{path}: {key} = {json.dumps(config[key])} is not served")
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_INITS_THAT_CHANGE_THE_BASE):
        raise _refused(model, f"{path}: init_lora_weights = {init!r}: it goes with weights of its base that it changed")
    rank = config.get("r")
    ranks = [rank, *_patterns(config, "rank_pattern").values()]
    if not all(isinstance(r, int) and r > 0 for r in ranks):
        raise _refused(model, f"{path}: r = {rank!r} is no rank")
    if max(ranks) > MAX_RANK:
        raise _refused(model, f"{path}: r = {max(ranks)} is larger than {MAX_RANK}")
    if not isinstance(config.get("lora_alpha"), int | float):
        raise _refused(model, f"{path}: lora_alpha = {config.get('lora_alpha')!r} is no number")


def _pair(
    model: str,
    config: Mapping[str, Any],
    name: str,
    shape: tuple[int, int],
    sides: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> LowRankPair:
    size_out, size_in = shape
    if len(sides) < 2:
        raise ModelLoadError(
            model=model,
            reason=f"lora_{'AB'['A' in sides]} of {name} is missing",
            remedy="copy or download the adapter again",
        )
    a, b = sides["A"], sides["B"]
    rank = int(_of_module(config, "rank_pattern", name, config["r"]))
    if a.shape != (rank, size_in) or b.shape != (size_out, rank):
        told = (
            f"lora_A {list(a.shape)} and lora_B {list(b.shape)}; its base takes {[rank, size_in]}, {[size_out, rank]}"
        )
        raise _of_another_base(model, name, told)
    alpha = _of_module(config, "alpha_pattern", name, config["lora_alpha"])
    scaling = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    return LowRankPair(a=a.to(dtype), b=(b.float() * scaling).t().contiguous().to(dtype))


def _of_module(config: Mapping[str, Any], patterns: str, module: str, default: float) -> float:
    """Returns what a pattern says of a module, by PEFT's rule: the first key that ends its name, as an expression."""
    for key, value in _patterns(config, patterns).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return float(value)
    return default


def _patterns(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    patterns = config.get(key)
    return patterns if isinstance(patterns, dict) else {}


def _read_tensors(model: str, folder: Path) -> Mapping[str, Tensor]:
    path = folder / _WEIGHTS_FILE
    if not path.exists():
        raise ModelLoadError(
            model=model,
            reason=f"{path} is missing",
            remedy="save the adapter as safetensors (peft: model.save_pretrained)",
        )
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            model=model,
            reason=f"{path} is not a complete safetensors file: {error}",
            remedy="copy or download the file again",
        ) from error


def _refused(model: str, reason: str) -> ModelLoadError:
    return ModelLoadError(model=model, reason=reason, remedy=_REMEDY)


def _of_another_base(model: str, what: str, told: str) -> ModelLoadError:
    return ModelLoadError(
        model=model, reason=f"{what}: {told}", remedy="set `base` to the model that the adapter was trained on"
    )
