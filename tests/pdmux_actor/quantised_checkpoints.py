"""Makes quantised checkpoints of plain ones: by the library of the format where there is one, else by its published
layout, written here word by word as its own packers do, with the weights that it stands for.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Made = tuple[dict[str, Tensor], Tensor]  # tensors by what follows the module's name, and W
_FP8_MAX = 448.0


def fp8_blocks(weight: Tensor) -> Made:
    rows, columns = weight.shape
    blocks = torch.zeros(-(-rows // 128), -(-columns // 128))
    levels, dense = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
    for i in range(blocks.shape[0]):
        for j in range(blocks.shape[1]):
            place = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            blocks[i, j] = scale = weight[place].abs().max() / _FP8_MAX
            levels[place] = (weight[place] / scale).to(torch.float8_e4m3fn)
            dense[place] = levels[place].float() * scale
    return {"weight": levels, "weight_scale_inv": blocks}, dense


def fp8_tensor(weight: Tensor) -> Made:
    scale = weight.abs().max() / _FP8_MAX
    levels = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": levels, "weight_scale_inv": scale, "activation_scale": torch.ones(())}, levels.float() * scale


def fp8_scaled(weight: Tensor) -> Made:
    """As AutoFP8 names it."""
    made, dense = fp8_tensor(weight)
    scales = {"weight_scale": made["weight_scale_inv"], "input_scale": made["activation_scale"]}
    return {"weight": made["weight"], **scales}, dense


def compressed(**arguments: Any) -> Callable[[Tensor], Made]:
    """By compressed-tensors itself; the scales are the largest of each group, row, block or tensor."""

    def made(weight: Tensor) -> Made:
        from compressed_tensors.quantization.utils import calculate_qparams

        scheme, compressor = _scheme(arguments)
        args = scheme.weights
        rows, columns = weight.shape
        if args.strategy == "tensor":
            least, largest = weight.min()[None], weight.max()[None]
        elif args.strategy == "block":
            tall, wide = args.block_structure
            grid = weight.view(rows // tall, tall, columns // wide, wide)
            least, largest = grid.amin((1, 3)), grid.amax((1, 3))
        else:
            group = args.group_size if args.strategy == "group" else columns
            grid = weight.view(rows, columns // group, group)
            least, largest = grid.amin(2), grid.amax(2)
        scale, zero = calculate_qparams(least, largest, args)
        state = {"weight": weight, "weight_scale": scale}
        if not args.symmetric:
            state["weight_zero_point"] = zero.to(torch.int8)
        packed = compressor.compress(state, scheme)
        dense = compressor.decompress(dict(packed), scheme)["weight"].float()
        return {name: tensor.contiguous() for name, tensor in packed.items()}, dense

    return made


def _scheme(arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    import compressed_tensors.compressors as compressors
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    of = {"packed": compressors.PackedQuantizationCompressor, "float": compressors.FloatQuantizationCompressor}
    given = dict(arguments)
    kind = of.get(given.pop("layout"), compressors.IntQuantizationCompressor)
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**given)), kind


def gptq(bits: int, group: int, *, act_order: bool = False, version: int = 1) -> Callable[[Tensor], Made]:
    """As AutoGPTQ's QuantLinear.pack: levels of a column's group in `qweight`, zeros less one in `qzeros`."""

    def made(weight: Tensor) -> Made:
        rows, columns = weight.shape
        of = torch.arange(columns) // group
        if act_order:
            of = of[torch.randperm(columns, generator=torch.Generator().manual_seed(3))]
        groups = columns // group
        scale, zero = torch.empty(groups, rows), torch.empty(groups, rows, dtype=torch.int64)
        most = (1 << bits) - 1
        for g in range(groups):
            part = weight[:, of == g]
            least, largest = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale[g] = ((largest - least) / most).half().float()
            zero[g] = (-least / scale[g]).round().clamp(0, most)
        levels = ((weight / scale[of].t()).round() + zero[of].t()).clamp(0, most).long()
        dense = (levels - zero[of].t()) * scale[of].t()
        stored = (zero - 1) & most if version == 1 else zero
        per_word = 32 // bits
        qweight = torch.zeros(columns // per_word, rows, dtype=torch.int64)
        qzeros = torch.zeros(groups, rows // per_word, dtype=torch.int64)
        for place in range(per_word):
            qweight |= levels.t()[place::per_word] << (bits * place)
            qzeros |= stored[:, place::per_word] << (bits * place)
        return {
            "qweight": _int32(qweight),
            "qzeros": _int32(qzeros),
            "scales": scale.half(),
            "g_idx": of.int(),
        }, dense

    return made


def awq(group: int) -> Callable[[Tensor], Made]:
    """As AutoAWQ's WQLinear_GEMM.from_linear."""

    def made(weight: Tensor) -> Made:
        rows, columns = weight.shape
        grouped = weight.view(rows, columns // group, group)
        least, largest = grouped.amin(2), grouped.amax(2)
        scale = ((largest - least) / 15).half().float()
        zero = (-least / scale).round().clamp(0, 15)
        levels = ((grouped / scale[..., None]).round() + zero[..., None]).clamp(0, 15)
        dense = ((levels - zero[..., None]) * scale[..., None]).view(rows, columns)
        order = (0, 2, 4, 6, 1, 3, 5, 7)

        def packed(of: Tensor) -> Tensor:  # [rows, n] -> [n, rows / 8]
            transposed = of.t().long()
            words = torch.zeros(transposed.shape[0], rows // 8, dtype=torch.int64)
            for place, row in enumerate(order):
                words |= transposed[:, row::8] << (4 * place)
            return _int32(words)

        return {
            "qweight": packed(levels.view(rows, columns)),
            "qzeros": packed(zero),
            "scales": scale.t().half().contiguous(),
        }, dense

    return made


def _int32(words: Tensor) -> Tensor:
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _of_group(layout: str, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_FP8 = {"num_bits": 8, "type": "float"}

# What config.json says, who packs, and what the engine keeps.
KINDS: Mapping[str, tuple[dict[str, Any], Callable[[Tensor], Made], str]] = {
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8_blocks, "int8"),
    "fp8 of a tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8_tensor, "int8"),
    "fp8 of a tensor by AutoFP8": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8_scaled, "int8"),
    "compressed fp8": (
        _of_group("float-quantized", strategy="channel", **_FP8),
        compressed(layout="float", strategy="channel", **_FP8),
        "int8",
    ),
    "compressed fp8 blocks": (
        _of_group("float-quantized", strategy="block", block_structure=[32, 64], **_FP8),
        compressed(layout="float", strategy="block", block_structure=[32, 64], **_FP8),
        "int8",
    ),
    "compressed int8": (
        _of_group("int-quantized", num_bits=8, type="int", strategy="channel"),
        compressed(layout="int", num_bits=8, type="int", strategy="channel"),
        "int8",
    ),
    "compressed int8, packed": (
        _of_group("pack-quantized", num_bits=8, type="int", strategy="channel"),
        compressed(layout="packed", num_bits=8, type="int", strategy="channel"),
        "int8",
    ),
    "compressed int4": (_of_group("pack-quantized", **_INT4), compressed(layout="packed", **_INT4), "int4_group32"),
    "compressed int4 with zeros": (
        _of_group("pack-quantized", **_INT4, symmetric=False),
        compressed(layout="packed", **_INT4, symmetric=False),
        "int4_group32",
    ),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}, gptq(4, 32), "int4_group32"),
    "gptq out of order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        gptq(4, 32, act_order=True),
        "int8",
    ),
    "gptq 8 bits": (
        {"quant_method": "gptq", "bits": 8, "group_size": 32, "checkpoint_format": "gptq_v2"},
        gptq(8, 32, version=2),
        "int8",
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, awq(64), "int4_group64"),
}


def write_quantised(plain: Path, folder: Path, kind: str) -> dict[str, Tensor]:
    """Returns the weights of the products that it stands for, by the names that they have in `plain`."""
    settings, pack, _ = KINDS[kind]
    shutil.copytree(plain, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    tensors, dense = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        packed, dense[name] = pack(tensor.float())
        tensors |= {f"{name.removesuffix('weight')}{of}": part for of, part in packed.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return dense
