"""The GPU benchmarks' own code, on a tiny model in Triton's interpreter: that they run and what their rows hold."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from cuda_rig import make_cuda_rig
from gpu.floors import Sizes, decode_floor_s, prefill_floor_s, run
from gpu.random_models import SHAPES

from profiler.devices import H200
from profiler.specs import ModelSpec

LLAMA_8B = ModelSpec.from_config(SHAPES["llama-3-8b"], "bfloat16")


def test_floors__llama_8b_on_h200__are_those_of_the_arithmetic() -> None:
    # 15.0 GB of weights that every step reads, 131 kB of KV a token, 4.3 TB/s, 790 TFLOP/s.
    assert decode_floor_s(LLAMA_8B, H200, 1, 1024) == pytest.approx(3.5e-3, rel=0.02)
    assert decode_floor_s(LLAMA_8B, H200, 128, 1024) == pytest.approx(7.5e-3, rel=0.02)
    assert prefill_floor_s(LLAMA_8B, H200, 2048) == pytest.approx(38e-3, rel=0.1)


def test_run__tiny_model__rows_for_every_partition_and_a_repartition() -> None:
    executor = make_cuda_rig().executor
    executor.device = replace(executor.device, partition_granularity_sms=2)
    sizes = Sizes(decodes=((2, 9),), prefills=(6,), partition_stride=1, repeats=2)

    result = run(executor, "tiny", sizes, dtype="float32")

    assert {(row["measured"], row["sms"]) for row in result["rows"]} == {
        (kind, sms) for kind in ("decode", "prefill") for sms in (2, 4)
    }
    assert all(row["over_floor"] > 1 and row["seconds"] > 0 for row in result["rows"])
    assert result["repartition"]["step_after_repartition_s"] > 0
    assert result["graph_memory_share"] > 0
