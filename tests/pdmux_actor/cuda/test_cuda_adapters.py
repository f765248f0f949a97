"""Adapters in launches of the CUDA executor: the same tokens as on the CPU, which are PEFT's."""

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import make_cuda_rig
from lora_adapters import AdapterShape, random_adapter

NEW_TOKENS = 4
MEMBERS = {"a": 5, None: 18, "b": 3}


def run(rig: CpuRig, base: Path, adapters: Mapping[str, Path], **sampling: object) -> list[list[int]]:
    """Prefill in slices and decode in look-ahead steps, then chunks fused with decode steps."""
    rig.load("base", base)
    for name, folder in adapters.items():
        rig.executor.load_adapter(name, "base", str(folder), revision=None)

    def batch():
        return [
            rig.sequence(member or "base", make_prompt(length), NEW_TOKENS, base="base" if member else None, **sampling)
            for member, length in MEMBERS.items()
        ]

    sliced, chunked = batch(), batch()
    rig.prefill(sliced, layers_per_slice=1)
    rig.decode(sliced, NEW_TOKENS - 1, steps_per_launch=2)
    rig.generate_chunked(chunked, NEW_TOKENS, chunk_tokens=7)
    rig.close()
    return outputs([*sliced, *chunked], NEW_TOKENS)


@pytest.fixture(scope="module")
def adapters(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    shapes = {"a": AdapterShape(4, ("q_proj", "down_proj")), "b": AdapterShape(9, ("v_proj", "o_proj", "up_proj"))}
    return {
        name: random_adapter(tiny_checkpoints["llama"], folder / name, shape, seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }


@pytest.mark.parametrize("sampling", [{}, {"logprobs": 1}])
def test_adapters__sliced_chunked_and_captured_steps_beside__same_tokens_as_on_the_cpu(
    tiny_checkpoints: Mapping[str, Path], adapters: Mapping[str, Path], sampling: Mapping[str, object]
) -> None:
    on_cpu = run(CpuRig(), tiny_checkpoints["llama"], adapters, **sampling)

    assert run(make_cuda_rig(), tiny_checkpoints["llama"], adapters, **sampling) == on_cpu
