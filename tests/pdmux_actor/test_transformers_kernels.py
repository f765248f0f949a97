"""What makes models by transformers' code faster changes nothing of what they say: compiled kernels, other modules, and
what is behind the layers without the rest of the forward.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_rig import CpuRig, make_device, make_prompt
from tiny_models import tiny_config, write_tiny_checkpoint
from torch import Tensor
from transformers_rig import quiet_transformers

from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.models.compiled.kernels import CpuKernels
from pdmux_actor.models.compiled.library import cached_folder
from pdmux_actor.models.faster_modules import HalfRotation, rotate_faster
from pdmux_actor.models.layer_seams import LayerSeams, run_behind
from pdmux_actor.models.transformers_decoder import BehindLayers
from pdmux_actor.scheduling.launch import DecodeStep

LENGTHS = (90, 1, 40)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


def kernels() -> CpuKernels:
    made = CpuKernels.compiled_into(cached_folder())
    if made is None:
        pytest.skip("no compiler here, or a CPU that the kernels are not for")
    return made


def best_logprobs(folder: Path, *, compiled: bool) -> tuple[Tensor, bool]:
    """Of the first tokens and of those that are decoded after them, and whether KV was read where it lies."""
    executor = TorchCpuExecutor(
        kv_pool_bytes=32 << 20,
        block_bytes=4096,
        num_cores=1,
        device=make_device(1),
        implementation="transformers",
        compiles_kernels=compiled,
    )
    rig = CpuRig(executor=executor)
    try:
        rig.load("m", folder, dtype="bfloat16")
        sequences = [rig.sequence("m", make_prompt(n, vocab_size=160), 4, logprobs=1) for n in LENGTHS]
        found = [rig.run(launch) for launch in rig.prefill_slices(sequences, 2)][-1:]
        for sequence in sequences:
            sequence.token_ids[-1] = 77  # both go on with the same
        found.append(rig.run(DecodeStep(model="m", sequences=tuple(sequences), steps=1)))
        in_place = executor._attached["m"].blocks_in_place is not None
        return torch.tensor([[tokens[0].logprob for tokens in step] for step in found]), in_place
    finally:
        rig.close()


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gemma3_text", "gpt_oss", "granite_swa", "cohere", "glm4"])
def test_compiled_kernels__under_transformers_code__logprobs_stay(tmp_path: Path, model_type: str) -> None:
    """Caps, sinks and windows among them."""
    kernels()
    write_tiny_checkpoint(tmp_path, model_type, head_dim=32, num_attention_heads=2, num_key_value_heads=1)

    compiled, is_in_place = best_logprobs(tmp_path, compiled=True)
    by_torch, gathers = best_logprobs(tmp_path, compiled=False)

    assert is_in_place
    assert not gathers
    torch.testing.assert_close(compiled, by_torch, rtol=0.05, atol=0.1)


def _rotations(model_type: str) -> list[Any]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_config(model_type))
    rotate_faster(model, torch.float32)
    forwards = [vars(module).get("forward") for module in model.modules()]
    return [forward.__globals__["apply_rotary_pos_emb"] for forward in forwards if hasattr(forward, "__globals__")]


@pytest.mark.parametrize(("model_type", "is_replaced"), [("llama", True), ("gemma2", True), ("glm4", False)])
def test_rotate_faster__function_that_swaps_halves__is_replaced_in_these_modules_only(
    model_type: str, is_replaced: bool
) -> None:
    import importlib

    found = _rotations(model_type)

    assert len(found) == (3 if is_replaced else 0)
    assert all(isinstance(rotation, HalfRotation) for rotation in found)
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    assert not isinstance(module.apply_rotary_pos_emb, HalfRotation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 7])
def test_half_rotation__heads_of_a_projection__are_turned_as_by_its_own_function(
    dtype: torch.dtype, tokens: int
) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    compiled = CpuKernels.compiled_into(cached_folder())
    drawn = torch.randn(1, tokens, 5, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    query, key = drawn[:, :, :3].transpose(1, 2), drawn[:, :, 3:].transpose(1, 2)
    angles = torch.rand(1, tokens, 32).repeat(1, 1, 2) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    before = drawn.clone()

    rotation = HalfRotation(apply_rotary_pos_emb, compiled)
    made = rotation(query, key, cos, sin)

    expected = apply_rotary_pos_emb(query, key, cos, sin)
    tolerance = 4 * torch.finfo(dtype).eps
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert torch.equal(drawn, before), "heads that a model may look at again stay as they were"
    by_token = rotation(query.transpose(1, 2), key.transpose(1, 2), cos, sin, unsqueeze_dim=2)
    torch.testing.assert_close(by_token[0].transpose(1, 2), expected[0])


@pytest.mark.parametrize(
    ("model_type", "is_all"), [("llama", True), ("opt", True), ("gemma2", False), ("cohere", False)]
)
def test_behind_layers__norm_and_head_alone__are_found_by_trying(model_type: str, is_all: bool) -> None:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        model = AutoModelForCausalLM.from_config(tiny_config(model_type)).eval()
        layers = model.base_model.decoder.layers if model_type == "opt" else model.base_model.layers
        seams = LayerSeams(layers, [None] * len(layers))
        hidden = torch.randn(5, 64)

        found = BehindLayers.of(model, seams, torch.randn(2, 64))

        assert (found is not None) == is_all
        if found is not None:
            assert torch.equal(found.logits(hidden), run_behind(model, seams, hidden[None]).logits[0])
            assert torch.equal(found.states(hidden), run_behind(model.base_model, seams, hidden[None])[0][0])
