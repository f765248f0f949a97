"""Projections over weights of 8 and 4 bits."""

import pytest
import torch

from pdmux_actor.models import quantised
from pdmux_actor.models.linear import Projection
from pdmux_actor.models.quantised import Int4Linear, Int8Linear, projection_maker
from pdmux_actor.models.quantised_weight import QuantisedWeight, rounded_to_int4, rounded_to_int8
from pdmux_actor.models.stored_levels import StoredLevels
from pdmux_actor.models.weights import torch_dtype
from profiler.specs import ModelSpec
from profiler.weight_formats import WEIGHT_FORMATS

DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 1.5e-2), (torch.float16, 3e-3)]
ROWS, COLUMNS = 96, 256


def made(kind: str, dtype: torch.dtype, has_bias: bool) -> Projection:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(ROWS, COLUMNS, generator=generator).to(dtype)
    bias = torch.randn(ROWS, generator=generator).to(dtype) if has_bias else None
    return projection_maker(kind)(weight, bias)


def rounded_activations(inputs: torch.Tensor) -> torch.Tensor:
    """What an int8 projection takes its inputs for on a CPU, in float64."""
    exact = inputs.double()
    steps = exact.abs().amax(dim=1, keepdim=True) / 127
    return (exact / steps).round() * steps


@pytest.mark.parametrize("num_tokens", [1, 7, 300])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised__any_dtype__multiplies_what_it_holds(
    kind: str, dtype: torch.dtype, tolerance: float, has_bias: bool, num_tokens: int
) -> None:
    projection = made(kind, dtype, has_bias)
    inputs = torch.randn(num_tokens, COLUMNS, generator=torch.Generator().manual_seed(2)).to(dtype)
    addend = torch.ones(num_tokens, ROWS, dtype=dtype)
    taken = rounded_activations(inputs) if kind == "int8" else inputs.double()
    exact = taken @ projection.weight.double().t()
    exact += 0 if projection.bias is None else projection.bias.double()

    with torch.inference_mode():
        product, total = projection(inputs), projection.plus(inputs, addend)

    assert product.dtype == dtype
    scale = exact.norm()
    # Activations at a rounding's edge may go either way in another order of operations: a few steps in all.
    assert (product.double() - exact).norm() / scale < tolerance + (1e-3 if kind == "int8" else 0)
    assert (total.double() - 1 - exact).norm() / scale < tolerance + (1e-3 if kind == "int8" else 0)


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.02), ("int4", 0.12)])
def test_quantised__against_the_weights_it_was_made_of__errs_within_its_bound(kind: str, most: float) -> None:
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    inputs = torch.randn(64, COLUMNS, generator=torch.Generator().manual_seed(3))
    exact = inputs @ weight.t()

    product = projection_maker(kind)(weight, None)(inputs)

    assert 0 < (product - exact).norm() / exact.norm() < most


def test_int8__rows_of_a_batch__are_those_of_each_token_alone() -> None:
    projection = made("int8", torch.bfloat16, has_bias=True)
    inputs = torch.randn(9, COLUMNS, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)

    alone = torch.cat([projection(row[None]) for row in inputs])

    assert torch.equal(projection(inputs), alone)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised__tokens_and_weights_of_zero__give_zero(kind: str) -> None:
    projection = projection_maker(kind)(torch.zeros(ROWS, COLUMNS), None)

    assert torch.equal(projection(torch.zeros(2, COLUMNS)), torch.zeros(2, ROWS))
    assert torch.equal(projection(torch.ones(2, COLUMNS)), torch.zeros(2, ROWS))


def test_int4__shapes_that_no_kernel_has__are_kept_as_int8() -> None:
    assert isinstance(projection_maker("int4")(torch.randn(64, 48), None), Int8Linear)
    assert isinstance(projection_maker("int4")(torch.randn(33, 64), None), Int8Linear)
    assert isinstance(projection_maker("int4")(torch.randn(64, 96), None), Int4Linear)


def test_int4__more_rows_than_are_packed_at_once__are_all_in_their_places() -> None:
    weight = torch.randn(2 * 512 + 96, 64, generator=torch.Generator().manual_seed(1))
    rounded = rounded_to_int4(weight)
    assert rounded is not None

    torch.testing.assert_close(projection_maker("int4")(weight, None).weight, rounded.dense(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [rounded_to_int8, rounded_to_int4])
def test_rounded__what_it_stands_for__rounds_to_itself(make) -> None:
    once = make(torch.randn(ROWS, COLUMNS)).dense()

    again = make(once).dense()

    torch.testing.assert_close(again, once, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised__copied_or_repacked__same_products_over_tensors_of_the_sizes_it_names(
    kind: str, has_bias: bool
) -> None:
    projection = made(kind, torch.bfloat16, has_bias)
    seen: list[torch.Tensor] = []

    def passed_on(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.clone())
        return seen[-1]

    kept = projection.copied(passed_on, packed=False)
    again = kept.repacked()
    sizes = tuple(tensor.nbytes for tensor in seen)
    for tensor in seen:
        tensor.zero_()  # what is repacked is its own

    assert projection.tensor_bytes == sizes
    inputs = torch.randn(7, COLUMNS).to(torch.bfloat16)
    assert torch.equal(again(inputs), projection(inputs))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4__of_any_group_and_dtype__takes_the_memory_that_plans_count(group: int, dtype: str) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 256,
        "num_attention_heads": 4, "vocab_size": 64, "quantization_config": {
            "quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False
        },
    }  # fmt: skip
    stored = StoredLevels(
        levels=torch.randint(0, 16, (256, 128), dtype=torch.uint8),
        scale=torch.rand(256, 128 // group),
        zero=torch.full((256, 128 // group), 8),
        group=group,
    )

    spec = ModelSpec.from_config(config, dtype=dtype)
    kept = stored.kept_as(spec.weights, torch_dtype(dtype))

    assert kept is not None
    counted = WEIGHT_FORMATS[spec.weights].product_bytes(256, 128, spec.dtype_bytes)
    assert sum(Int4Linear.of(kept).tensor_bytes) == counted


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_int8__some_rows_at_a_time_as_on_a_gpu__multiplies_what_it_holds(
    dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "_UNFOLDED_BYTES", 5 * COLUMNS * dtype.itemsize)
    projection = made("int8", dtype, has_bias=False)
    assert isinstance(projection, Int8Linear)
    inputs = torch.randn(7, COLUMNS, generator=torch.Generator().manual_seed(2)).to(dtype)
    exact = inputs.double() @ projection.weight.double().t()

    with torch.inference_mode():
        product = Int8Linear(projection.quantised, packed=False)._unfolded_product(inputs)

    assert product.dtype == dtype
    assert (product.double() - exact).norm() / exact.norm() < tolerance


def test_int8__on_a_gpu__is_no_product_of_torchs_slow_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes each number by one thread."""

    def slow(*arguments: object) -> None:
        raise AssertionError("a thread for each number")

    monkeypatch.setattr(torch.ops.aten, "_weight_int8pack_mm", slow)
    weight = rounded_to_int8(torch.randn(ROWS, COLUMNS)).placed(lambda tensor: tensor.to("meta"))
    bias = torch.zeros(ROWS, device="meta")

    product = Int8Linear(weight, bias)(torch.randn(3, COLUMNS, device="meta"))

    assert (product.shape, product.dtype) == ((3, ROWS), torch.float32)


@pytest.mark.parametrize("columns", [32, 64, 96, 128, 576, 640])
def test_int4__in_the_layout_of_a_gpu__all_levels_are_there(columns: int) -> None:
    """A tensor without numbers tells what shape the GPU's kernel would make, which takes whole tiles only."""
    groups = torch.empty(ROWS, columns // 32, device="meta")
    levels = torch.empty(ROWS, columns, dtype=torch.uint8, device="meta")

    packed_bytes, _ = Int4Linear.of(QuantisedWeight(levels=levels, scale=groups, middle=groups)).tensor_bytes

    assert packed_bytes == ROWS * columns // 2
