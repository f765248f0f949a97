"""An operation that is made again by record asks the builder for what it would be asked for anew."""

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from recorded_operations import RecordedOperation
from triton.runtime.interpreter import TensorHandle, interpreter_semantic


@triton.jit
def _mixed_kernel(left, right, out, num_rows, width: tl.constexpr):
    places = tl.arange(0, width)
    inside = places < num_rows
    x = tl.load(left + places, mask=inside, other=0.0)
    y = tl.load(right + places, mask=inside, other=-0.0)
    tl.store(out + places, x * x, mask=inside)
    tl.store(out + width + places, x * y, mask=inside)
    tl.store(out + 2 * width + places, (x * 1 + y * 1.0).to(tl.float16).to(tl.float32), mask=inside)
    tl.store(out + 3 * width + places, tl.where(x < y, x, tl.exp(y)), mask=inside)


@pytest.mark.parametrize("num_rows", [5, 8])
def test_kernel__same_types_other_values__computes_with_those(num_rows: int) -> None:
    for seed in range(3):  # the first one records
        x, y = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
        out = torch.full((4, 8), torch.nan)
        _mixed_kernel[(1,)](x, y, out, num_rows, width=8)

        expected = torch.stack((x * x, x * y, (x + y).half().float(), torch.where(x < y, x, y.exp())))
        torch.testing.assert_close(out[:, :num_rows], expected[:, :num_rows])
        assert out[:, num_rows:].isnan().all()


def _constant(value: float) -> tl.tensor:
    return interpreter_semantic.to_tensor(value)


def test_operation__argument_given_twice_first__is_two_arguments_later() -> None:
    product = RecordedOperation(_multiply, interpreter_semantic)
    three = _constant(3)

    assert [int(product(three, three)), int(product(three, _constant(5)))] == [9, 15]


def test_operation__constants_that_are_equal_but_of_other_types__are_told_apart() -> None:
    product = RecordedOperation(_multiply, interpreter_semantic)
    types = [product(_constant(3), factor).dtype for factor in (1, 1.0, True, 1)]

    assert types == [tl.int32, tl.float32, tl.int32, tl.int32]


def test_operation__looks_at_a_value__is_not_made_by_record() -> None:
    """Its own handle, not one that the builder made: the next value gives another."""

    def doubled(x: tl.tensor, _semantic: object = None) -> tl.tensor:
        return tl.tensor(TensorHandle(x.handle.data * 2, x.handle.dtype), x.type)

    double = RecordedOperation(doubled, interpreter_semantic)

    assert [int(double(_constant(value))) for value in (1, 2, 3)] == [2, 4, 6]


def _multiply(x: object, y: object, _semantic: object = None) -> tl.tensor:
    return _semantic.mul(x, y, False)
