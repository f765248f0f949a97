"""Models that run by transformers' code in launches of the CUDA executor: the same tokens as on the CPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import BLOCK_BYTES, make_cuda_rig
from tiny_models import write_tiny_checkpoint
from transformers_rig import quiet_transformers

NEW_TOKENS = 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


# One projection each for queries, keys and values; one for all; and values that are narrower than keys.
@pytest.mark.parametrize("model_type", ["olmo2", "gpt_neox", "deepseek_v2"])
def test_model__prompts_in_slices_steps_and_chunks__tokens_of_the_cpu(tmp_path: Path, model_type: str) -> None:
    write_tiny_checkpoint(tmp_path, model_type)
    produced = []
    for rig in (CpuRig(block_bytes=BLOCK_BYTES), make_cuda_rig()):
        rig.load("m", tmp_path, "float32", max_rows=100)
        sliced, chunked = (
            [rig.sequence("m", make_prompt(n, seed, vocab_size=160), NEW_TOKENS) for n in (1, 5, 18)]
            for seed in range(2)
        )
        rig.prefill(sliced, layers_per_slice=1)
        rig.decode(sliced[:1], 1)
        rig.decode(sliced, NEW_TOKENS - 2, steps_per_launch=2)
        rig.generate_chunked(chunked, NEW_TOKENS, chunk_tokens=7)
        produced.append(outputs(sliced, NEW_TOKENS - 1) + outputs(chunked, NEW_TOKENS))
        rig.close()

    assert produced[0] == produced[1]
