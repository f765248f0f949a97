"""Triton's operators against torch's, in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from pdmux_actor.models.operators import HeadNorms, TorchOperators
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.models.workspace import LaneArena, Workspace

HEADS, KV_HEADS, TOKENS = 3, 2, 5


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("head_dim", "dtype"), [(32, torch.float32), (24, torch.float32), (64, torch.bfloat16)])
def test_rotate__views_of_a_wider_tensor__as_torch(head_dim: int, dtype: torch.dtype, has_norms: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(TOKENS, HEADS + 2 * KV_HEADS, head_dim, generator=generator).to(dtype)
    value_before = qkv[:, HEADS + KV_HEADS :].clone()
    table = torch.randn(50, 2, head_dim, generator=generator).to(dtype)
    rotary = table.index_select(0, torch.tensor([3, 0, 49, 7, 8])).transpose(0, 1).unsqueeze(2)
    norms = None
    if has_norms:
        weights = torch.randn(2, head_dim, generator=generator).to(dtype)
        norms = HeadNorms(query=weights[0], key=weights[1])
    query_key = qkv[:, : HEADS + KV_HEADS]
    expected = TorchOperators().rotate(query_key.clone(), rotary, norms, HEADS, 1e-6)

    rotated = TritonOperators().rotate(query_key, rotary, norms, HEADS, 1e-6)

    tolerance = 1e-5 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(rotated, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(qkv[:, HEADS + KV_HEADS :], value_before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_silu_product__odd_width__as_torch(dtype: torch.dtype) -> None:
    gate_up = torch.randn(TOKENS, 2 * 1337, generator=torch.Generator().manual_seed(0)).to(dtype)

    product = TritonOperators().silu_product(gate_up)

    tolerance = 1e-6 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(product, TorchOperators().silu_product(gate_up), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [48, 2048, 5000])
def test_rms_norm__in_an_arena__as_torch(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*size, generator=generator).to(dtype) for size in ((TOKENS, width), (width,)))
    workspace = Workspace()
    operators, arena = TritonOperators(workspace), LaneArena(torch.device("cpu"))
    arena.resize(1 << 20)

    with workspace.using(arena), workspace.passing():
        normed = operators.rms_norm(hidden[1:], weight, 1e-5)  # a tile of a launch's tokens

    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    expected = TorchOperators().rms_norm(hidden[1:], weight, 1e-5)
    torch.testing.assert_close(normed, expected, rtol=tolerance, atol=tolerance)
    assert arena.most_taken_bytes >= normed.nbytes
