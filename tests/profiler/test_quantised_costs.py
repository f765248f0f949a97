"""What 8- and 4-bit weights change of predicted times and of memory."""

import pytest

from placement.estimation.memory import resident_bytes, workspace_bytes
from profiler.bandwidth_sharing import DecodeReads
from profiler.gpus.h100 import DEVICE as H100
from profiler.roofline import RooflineLatency
from profiler.specs import ModelSpec

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def spec(weights: str | None) -> ModelSpec:
    return ModelSpec.from_config(LLAMA, weights=weights)


@pytest.mark.parametrize(("weights", "bytes_saved"), [("int8", 1.0), ("int4", 2 - 0.5 - 4 / 128)])
def test_decode__of_one_token__saves_the_time_that_the_bytes_took(weights: str, bytes_saved: float) -> None:
    latency, params = RooflineLatency(H100), spec(None).num_projection_params
    saved_s = latency.decode_s(spec(None), [100], 132) - latency.decode_s(spec(weights), [100], 132)

    assert saved_s == pytest.approx(params * bytes_saved / H100.memory_bandwidth_bytes_per_s, rel=0.02)
    saved_bytes = DecodeReads(spec(None)).bytes([100]) - DecodeReads(spec(weights)).bytes([100])
    assert saved_bytes == pytest.approx(params * bytes_saved, rel=1e-3)  # a scale for each row of int8


def test_resident_bytes__of_int8_weights__leave_the_workspace_as_it_is() -> None:
    assert workspace_bytes(spec("int8")) == workspace_bytes(spec(None))
    saved = resident_bytes(spec(None)) - resident_bytes(spec("int8"))
    rows = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)  # each has a scale of two bytes
    assert saved == spec(None).num_projection_params - 2 * rows


def gpt_oss_20b(weights: str | None = None) -> ModelSpec:
    config = {
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "vocab_size": 201088,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4"},
    }
    return ModelSpec.from_config(config, weights=weights)


def test_mxfp4__of_gpt_oss__counts_what_its_published_files_have() -> None:
    spec, plain = gpt_oss_20b(), gpt_oss_20b("dtype")

    assert spec.weight_bytes == pytest.approx(13.76e9, rel=0.005)  # of biases, norms and sinks too
    assert plain.weight_bytes == pytest.approx(41.8e9, rel=0.005)
    assert resident_bytes(plain) - resident_bytes(spec) == plain.weight_bytes - spec.weight_bytes


def test_mxfp4__decode_of_one_token__saves_the_bytes_of_its_experts_and_of_nothing_else() -> None:
    latency, spec, plain = RooflineLatency(H100), gpt_oss_20b(), gpt_oss_20b("dtype")
    saved_s = latency.decode_s(plain, [100], 132) - latency.decode_s(spec, [100], 132)
    bytes_saved = 24 * 4 * spec.params_per_expert * (2 - 0.5 - 1 / 32)

    assert saved_s == pytest.approx(bytes_saved / H100.memory_bandwidth_bytes_per_s, rel=0.02)
    assert DecodeReads(plain).bytes([100]) - DecodeReads(spec).bytes([100]) == pytest.approx(bytes_saved, rel=1e-3)
