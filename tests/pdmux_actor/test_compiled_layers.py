"""Layers in one compiled call against the same layers part by part."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from torch import Tensor

from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

SHAPE = CheckpointShape(
    model_type="llama",
    num_layers=3,
    hidden_size=64,
    intermediate_size=96,
    num_heads=6,
    num_kv_heads=2,
    head_dim=32,
)
SHAPES = {
    "llama": SHAPE,
    "biases": replace(SHAPE, model_type="qwen2", attention_bias=True, tie_word_embeddings=True),
    "head norms": replace(SHAPE, model_type="qwen3", tie_word_embeddings=True),
    "a window": replace(SHAPE, model_type="mistral", sliding_window=24),
}
PROMPTS = (200, 40, 3, 1)  # groups of several lengths


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    made = CpuRig()
    if made.executor._kernels.panels is None:
        made.close()
        pytest.skip("no compiler here, or a CPU that the kernels are not for")
    yield made
    made.close()


def generated(rig: CpuRig, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], list[Tensor]]:
    """Tokens, and the hidden states after the last layer of each step."""
    states: list[Tensor] = []
    decoder = rig.executor._attached["m"].decoder
    of_hidden = decoder.logits

    def noted(hidden: Tensor) -> Tensor:
        states.append(hidden.clone())
        return of_hidden(hidden)

    with monkeypatch.context() as patched:
        patched.setattr(decoder, "logits", noted)
        sequences = [rig.sequence("m", make_prompt(length), 40) for length in PROMPTS]
        rig.prefill(sequences)
        rig.decode(sequences, 39)
    return outputs(sequences, 40), states


@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.parametrize("name", SHAPES)
def test_decode__by_compiled_layers__has_the_same_bits_as_part_by_part(
    rig: CpuRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, weights: str | None
) -> None:
    write_random_checkpoint(tmp_path, SHAPES[name], seed=1)
    rig.load("m", tmp_path, dtype="bfloat16", weights=weights)
    attached = rig.executor._attached["m"]
    assert attached.compiled_layers is not None

    tokens, states = generated(rig, monkeypatch)
    rig.executor._attached["m"] = replace(attached, compiled_layers=None)
    expected_tokens, expected = generated(rig, monkeypatch)

    assert len(states) == len(expected) > 39
    for step, (one, other) in enumerate(zip(states, expected, strict=True)):
        assert torch.equal(one, other), step
    assert tokens == expected_tokens


@pytest.mark.parametrize(("shape", "dtype"), [(replace(SHAPE, model_type="qwen3_moe"), "bfloat16"), (SHAPE, "float32")])
def test_layers__of_a_mixture_or_in_float32__run_part_by_part(
    rig: CpuRig, tmp_path: Path, shape: CheckpointShape, dtype: str
) -> None:
    write_random_checkpoint(tmp_path, shape, seed=1)
    rig.load("m", tmp_path, dtype=dtype)

    assert rig.executor._attached["m"].compiled_layers is None
