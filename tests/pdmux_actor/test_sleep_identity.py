"""Invariant 6 for models that slept: their greedy tokens are the same, whatever the architecture and dtype."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs

from pdmux_actor.errors import HostMemoryShort
from pdmux_actor.executor.host_copy import host_bytes
from pdmux_actor.model_info import ModelSource

NEW_TOKENS = 12
PROMPTS = [make_prompt(9), make_prompt(30, seed=1)]


def said(rig: CpuRig, model: str) -> list[list[int]]:
    sequences = [rig.sequence(model, prompt, NEW_TOKENS) for prompt in PROMPTS]
    rig.prefill(sequences, 1)
    rig.decode(sequences, NEW_TOKENS - 1)
    return outputs(sequences, NEW_TOKENS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sleep_model__any_model__says_the_same_after_it_woke(demo_checkpoints: Mapping[str, Path], dtype: str) -> None:
    rig = CpuRig()
    try:
        for model, folder in demo_checkpoints.items():
            rig.load(model, folder, dtype)
        before = {model: said(rig, model) for model in demo_checkpoints}
        for model in demo_checkpoints:  # all sleep at once, and others go on in between
            rig.executor.sleep_model(model, 1 << 30)
            rig.executor.detach_model(model)
        for model in reversed(demo_checkpoints):
            rig.wake(model)
        assert {model: said(rig, model) for model in demo_checkpoints} == before
    finally:
        rig.close()


def test_sleep_model__takes_what_its_weights_take_and_no_more(demo_checkpoints: Mapping[str, Path]) -> None:
    rig = CpuRig()
    try:
        rig.load("demo-llama", demo_checkpoints["demo-llama"])
        weights = rig.executor._attached["demo-llama"].decoder.weights
        needed_bytes = host_bytes(weights)

        with pytest.raises(HostMemoryShort, match=r"'demo-llama' cannot sleep .* raise pools\[\]\.host_memory"):
            rig.executor.sleep_model("demo-llama", needed_bytes - 1)
        assert rig.executor._asleep == {}
        assert rig.executor.sleep_model("demo-llama", needed_bytes) == needed_bytes

        region = rig.executor._asleep["demo-llama"].region
        assert region.whole.nbytes == needed_bytes
        assert region._filled_bytes == needed_bytes
        copy = rig.executor._asleep["demo-llama"].weights
        assert torch.equal(copy.layers[0].qkv.weight, weights.layers[0].qkv.weight)
    finally:
        rig.close()


def test_sleep_model__loaded_and_not_attached_yet__sleeps(demo_checkpoints: Mapping[str, Path]) -> None:
    """The order to sleep may overtake the engine's loop."""
    rig = CpuRig()
    try:
        folder = str(demo_checkpoints["demo-llama"])
        rig.executor.load_model(ModelSource(model="demo-llama", source=folder))

        assert rig.executor.sleep_model("demo-llama", 1 << 30) > 0
    finally:
        rig.close()
