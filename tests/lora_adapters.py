"""Adapters with random matrices for small checkpoints, as PEFT writes them, and the greedy tokens that PEFT gives."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers_greedy import greedy_tokens

from profiler.adapter_sites import projection_shapes
from profiler.specs import ModelSpec


@dataclass(frozen=True)
class AdapterShape:
    rank: int
    modules: Sequence[str]
    alpha: float = 16.0
    options: Mapping[str, Any] = field(default_factory=dict)


ALL_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SHAPES = {
    "queries": AdapterShape(4, ("q_proj", "v_proj")),
    "all": AdapterShape(8, ALL_MODULES, alpha=8.0, options={"use_rslora": True}),
    "inner": AdapterShape(
        3,
        ("o_proj", "down_proj", "up_proj"),
        options={"rank_pattern": {"down_proj": 9}, "alpha_pattern": {"up_proj": 5}},
    ),
}
# Under the same names, for mixtures of experts.
OF_ATTENTION = {
    "queries": AdapterShape(4, ("q_proj", "v_proj")),
    "all": AdapterShape(8, ALL_MODULES[:4], alpha=8.0, options={"use_rslora": True}),
    "inner": AdapterShape(3, ("o_proj", "k_proj"), options={"rank_pattern": {"o_proj": 9}}),
}


def write_adapters(base: Path, folder: Path, shapes: Mapping[str, AdapterShape] = SHAPES) -> dict[str, Path]:
    """By name: folders that PEFT wrote."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    written = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        config = LoraConfig(
            r=shape.rank,
            lora_alpha=shape.alpha,
            target_modules=list(shape.modules),
            task_type="CAUSAL_LM",
            **shape.options,
        )
        adapted = get_peft_model(model, config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter_name, parameter in adapted.named_parameters():
                if ".lora_" in parameter_name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        adapted.save_pretrained(folder / name)
        written[name] = folder / name
    return written


def random_adapter(base: Path, folder: Path, shape: AdapterShape, seed: int = 0) -> Path:
    """The same without PEFT, in the same layout; `options` are keys of its adapter_config.json."""
    spec = ModelSpec.from_config(json.loads((base / "config.json").read_text()))
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(spec.num_layers):
        for module in shape.modules:
            size_out, size_in = projection_shapes(spec)[module]
            owner = "self_attn" if module in ALL_MODULES[:4] else "mlp"
            name = f"base_model.model.model.layers.{layer}.{owner}.{module}"
            for side, sizes in (("A", (shape.rank, size_in)), ("B", (size_out, shape.rank))):
                tensors[f"{name}.lora_{side}.weight"] = torch.randn(sizes, generator=generator) * 0.1
    config = {
        "peft_type": "LORA",
        "r": shape.rank,
        "lora_alpha": shape.alpha,
        "target_modules": list(shape.modules),
        "bias": "none",
        **shape.options,
    }
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


class PeftReference:
    """Greedy continuations of one base, with an adapter or without."""

    def __init__(self, base: Path, adapters: Mapping[str, Path]) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        self._models = {None: AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)}
        for name, folder in adapters.items():
            model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            self._models[name] = PeftModel.from_pretrained(model, folder).eval()

    def tokens(
        self, adapter: str | None, prompt: Sequence[int], num_tokens: int, *, likely: Sequence[int] | None = None
    ) -> list[int]:
        """`likely` as greedy_tokens has it."""
        return greedy_tokens(self._models[adapter], prompt, num_tokens, likely=likely)
