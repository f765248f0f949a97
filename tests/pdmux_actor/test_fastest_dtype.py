from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_device, make_prompt
from engine_rig import make_info

from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models import fastest_dtype as module
from pdmux_actor.models.fastest_dtype import fastest_dtype
from pdmux_actor.models.linear import Linear


@pytest.mark.parametrize(("half_s", "expected"), [(0.5, "bfloat16"), (0.95, "float32"), (3.0, "float32")])
def test_fastest_dtype__bfloat16_takes_half_s_of_a_second__is_chosen_only_if_clearly_faster(
    half_s: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes(product: Linear, inputs: torch.Tensor) -> float:
        assert product(inputs).shape[1] == 256
        return half_s if inputs.dtype == torch.bfloat16 else 1.0

    monkeypatch.setattr(module, "_best_s", takes)

    assert fastest_dtype(make_info("a").spec) == expected


def test_load_model__dtype_auto__serves_in_the_dtype_that_was_measured(demo_checkpoints: Mapping[str, Path]) -> None:
    rig = CpuRig()
    info = rig.load("demo-llama", demo_checkpoints["demo-llama"], dtype="auto")
    sequence = rig.sequence("demo-llama", make_prompt(8), 4)
    rig.prefill([sequence])
    rig.decode([sequence], 3)
    rig.close()

    assert info.spec.dtype in ("float32", "bfloat16")
    assert rig.executor._storage.view(info.spec, info.geometry).dtype is getattr(torch, info.spec.dtype)
    assert len(sequence.token_ids) == 12


def test_load_model__dtype_auto_in_a_simulation__is_the_checkpoints_own(demo_checkpoints: Mapping[str, Path]) -> None:
    executor = SimulatedExecutor(
        device=make_device(), latency=object(), total_blocks=8, block_bytes=4096, clock=VirtualClock()
    )
    source = str(demo_checkpoints["demo-llama"])

    specs = [executor.load_model(ModelSource(model="m", source=source, dtype=dtype)).spec for dtype in ("auto", None)]

    assert specs[0] == specs[1]
