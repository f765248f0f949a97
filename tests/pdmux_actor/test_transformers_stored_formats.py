"""Quantised checkpoints of models that run by transformers' code: what is said, what is kept, and what is refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig
from quantised_checkpoints import KINDS, write_quantised
from safetensors.torch import load_file, save_file
from tiny_models import write_tiny_checkpoint
from transformers_rig import quiet_transformers, said, transformers_rig

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.compiled.compiled_linear import CompiledInt8Linear
from pdmux_actor.models.faster_modules import PackedLinear
from pdmux_actor.models.quantised import Int4Linear, Int8Linear

SIZES = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 256, "moe_intermediate_size": 64}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    with transformers_rig() as rig:
        yield rig


Write = Callable[[str, str], tuple[Path, dict[str, torch.Tensor]]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes `stored`, and `dense`: a plain checkpoint with the weights that `stored` stands for. Each once."""

    @cache
    def plain(model_type: str) -> Path:
        folder = tmp_path_factory.mktemp(model_type)
        write_tiny_checkpoint(folder, model_type, **SIZES)
        return folder

    @cache
    def written(model_type: str, kind: str) -> tuple[Path, dict[str, torch.Tensor]]:
        folder = tmp_path_factory.mktemp("quantised")
        dense = write_quantised(plain(model_type), folder / "stored", kind)
        shutil.copytree(plain(model_type), folder / "dense")
        tensors = load_file(plain(model_type) / "model.safetensors")
        save_file({**tensors, **dense}, folder / "dense" / "model.safetensors", metadata={"format": "pt"})
        return folder, dense

    return written


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model_type", ["gemma2", "phi3"])
def test_stored__unpacked__says_what_the_weights_that_it_stands_for_say(
    rig: CpuRig, written: Write, model_type: str, kind: str
) -> None:
    folder, dense = written(model_type, kind)
    assert dense

    rig.load("stored", folder / "stored", weights="dtype")
    rig.load("dense", folder / "dense")

    assert said(rig, "stored") == said(rig, "dense")


@pytest.mark.parametrize("kind", ["fp8", "compressed int4", "awq"])
def test_stored_mixture__unpacked__says_what_the_weights_that_it_stands_for_say(
    rig: CpuRig, written: Write, kind: str
) -> None:
    folder, dense = written("qwen3_moe", kind)
    assert any(".experts." in name for name in dense)

    rig.load("stored", folder / "stored", weights="dtype")
    rig.load("dense", folder / "dense")

    assert said(rig, "stored") == said(rig, "dense")


@pytest.mark.parametrize("kind", KINDS)
def test_stored__kept__are_the_very_levels_or_rounded_once_more(rig: CpuRig, written: Write, kind: str) -> None:
    folder, dense = written("gemma2", kind)
    planned = KINDS[kind][2]

    info = rig.load("m", folder / "stored")

    assert info.spec.weights == planned
    products = {
        f"model.layers.{index}.{name}.weight": module
        for index, layer in enumerate(rig.executor._attached["m"].decoder.seams.layers)
        for name, module in layer.named_modules()
        if isinstance(module, PackedLinear)
    }
    assert products.keys() == dense.keys()
    of_bits = {Int8Linear, CompiledInt8Linear} if planned == "int8" else {Int4Linear}
    assert {type(product.linear) for product in products.values()} <= of_bits
    for name in list(dense)[:7]:  # of one layer
        tolerance = (1 / 127 if planned == "int8" else 1e-5) * float(dense[name].abs().max())
        assert torch.allclose(products[name].weight, dense[name], atol=tolerance)


def test_stored__mixture__is_refused_with_what_serves_it(rig: CpuRig, tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, "gpt_oss")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))

    with pytest.raises(ModelLoadError, match=r"weights=int8 cannot be had of GptOssForCausalLM.*set `weights: dtype`"):
        rig.load("m", tmp_path)


def test_stored__format_that_is_not_read__is_named_with_those_that_are(rig: CpuRig, tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, "gemma2")
    config = json.loads((tmp_path / "config.json").read_text())
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))

    with pytest.raises(ModelLoadError, match=r"quant_method='bitsandbytes' is not supported; use a checkpoint of awq"):
        rig.load("m", tmp_path)
