"""Plans count of weights in 8 and 4 bits exactly what the engine holds of them when it has loaded a model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cpu_rig import CpuRig
from torch import Tensor

from pdmux_actor.executor.host_copy import copied
from pdmux_actor.models.compiled.compiled_linear import CompiledInt8Linear
from pdmux_actor.models.decoder import DecoderWeights
from pdmux_actor.models.linear import Projection
from pdmux_actor.models.quantised import Int4Linear, Int8Linear
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from placement.estimation.memory import held_weight_bytes, resident_bytes, workspace_bytes
from profiler.specs import ModelSpec

HEADS = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
SHAPES = {
    "groups of 128": CheckpointShape(model_type="qwen3", hidden_size=256, intermediate_size=384, head_dim=64, **HEADS),
    "groups of 64": CheckpointShape(model_type="llama", hidden_size=192, intermediate_size=320, head_dim=48, **HEADS),
    "groups of 32": CheckpointShape(
        model_type="qwen2", hidden_size=160, intermediate_size=96, head_dim=40, attention_bias=True, **HEADS
    ),
    "some in 8 bits": CheckpointShape(
        model_type="llama", hidden_size=128, intermediate_size=200, head_dim=36, mlp_bias=True, **HEADS
    ),
    "experts": CheckpointShape(model_type="qwen3_moe", hidden_size=128, intermediate_size=96, head_dim=32, **HEADS),
    "stacked experts": CheckpointShape(
        model_type="gpt_oss", hidden_size=128, intermediate_size=96, head_dim=32, **HEADS
    ),
}


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    rig = CpuRig()
    yield rig
    rig.close()


def bytes_held(weights: DecoderWeights) -> tuple[int, set[int]]:
    """Of rounded products, without their biases, and of how many bits they are."""
    total, bits = 0, set()

    def count(projection: Projection) -> Projection:
        nonlocal total
        if isinstance(projection, CompiledInt8Linear | Int8Linear | Int4Linear):
            bits.add(4 if isinstance(projection, Int4Linear) else 8)
            total += sum(projection.tensor_bytes) - (0 if projection.bias is None else projection.bias.nbytes)
        return projection

    def as_it_is(tensor: Tensor) -> Tensor:
        return tensor

    copied(weights, as_it_is, count)
    return total, bits


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kept_as", ["int8", "int4"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rounded_model__loaded__holds_what_plans_count(
    rig: CpuRig, tmp_path: Path, shape: str, kept_as: str, dtype: str
) -> None:
    write_random_checkpoint(tmp_path, SHAPES[shape], seed=3)
    spec = rig.load("m", tmp_path, dtype=dtype, weights=kept_as).spec

    held, bits = bytes_held(rig.executor._attached["m"].decoder.weights)

    plain = (spec.num_router_params + spec.vocab_size * spec.hidden_size * 2) * spec.dtype_bytes
    assert held_weight_bytes(spec, 1) == held + plain
    assert resident_bytes(spec) - workspace_bytes(spec) == held + plain
    expected = {4, 8} if shape == "some in 8 bits" else {4}
    assert bits == (expected if kept_as == "int4" else {8})


def test_int4__of_narrow_rows__counts_the_scales_of_smaller_groups() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 160, "intermediate_size": 96,
        "num_attention_heads": 4, "vocab_size": 64, "dtype": "bfloat16",
    }  # fmt: skip
    spec = ModelSpec.from_config(config, weights="int4")

    assert spec.projection_bytes == spec.num_projection_params * (0.5 + 4 / 32)


def test_int4__asked_of_a_checkpoint_in_smaller_groups__counts_the_levels_it_keeps() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 256,
        "num_attention_heads": 4, "vocab_size": 64,
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32},
    }  # fmt: skip

    assert ModelSpec.from_config(config, weights="int4").weights == "int4_group32"
