"""The compiled product over panels against the exact one, and what an executor does with it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from drawn_tensors import drawn
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.compiled.compiled_kernels import CompiledKernels
from pdmux_actor.models.compiled.kernels import CpuKernels
from pdmux_actor.models.compiled.library import cached_folder
from pdmux_actor.models.compiled.panel_linear import PanelKernels, PanelLinear, panels_of, rows_of
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

SHAPES = [(16, 2), (64, 96), (48, 160), (176, 64), (112, 2048)]  # one panel, two, three, more than four
TOKENS = [1, 2, 5, 6, 7, 13, 100]
TOLERANCE = 1 / 128  # half of bfloat16's last place, and what sums add


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_product__any_shape__near_the_exact_one(
    panel_kernels: PanelKernels, rows: int, columns: int, num_tokens: int
) -> None:
    weight, bias = drawn(rows, columns) / 8, drawn(rows, seed=3)
    inputs, addend = drawn(num_tokens, columns, seed=1), drawn(num_tokens, rows, seed=2)
    exact = functional.linear(inputs.double(), weight.double())
    near = {"rtol": TOLERANCE, "atol": TOLERANCE * float(exact.abs().max())}

    product = PanelLinear.of(panel_kernels, weight)(inputs)
    total = PanelLinear.of(panel_kernels, weight, bias).plus(inputs, addend)

    torch.testing.assert_close(product.double(), exact, **near)
    torch.testing.assert_close(total.double(), exact + bias.double() + addend.double(), **near)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_product__a_token_in_any_batch_on_any_threads__has_the_same_bits(
    panel_kernels: PanelKernels, num_threads: int
) -> None:
    linear, inputs = PanelLinear.of(panel_kernels, drawn(112, 320)), drawn(61, 320, seed=1)
    together, before = linear(inputs), torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for count in TOKENS:
            parts = [linear(part) for part in torch.split(inputs, count)]
            assert torch.equal(torch.cat(parts), together), count
    finally:
        torch.set_num_threads(before)


def test_panels__rows_read_again__are_the_weights(panel_kernels: PanelKernels) -> None:
    weight = drawn(48, 30)
    linear = PanelLinear.of(panel_kernels, weight)

    assert torch.equal(linear.weight, weight)
    assert torch.equal(rows_of(panels_of(weight), torch.tensor([47, 0, 17])), weight[[47, 0, 17]])
    assert torch.equal(linear.rows(torch.tensor([5])), weight[[5]].float())


def test_linear__copied_or_repacked__holds_tensors_of_its_own_of_the_same_sizes(panel_kernels: PanelKernels) -> None:
    linear, inputs = PanelLinear.of(panel_kernels, drawn(64, 96), drawn(64, seed=2)), drawn(5, 96, seed=1)
    expected, sizes = linear(inputs), []

    def of_tensor(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor.clone()

    copy, again = linear.copied(of_tensor, packed=False), linear.repacked()

    assert tuple(sizes) == linear.tensor_bytes
    assert torch.equal(copy(inputs), expected)
    assert torch.equal(again(inputs), expected)


@pytest.mark.parametrize("weight", [drawn(24, 64), drawn(32, 63), drawn(32, 64).float()])
def test_kernels__other_weights__are_onednns(panel_kernels: PanelKernels, weight: Tensor) -> None:
    assert isinstance(CompiledKernels(panels=panel_kernels).dense(weight), Linear)


SHAPE: Mapping[str, int] = {
    "num_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 32,
}


@pytest.mark.parametrize("is_tied", [True, False])
def test_embedding__tied__is_the_heads_panels_and_nothing_else(
    panel_kernels: PanelKernels, tmp_path: Path, *, is_tied: bool
) -> None:
    write_random_checkpoint(tmp_path, CheckpointShape(model_type="qwen3", tie_word_embeddings=is_tied, **SHAPE), seed=1)
    compiled = CompiledKernels(bfloat16=CpuKernels.compiled_into(cached_folder()), panels=panel_kernels)
    rig = CpuRig()
    try:
        rig.executor._kernels = compiled
        rig.load("m", tmp_path, dtype="bfloat16")
        first = _generated(rig)
        _check_weights(rig, is_tied=is_tied)
        rig.executor.sleep_model("m", 1 << 30)
        rig.wake("m")
        again = _generated(rig)
        _check_weights(rig, is_tied=is_tied)
    finally:
        rig.close()

    assert again == first


def _check_weights(rig: CpuRig, *, is_tied: bool) -> None:
    weights = rig.executor._attached["m"].decoder.weights
    assert isinstance(weights.layers[0].qkv, PanelLinear)
    assert isinstance(weights.lm_head, PanelLinear)
    assert weights.lm_head.shares(weights.embedding) == is_tied
    assert weights.embedding.dim() == (4 if is_tied else 2)


def _generated(rig: CpuRig) -> list[list[int]]:
    sequences = [rig.sequence("m", make_prompt(length), 8) for length in (1, 40, 200)]
    rig.prefill(sequences)
    rig.decode(sequences, 7)
    return outputs(sequences, 8)
