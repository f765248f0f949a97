"""The compiled product of int8 weights and activations against the integers' own sum, and against oneDNN's."""

from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from kernel_libraries import VARIANTS, library_for
from torch import Tensor

from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.compiled.compiled_linear import CompiledInt8Linear, Int8Kernels
from pdmux_actor.models.compiled.library import INT8_KERNELS
from pdmux_actor.models.quantised import Int8Linear, projection_maker
from pdmux_actor.models.quantised_weight import QuantisedWeight, rounded_to_int8
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

SHAPES = [(16, 16), (64, 96), (48, 160), (176, 64), (112, 2048)]  # one panel, two, three, more than four
TOKENS = [1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 25, 100]


@pytest.fixture(scope="module", params=VARIANTS)
def kernels(request: pytest.FixtureRequest) -> Int8Kernels:
    return Int8Kernels(library_for(request.param, INT8_KERNELS))


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_hand(weight: QuantisedWeight, inputs: Tensor) -> Tensor:
    """In float64, of the same rounded activations."""
    steps = inputs.float().abs().amax(dim=1, keepdim=True) / 127
    levels = (inputs.float() / steps + 128.5).floor() - 128
    return (levels.double() @ weight.levels.double().t()) * weight.scale.double() * steps.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_product__any_shape__is_the_sum_of_integers_rounded_once(
    kernels: Int8Kernels, rows: int, columns: int, num_tokens: int, dtype: torch.dtype
) -> None:
    weight = rounded_to_int8(drawn(rows, columns, dtype=dtype))
    inputs, addend, bias = (
        drawn(num_tokens, columns, seed=1, dtype=dtype),
        drawn(num_tokens, rows, seed=2, dtype=dtype),
        drawn(rows, seed=3, dtype=dtype),
    )
    exact, tolerance = by_hand(weight, inputs), 1e-5 if dtype == torch.float32 else 1 / 256

    product = CompiledInt8Linear.of(kernels, weight)(inputs)
    total = CompiledInt8Linear.of(kernels, weight, bias).plus(inputs, addend)

    torch.testing.assert_close(product.double(), exact, rtol=tolerance, atol=1e-4)
    torch.testing.assert_close(
        total.double(), exact + bias.double() + addend.double(), rtol=tolerance, atol=max(tolerance, 1e-4)
    )


@pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="oneDNN's sums of 16 bits saturate on this CPU")
@pytest.mark.parametrize("num_tokens", [1, 9, 40])
def test_product__in_float32__is_onednns(kernels: Int8Kernels, num_tokens: int) -> None:
    weight, inputs = rounded_to_int8(drawn(96, 256)), drawn(num_tokens, 256, seed=1)

    torch.testing.assert_close(
        CompiledInt8Linear.of(kernels, weight)(inputs), Int8Linear(weight)(inputs), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("num_tokens", [1, 9, 40])
def test_torchs_product__of_large_levels__does_not_saturate(num_tokens: int) -> None:
    weight, inputs = rounded_to_int8(drawn(24, 256)), drawn(num_tokens, 256, seed=1)

    product = Int8Linear(weight)(inputs)

    plain = inputs @ weight.dense().t()
    # What rounding the activations to 8 bits changes is a step of each; a saturated sum is wrong by far more.
    torch.testing.assert_close(product, plain, rtol=0, atol=0.05 * float(plain.abs().max()))


def test_product__a_token_in_any_batch__has_the_same_bits(kernels: Int8Kernels) -> None:
    linear = CompiledInt8Linear.of(kernels, rounded_to_int8(drawn(112, 320, dtype=torch.bfloat16)))
    inputs = drawn(61, 320, seed=1, dtype=torch.bfloat16)
    together = linear(inputs)

    for count in TOKENS:
        parts = [linear(part) for part in torch.split(inputs, count)]
        assert torch.equal(torch.cat(parts), together), count


def test_product__of_zeros_and_of_huge_activations__is_finite(kernels: Int8Kernels) -> None:
    linear = CompiledInt8Linear.of(kernels, rounded_to_int8(drawn(32, 64)))
    inputs = torch.stack((torch.zeros(64), torch.full((64,), 1e30), torch.full((64,), -1e-30)))

    product = linear(inputs)

    assert product.isfinite().all()
    assert torch.equal(product[0], torch.zeros(32))


def test_linear__copied_or_repacked__holds_tensors_of_its_own_of_the_same_sizes(kernels: Int8Kernels) -> None:
    weight = rounded_to_int8(drawn(64, 96))
    linear = CompiledInt8Linear.of(kernels, weight, drawn(64, seed=2))
    inputs = drawn(5, 96, seed=1)
    expected, sizes = linear(inputs), []

    def of_tensor(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor.clone()

    for again in (linear.copied(of_tensor, packed=False), linear.repacked()):
        assert torch.equal(again(inputs), expected)
        assert torch.equal(again.weight, weight.dense())
    assert tuple(sizes) == linear.tensor_bytes


@pytest.mark.parametrize(("rows", "columns"), [(24, 64), (64, 40)])
def test_maker__of_shapes_that_are_no_whole_panels__takes_torchs_kernel(
    kernels: Int8Kernels, rows: int, columns: int
) -> None:
    make = projection_maker("int8", CompiledKernels(int8=kernels))

    assert isinstance(make(drawn(rows, columns), None), Int8Linear)
    assert isinstance(make(drawn(64, 64, dtype=torch.float16), None), Int8Linear)
    assert isinstance(make(drawn(64, 64), None), CompiledInt8Linear)


def test_model__on_an_executor_with_the_kernel__says_what_it_says_without(kernels: Int8Kernels, tmp_path: Path) -> None:
    shape = CheckpointShape(
        model_type="qwen3", num_layers=2, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16
    )
    write_random_checkpoint(tmp_path, shape, seed=5)
    rig, said = CpuRig(), []
    try:
        for name in ("compiled", "by torch"):
            # Its own are none where the CPU has a matrix unit.
            rig.executor._kernels = CompiledKernels(int8=kernels) if name == "compiled" else BY_TORCH
            rig.load(name, tmp_path, weights="int8")
            of_layer = rig.executor._attached[name].decoder.weights.layers[0].qkv
            assert isinstance(of_layer, CompiledInt8Linear if name == "compiled" else Int8Linear)
            sequences = [rig.sequence(name, make_prompt(length), 8) for length in (1, 40, 200)]
            rig.prefill(sequences)
            rig.decode(sequences, 7)
            said.append(outputs(sequences, 8))
    finally:
        rig.close()

    assert said[0] == said[1]
