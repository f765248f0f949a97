import pytest
import torch
from torch.nn import functional

from pdmux_actor.models.linear import Linear

DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]


@pytest.mark.parametrize("num_tokens", [1, 7, 300])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_linear__any_dtype_and_layout__near_the_exact_product(
    dtype: torch.dtype, tolerance: float, has_bias: bool, packed: bool, num_tokens: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias, inputs, addend = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in [(96, 64), (96,), (num_tokens, 64), (num_tokens, 96)]
    )
    weight /= 8
    linear = Linear(weight, bias if has_bias else None, packed=packed)
    added = addend.double()  # plus may overwrite it
    exact = functional.linear(inputs.double(), weight.double(), bias.double() if has_bias else None)

    with torch.inference_mode():
        product, total = linear(inputs), linear.plus(inputs, addend)

    assert product.dtype == dtype
    torch.testing.assert_close(product.double(), exact, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(total.double(), exact + added, rtol=tolerance, atol=tolerance)
    assert torch.equal(linear.weight, weight)


def test_linear__unpacked__shares_the_weight() -> None:
    weight = torch.randn(8, 4)

    assert Linear(weight, packed=False).weight is weight


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear__copied_or_repacked__same_products_over_tensors_of_the_sizes_it_names(
    has_bias: bool, packed: bool
) -> None:
    linear = Linear(torch.randn(96, 64), torch.randn(96) if has_bias else None, packed=packed)
    seen: list[torch.Tensor] = []

    def passed_on(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.clone())
        return seen[-1]

    kept = linear.copied(passed_on, packed=False)

    assert linear.tensor_bytes == tuple(tensor.nbytes for tensor in seen)
    assert kept.weight is seen[0]
    again = kept.repacked()
    for tensor in seen:
        tensor.zero_()  # what is repacked is its own
    inputs = torch.randn(7, 64)
    torch.testing.assert_close(again(inputs), linear(inputs), rtol=1e-5, atol=1e-5)
