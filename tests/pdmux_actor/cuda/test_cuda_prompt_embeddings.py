"""The CUDA executor's embeddings of prompts are the CPU's, sliced, fused and beside prompts whose tokens are told."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt
from cuda_rig import make_cuda_rig


def told(rig: CpuRig, folder: Path, *, fused: bool) -> dict[int, np.ndarray]:
    """Embeddings of the first and third prompt, and logits of two tokens behind the fourth."""
    rig.load("llama", folder, dtype="float32")
    asked = ((9, 1), (5, None), (6, None), (7, None))
    sequences = [rig.sequence("llama", make_prompt(n), 1, prompt_logprobs=p) for n, p in asked]
    for asking, scored in ((sequences[0], ()), (sequences[2], ()), (sequences[3], (11, 4))):
        asking.request = replace(asking.request, embeds=True, scored_tokens=scored)
    done = rig.finish_prompts(sequences, fused=fused)
    assert list(done.prompt_logprobs) == [0]
    return {place: np.frombuffer(embedding, dtype="<f4") for place, embedding in done.embeddings.items()}


@pytest.mark.parametrize("fused", [False, True])
def test_embeddings__on_cuda__are_those_of_the_cpu(tiny_checkpoints: Mapping[str, Path], fused: bool) -> None:
    cpu = CpuRig()
    expected = told(cpu, tiny_checkpoints["llama"], fused=fused)
    cpu.close()

    given = told(make_cuda_rig(), tiny_checkpoints["llama"], fused=fused)

    assert sorted(given) == sorted(expected) == [0, 2, 3]
    for place, embedding in expected.items():
        assert embedding.shape == ((2,) if place == 3 else (48,))
        assert np.allclose(given[place], embedding, atol=1e-4)
