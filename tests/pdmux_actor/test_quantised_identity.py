"""Greedy tokens over weights of 8 and 4 bits are those of transformers over the same weights, however work is cut."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from transformers_greedy import greedy_tokens

from pdmux_actor.models.quantised_weight import rounded_to_int4, rounded_to_int8
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

NEW_TOKENS = 8
LENGTHS = (1, 3, 16, 17, 64, 100, 129, 255, 300)
SHAPE = CheckpointShape(
    model_type="qwen3",
    num_layers=3,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
)


def rounded_inputs(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What an int8 projection takes its inputs for."""
    steps = args[0].abs().amax(dim=-1, keepdim=True) / 127
    return (((args[0] / steps + 128.5).floor() - 128) * steps,)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantised") / "m"
    write_random_checkpoint(folder, SHAPE, seed=5)
    return folder


def reference(folder: Path, kind: str) -> list[list[int]]:
    from transformers import AutoModelForCausalLM  # seconds to import

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for module in model.model.layers.modules():
        if isinstance(module, torch.nn.Linear):
            rounded = (rounded_to_int8 if kind == "int8" else rounded_to_int4)(module.weight.data)
            assert rounded is not None
            module.weight.data = rounded.dense()
            if kind == "int8":
                module.register_forward_pre_hook(rounded_inputs)
    return [greedy_tokens(model, make_prompt(length), NEW_TOKENS) for length in LENGTHS]


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    rig = CpuRig(poisoned=True)
    yield rig
    rig.close()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised__prefills_whole_sliced_chunked_and_cached__match_transformers(
    rig: CpuRig, folder: Path, kind: str
) -> None:
    info = rig.load("m", folder, weights=kind)
    expected = reference(folder, kind)
    prompts = [make_prompt(length) for length in LENGTHS]

    whole = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    rig.prefill(whole)
    rig.decode(whole, NEW_TOKENS - 1)
    sliced = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    rig.prefill(sliced, 1)
    rig.decode(sliced, NEW_TOKENS - 1, steps_per_launch=3)
    alone = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    for sequence in alone:
        rig.prefill([sequence])
        rig.decode([sequence], NEW_TOKENS - 1)
    chunked = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    rig.generate_chunked(chunked, NEW_TOKENS, chunk_tokens=70)
    cached = rig.over_prefix(whole[-1], 256, NEW_TOKENS)
    rig.decode([cached], NEW_TOKENS - 1)

    assert info.spec.weights == kind
    assert outputs(whole, NEW_TOKENS) == expected
    assert outputs(sliced, NEW_TOKENS) == expected
    assert outputs(alone, NEW_TOKENS) == expected
    assert outputs(chunked, NEW_TOKENS) == expected
    assert outputs([cached], NEW_TOKENS) == expected[-1:]


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised__asleep_and_awake__says_the_same(rig: CpuRig, folder: Path, kind: str) -> None:
    rig.load("m", folder, weights=kind, dtype="bfloat16")
    before = rig.sequence("m", make_prompt(100), NEW_TOKENS)
    rig.prefill([before])
    rig.decode([before], NEW_TOKENS - 1)

    rig.executor.sleep_model("m", 1 << 30)
    rig.executor.detach_model("m")
    rig.wake("m")
    after = rig.sequence("m", make_prompt(100), NEW_TOKENS)
    rig.prefill([after])
    rig.decode([after], NEW_TOKENS - 1)

    assert outputs([after], NEW_TOKENS) == outputs([before], NEW_TOKENS)
