"""`weights: int8 | int4` of models that run by transformers' code: what is kept, what is said, and what is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig
from tiny_models import tiny_config, write_tiny_checkpoint
from transformers_rig import quiet_transformers, said, transformers_rig

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.faster_modules import PackedLinear
from pdmux_actor.models.quantised_weight import rounded_to
from pdmux_actor.models.transformers_loading import _layer_list, check_quantisable
from profiler.families.entry import ModelFamily
from profiler.families.registry import all_families
from profiler.specs import ModelSpec

SERVED = [family for family in all_families().values() if family.refusal is None]
DENSE = ["gemma2", "phi3", "opt", "cohere"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    with transformers_rig() as rig:
        yield rig


@pytest.mark.parametrize("model_type", DENSE)
def test_four_bits__of_any_dense_model__say_what_the_rounded_checkpoint_says(
    rig: CpuRig, tmp_path: Path, model_type: str
) -> None:
    model = write_tiny_checkpoint(tmp_path / "own", model_type)
    for layer in _layer_list(model.base_model, model.config.num_hidden_layers):
        for module in layer.modules():
            if type(module) is torch.nn.Linear:
                module.weight.data = rounded_to("int4", module.weight.data).dense()
    model.save_pretrained(tmp_path / "rounded")

    rig.load("m", tmp_path / "own", weights="int4")
    rig.load("rounded", tmp_path / "rounded")

    assert said(rig, "m") == said(rig, "rounded")


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("model_type", DENSE)
def test_weights__rounded__are_near_and_take_what_plans_count(
    rig: CpuRig, tmp_path: Path, model_type: str, weights: str
) -> None:
    model = write_tiny_checkpoint(
        tmp_path, model_type, hidden_size=256, head_dim=64, intermediate_size=256, ffn_dim=256, word_embed_proj_dim=256
    )
    layers = _layer_list(model.base_model, model.config.num_hidden_layers)
    exact = [module.weight for module in layers.modules() if type(module) is torch.nn.Linear]

    info = rig.load("m", tmp_path, weights=weights)

    decoder = rig.executor._attached["m"].decoder
    products = [m for layer in decoder.seams.layers for m in layer.modules() if isinstance(m, PackedLinear)]
    for product, weight in zip(products, exact, strict=True):
        assert (product.weight - weight).abs().max() <= weight.abs().max() / 13
    held = sum(sum(product.linear.tensor_bytes) for product in products)
    assert held == pytest.approx(info.spec.num_projection_params * info.spec.weight_format_bytes, rel=0.1)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_rounded_model__that_slept__says_the_same(rig: CpuRig, tmp_path: Path, weights: str) -> None:
    write_tiny_checkpoint(tmp_path, "gemma2")
    rig.load("m", tmp_path, weights=weights)
    before = said(rig, "m")

    assert rig.executor.sleep_model("m", 1 << 30) > 0
    rig.executor.detach_model("m")
    rig.wake("m")

    assert said(rig, "m") == before


@pytest.mark.parametrize("model_type", ["gpt_oss", "gpt2"])
def test_weights__in_no_linear_module__are_refused(rig: CpuRig, tmp_path: Path, model_type: str) -> None:
    write_tiny_checkpoint(tmp_path, model_type)

    with pytest.raises(
        ModelLoadError,
        match=r"weights=int8 cannot be had of \w+, which runs by transformers' code: .*; set `weights: dtype`",
    ):
        rig.load("m", tmp_path, weights="int8")


@pytest.mark.parametrize("family", SERVED, ids=lambda family: family.model_type)
def test_table__says_of_each_architecture__whether_it_is_rounded(family: ModelFamily) -> None:
    from transformers import AutoModelForCausalLM

    config = tiny_config(family.model_type)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    spec = ModelSpec.from_config({**config.to_dict(), "architectures": [family.name], "dtype": "float32"}, None, "int8")
    try:
        check_quantisable("m", spec, _layer_list(model.base_model, spec.num_layers))
        is_rounded = True
    except ModelLoadError:
        is_rounded = False

    assert is_rounded == family.is_rounded_by_transformers
