"""Whatever launches ask of Triton was compiled while the model was loaded: a variant takes a second, and traffic would
wait for it.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt
from cuda_rig import make_cuda_rig
from kernel_variants import Variant, recorded_variants

from pdmux_actor.executor.cuda.kv_kernels import gather_kv
from pdmux_actor.messages import LogitsProcessing
from placement.launch_limits import LaunchLimits

NEW_TOKENS = 3
DRAWN = {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "seed": 1}
SAMPLINGS = ({}, {**DRAWN, "processing": LogitsProcessing(min_p=0.3, repetition_penalty=1.5)}, {"logprobs": 2})


def traffic(rig: CpuRig, model: str) -> None:
    """Prompts in slices, over cached prefixes and in chunks fused with decode steps; batches of one and of several."""
    for sampling in SAMPLINGS:
        batch = [rig.sequence(model, make_prompt(n, seed=1), NEW_TOKENS, **sampling) for n in (1, 5, 2)]
        rig.prefill(batch, layers_per_slice=1)
        rig.decode(batch[:1], 1)
        rig.decode(batch, 2, steps_per_launch=2)
    chunked = [rig.sequence(model, make_prompt(n, seed=2), NEW_TOKENS, **DRAWN) for n in (7, 6)]
    rig.generate_chunked(chunked, NEW_TOKENS, chunk_tokens=5)
    donor = rig.sequence(model, make_prompt(11), 1)
    rig.prefill([donor])
    rig.over_prefix(donor, 8, 1)


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_traffic__of_all_kinds__compiles_nothing(tiny_checkpoints: Mapping[str, Path], model: str) -> None:
    rig = make_cuda_rig(launch_limits=LaunchLimits(batch_tokens=64, sequences=4))
    with recorded_variants() as compiled:
        load, warm = rig.executor.load_model, set[Variant]()

        def loaded(*args: object, **kwargs: object) -> object:
            info = load(*args, **kwargs)
            warm.update(compiled)
            return info

        rig.executor.load_model = loaded
        rig.load(model, tiny_checkpoints[model], "float32", max_rows=100)
        traffic(rig, model)

    assert {name for name, _ in warm} >= {"_split_kernel", "_gather_kernel", "_draw_kernel", "_ban_kernel"}
    assert not compiled - warm


def test_gather_kv__contexts_of_a_piece__begin_anywhere_with_one_variant() -> None:
    pool, table = torch.zeros(4, 128), torch.zeros(2, 4, dtype=torch.int32)
    rows, offsets = (torch.zeros(8, dtype=torch.int32) for _ in range(2))
    with recorded_variants() as compiled:
        for first in (0, 1, 3):
            gather_kv(pool, table, rows[first:], offsets[first:], layer=1, kv_heads=2, head_dim=16)

    assert len(compiled) == 1


def test_load_model__batches_beyond_the_buckets__their_lists_of_splits_are_compiled(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = make_cuda_rig(launch_limits=LaunchLimits(batch_tokens=64, sequences=300))
    with recorded_variants() as compiled:
        rig.load("llama", tiny_checkpoints["llama"], "float32")

    assert sum(name == "_split_list_kernel" for name, _ in compiled) == 2
