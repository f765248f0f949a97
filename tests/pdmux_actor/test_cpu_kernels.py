"""The compiled kernels against float64, and what an executor does with and without them."""

import ctypes
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn_tensors import drawn
from kernel_libraries import VARIANTS, library_for
from torch import Tensor
from torch.nn import functional

from pdmux_actor.executor.blocks_in_place import BlocksInPlace
from pdmux_actor.executor.kv_storage import KvStorage
from pdmux_actor.executor.loading import load_decoder
from pdmux_actor.executor.packed_batch import DecodeGroup
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.attention import PLAIN, AttentionTraits
from pdmux_actor.models.compiled import library
from pdmux_actor.models.compiled.compiled_kernels import CompiledKernels, CompiledOperators
from pdmux_actor.models.compiled.compiled_linear import CompiledLinear
from pdmux_actor.models.compiled.kernels import CpuKernels
from pdmux_actor.models.decoder import Decoder
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.mxfp4_linear import Mxfp4Linear
from pdmux_actor.models.operators import HeadNorms, TorchOperators
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from profiler.specs import ModelSpec

TOLERANCE = 1 / 128  # half of bfloat16's last place, and what sums add


@pytest.fixture(scope="module", params=VARIANTS)
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return CpuKernels(library_for(request.param, library.BFLOAT16_KERNELS))


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 8, 13, 100])
@pytest.mark.parametrize(("rows", "columns"), [(96, 64), (67, 96), (3, 32)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_compiled_linear__any_shape__near_the_exact_product(
    kernels: CpuKernels, num_tokens: int, rows: int, columns: int, has_bias: bool
) -> None:
    weight, inputs, addend = (
        drawn(rows, columns) / 8,
        drawn(num_tokens, columns, seed=1),
        drawn(num_tokens, rows, seed=2),
    )
    bias = drawn(rows, seed=3) if has_bias else None
    linear = CompiledLinear(kernels, weight, bias)
    exact = functional.linear(inputs.double(), weight.double(), None if bias is None else bias.double())

    product, total, in_float = linear(inputs), linear.plus(inputs, addend), linear.float_product(inputs.float())

    torch.testing.assert_close(product.double(), exact, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(total.double(), exact + addend.double(), rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(in_float.double(), exact, rtol=1e-5, atol=1e-5)


def test_compiled_linear__a_token_in_any_batch__the_same_bits(kernels: CpuKernels) -> None:
    linear, inputs = CompiledLinear(kernels, drawn(130, 256)), drawn(33, 256, seed=1)

    together = linear(inputs)

    for size in (1, 2, 7, 32):
        assert torch.equal(linear(inputs[:size]), together[:size])


def test_compiled_linear__copied_or_repacked__over_other_tensors_of_the_sizes_it_names(kernels: CpuKernels) -> None:
    linear, inputs = CompiledLinear(kernels, drawn(96, 64), drawn(96, seed=1)), drawn(4, 64, seed=2)
    seen: list[torch.Tensor] = []

    def passed_on(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.clone())
        return seen[-1]

    again = linear.copied(passed_on, packed=False).repacked()

    assert linear.tensor_bytes == tuple(tensor.nbytes for tensor in seen)
    for tensor in seen:
        tensor.zero_()  # what is repacked is its own
    assert torch.equal(again(inputs), linear(inputs))


@pytest.mark.parametrize("is_normed", [True, False])
def test_compiled_operators__as_torchs(kernels: CpuKernels, is_normed: bool) -> None:
    heads, kv_heads, head_dim, tokens = 6, 2, 64, 5
    qkv, rotary = drawn(tokens, heads + 2 * kv_heads, head_dim), drawn(tokens, 2, head_dim, seed=1)
    norms = HeadNorms(query=drawn(head_dim, seed=2), key=drawn(head_dim, seed=3)) if is_normed else None
    factors = rotary.transpose(0, 1).unsqueeze(2)
    hidden, weight, gate_up = drawn(tokens, 96, seed=4), drawn(96, seed=5), 20 * drawn(tokens, 192, seed=6)
    plain, compiled = TorchOperators(), CompiledOperators(kernels)
    expected = plain.rotate(qkv[:, : heads + kv_heads].clone(), factors, norms, heads, 1e-6)
    values = qkv[:, heads + kv_heads :].clone()

    rotated = compiled.rotate(qkv[:, : heads + kv_heads], factors, norms, heads, 1e-6)

    torch.testing.assert_close(rotated, expected, rtol=4 * TOLERANCE, atol=4 * TOLERANCE)
    assert torch.equal(qkv[:, heads + kv_heads :], values)
    normed = compiled.rms_norm(hidden, weight, 1e-6)
    torch.testing.assert_close(normed, plain.rms_norm(hidden, weight, 1e-6), rtol=2 * TOLERANCE, atol=TOLERANCE)
    product, exact = compiled.silu_product(gate_up), gate_up.double()
    torch.testing.assert_close(
        product.double(), functional.silu(exact[:, :96]) * exact[:, 96:], rtol=TOLERANCE, atol=1e-6
    )


def test_rotated__heads_with_gaps_between_tokens__turned_by_halves(kernels: CpuKernels) -> None:
    tokens, heads, head_dim = 5, 3, 64
    stacked, angles = drawn(tokens, heads + 2, head_dim), drawn(tokens, head_dim // 2, seed=1).repeat(1, 2)
    part, cos, sin = stacked[:, 1 : heads + 1], angles.float().cos().bfloat16(), angles.float().sin().bfloat16()
    before = stacked.clone()

    made = kernels.rotated(part, cos, sin)

    first, second = part.double().chunk(2, dim=-1)
    exact = part.double() * cos.double()[:, None] + torch.cat((-second, first), dim=-1) * sin.double()[:, None]
    torch.testing.assert_close(made.double(), exact, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(stacked, before)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 6, 7, 16])
@pytest.mark.parametrize("rows", [8, 6, 67])
@pytest.mark.parametrize("has_bias", [True, False])
def test_mxfp4_linear__any_shape__near_the_exact_product(
    kernels: CpuKernels, num_tokens: int, rows: int, has_bias: bool
) -> None:
    columns, generator = 96, torch.Generator().manual_seed(rows)
    blocks = torch.randint(0, 256, (rows, columns // 2), generator=generator, dtype=torch.uint8)
    exponents = torch.randint(121, 126, (rows, columns // 32), generator=generator, dtype=torch.uint8)
    inputs, bias = drawn(num_tokens, columns), drawn(rows, seed=3) if has_bias else None
    by_kernel = Mxfp4Linear(blocks, exponents, torch.bfloat16, bias, kernels)
    by_torch = Mxfp4Linear(blocks, exponents, torch.bfloat16, bias)

    assert torch.equal(by_kernel.weight, by_torch.weight)
    exact = functional.linear(inputs.double(), by_torch.weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(by_kernel(inputs).double(), exact, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(by_kernel(inputs)[:1], by_kernel(inputs[:1]))


def exact_attention(query: Tensor, kept: Tensor, traits: AttentionTraits) -> Tensor:
    """query: [heads, head_dim]; kept: [tokens, kv_heads, 2, head_dim]. Of the last token, in float64."""
    key, value = kept.double().repeat_interleave(len(query) // kept.shape[1], dim=1).unbind(2)
    if traits.window_tokens is not None:
        key, value = key[-traits.window_tokens :], value[-traits.window_tokens :]
    scores = torch.einsum("hd,thd->ht", query.double(), key) * (traits.scale or query.shape[1] ** -0.5)
    if traits.softcap is not None:
        scores = torch.tanh(scores / traits.softcap) * traits.softcap
    if traits.sinks is not None:
        scores = torch.cat((scores, traits.sinks.double()[:, None]), dim=1)
    return torch.einsum("ht,thd->hd", scores.softmax(dim=1)[:, : len(key)], value)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "traits"),
    [
        (3, 1, 64, PLAIN),
        (14, 2, 64, PLAIN),
        (4, 4, 128, PLAIN),
        (8, 2, 32, PLAIN),
        (8, 2, 32, AttentionTraits(scale=0.4)),
        (8, 2, 32, AttentionTraits(window_tokens=40)),
        (8, 2, 32, AttentionTraits(window_tokens=1)),
        (12, 2, 64, AttentionTraits(softcap=2.0)),
        (12, 2, 64, AttentionTraits(sinks=drawn(12, seed=4) * 4)),
        (12, 2, 64, AttentionTraits(scale=0.3, window_tokens=100, softcap=5.0, sinks=drawn(12, seed=5))),
    ],
)
def test_blocks_in_place__sequences_of_any_length_in_scattered_blocks__as_exact_attention(
    kernels: CpuKernels, heads: int, kv_heads: int, head_dim: int, traits: AttentionTraits
) -> None:
    contexts = np.array([150, 64, 17, 1], dtype=np.int64)
    spec = ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=2,
        hidden_size=64,
        intermediate_size=64,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    geometry = KvGeometry.of(spec, 8192)
    per_row = geometry.tokens_per_row
    needed = -(-contexts // per_row)
    storage = KvStorage(int(needed.sum()) * geometry.blocks_per_row, 8192)
    storage.pool.view(torch.bfloat16).fill_(float("nan"))  # what lies beyond a sequence must not be read
    blocks = np.random.default_rng(0).permutation(storage.total_blocks)
    table = blocks.reshape(-1, geometry.blocks_per_row)
    rows = np.full((len(contexts), needed.max()), -1, dtype=np.int64)
    tokens, first_row = storage.pool[:, : per_row * 4 * head_dim].view(torch.bfloat16).view(-1, per_row, 2, head_dim), 0
    keys_values = [drawn(context, kv_heads, 2, head_dim, seed=int(context)) for context in contexts]
    for place, (kept, count) in enumerate(zip(keys_values, needed, strict=True)):
        rows[place, :count] = np.arange(first_row, first_row + count)
        first_row += count
        for position, of_token in enumerate(kept):
            columns = table[rows[place, position // per_row], kv_heads : 2 * kv_heads]
            tokens[torch.from_numpy(columns), position % per_row] = of_token
    query, attended = (
        drawn(len(contexts), heads, head_dim, seed=9),
        torch.empty(len(contexts), heads * head_dim).bfloat16(),
    )

    BlocksInPlace(kernels, storage.view(spec, geometry), table).attend(
        1, DecodeGroup(first=0, context_tokens=contexts, rows=rows), query, attended, traits
    )

    for place, kept in enumerate(keys_values):
        exact = exact_attention(query[place], kept, traits)
        torch.testing.assert_close(attended[place].double(), exact.flatten(), rtol=TOLERANCE, atol=TOLERANCE)


def plain_attention(layer: int, query: Tensor, key: Tensor, value: Tensor, *_: object) -> Tensor:
    """Each token attends to those before it."""
    heads = [part.transpose(0, 1)[None] for part in (query, key, value)]
    attended = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("multiply", [False, True])
def test_load_decoder__kernels__run_what_they_are_best_at_and_logits_stay(
    tmp_path: Path, kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch, multiply: bool
) -> None:
    """Where oneDNN multiplies faster, what is between the products is compiled all the same."""
    monkeypatch.setattr(kernels, "multiply", multiply)
    write_random_checkpoint(
        tmp_path,
        CheckpointShape(
            model_type="qwen3",
            num_layers=2,
            hidden_size=64,
            intermediate_size=96,
            num_heads=4,
            num_kv_heads=2,
            head_dim=32,
        ),
        seed=1,
    )

    def logits_by(compiled: CpuKernels | None) -> Tensor:
        decoder = load_decoder(
            ModelSource(model="m", source=str(tmp_path), dtype="bfloat16"),
            block_bytes=8192,
            available_bytes=1 << 30,
            fastest_dtype=lambda spec: "bfloat16",
            kernels=CompiledKernels(bfloat16=compiled),
        ).decoder
        assert isinstance(decoder, Decoder)
        projection = CompiledLinear if compiled is not None and multiply else Linear
        assert isinstance(decoder.weights.layers[0].qkv, projection)
        assert isinstance(decoder.weights.lm_head, projection)
        tokens = torch.arange(20, 45)
        hidden, rotary = decoder.start(tokens, torch.arange(len(tokens)))
        return decoder.logits(decoder.forward_layers(hidden, rotary, plain_attention, 0, 2))

    by_torch = logits_by(None)
    torch.testing.assert_close(logits_by(kernels), by_torch, rtol=0.05, atol=0.02 * float(by_torch.abs().max()))


def test_compiled_library__no_compiler__none_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = replace(library.BFLOAT16_KERNELS, flags_here=lambda: library.AVX2)
    monkeypatch.setattr(library, "_COMPILERS", ("no-such-compiler",))

    with caplog.at_level(logging.INFO):
        assert library.compiled_library(tmp_path, sources) is None

    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "no C++ compiler" in caplog.text


def test_compiled_library__compiler_fails__none_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = replace(library.BFLOAT16_KERNELS, flags_here=lambda: library.AVX2)
    monkeypatch.setattr(library, "_COMPILERS", ("false",))

    assert library.compiled_library(tmp_path, sources) is None

    assert "cannot be compiled" in caplog.text
    assert not list(tmp_path.iterdir()), "nothing unfinished is left"


def test_compiled_library__unsuited_cpu__compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = replace(library.BFLOAT16_KERNELS, flags_here=lambda: None)

    assert library.compiled_library(tmp_path, sources) is None
    assert not list(tmp_path.iterdir())


def test_compiled_library__is_there__is_not_compiled_again(
    tmp_path: Path, kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(library.compiled_library(library.cached_folder(), library.BFLOAT16_KERNELS), ctypes.CDLL)
    monkeypatch.setattr(library, "_COMPILERS", ())

    assert isinstance(library.compiled_library(library.cached_folder(), library.BFLOAT16_KERNELS), ctypes.CDLL)
