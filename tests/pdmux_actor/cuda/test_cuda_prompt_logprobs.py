"""The CUDA executor's prompts are as probable as the CPU's, sliced and fused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt
from cuda_rig import make_cuda_rig

from pdmux_actor.messages import PromptLogprob


def told(rig: CpuRig, folder: Path, *, fused: bool) -> list[tuple[PromptLogprob, ...]]:
    rig.load("llama", folder, dtype="float32")
    sequences = [rig.sequence("llama", make_prompt(n), 2, prompt_logprobs=2) for n in (9, 6)]
    done = rig.finish_prompts(sequences, fused=fused)
    return [done.prompt_logprobs[place] for place in (0, 1)]


@pytest.mark.parametrize("fused", [False, True])
def test_prompt_logprobs__on_cuda__are_those_of_the_cpu(tiny_checkpoints: Mapping[str, Path], fused: bool) -> None:
    cpu = CpuRig()
    expected = told(cpu, tiny_checkpoints["llama"], fused=fused)
    cpu.close()

    for given, wanted in zip(told(make_cuda_rig(), tiny_checkpoints["llama"], fused=fused), expected, strict=True):
        assert [one.token_id for one in given] == [one.token_id for one in wanted]
        assert [one.logprob for one in given] == pytest.approx([one.logprob for one in wanted], abs=1e-4)
