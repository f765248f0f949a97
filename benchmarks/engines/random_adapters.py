"""LoRA adapters with random matrices, of all projections of a checkpoint, as PEFT writes them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from profiler.adapter_sites import projection_shapes
from profiler.specs import ModelSpec


def write_adapter(folder: Path, spec: ModelSpec, rank: int, seed: int) -> Path:
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(spec.num_layers):
        for projection, (size_out, size_in) in projection_shapes(spec).items():
            owner = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{owner}.{projection}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, size_in, generator=generator) * 0.01
            tensors[f"{name}.lora_B.weight"] = torch.randn(size_out, rank, generator=generator) * 0.01
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
