"""Converts a GGUF file of a Llama into checkpoints that every engine reads.

    python -m pdmux_actor.models.gguf_conversion FILE LLAMA_FOLDER QWEN2_FOLDER

transformers reads the file, dequantised; needs `gguf` and `accelerate` (the extra `demo`). A Qwen2 is a Llama with
biases on its query, key and value projections: with biases of zero the same weights give the same logits.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_WEIGHTS = "model.safetensors"


def convert_llama(file: Path, folder: Path) -> None:
    """Writes the model, its tokenizer and its chat template in bfloat16."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # seconds to import

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def copy_as_qwen2(llama: Path, folder: Path) -> None:
    shutil.copytree(llama, folder, ignore=shutil.ignore_patterns(_WEIGHTS, "config.json"))
    config = json.loads((llama / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    tensors = load_file(llama / _WEIGHTS)
    biases = {
        name.removesuffix("weight") + "bias": torch.zeros(tensor.shape[0], dtype=tensor.dtype)
        for name, tensor in tensors.items()
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    }
    save_file(tensors | biases, folder / _WEIGHTS, metadata={"format": "pt"})


if __name__ == "__main__":
    gguf_file, llama_folder, qwen2_folder = map(Path, sys.argv[1:])
    convert_llama(gguf_file, llama_folder)
    copy_as_qwen2(llama_folder, qwen2_folder)
