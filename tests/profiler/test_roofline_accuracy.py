"""The roofline against measured kernels. The bounds are what it reaches; the tests' names say where it is bad."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from model_shapes import LLAMA_2_7B

from profiler.gpus.a40 import DEVICE as A40
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.h100 import DEVICE as H100
from profiler.latency import ChunkShape
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec

PROFILES = Path(__file__).resolve().parents[3] / "shared" / "profiles"

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not PROFILES.is_dir(), reason="needs the measured profiles in ../shared/profiles"),
]

LAYER_7B = replace(LLAMA_2_7B, num_layers=1)
LLAMA_2_70B = replace(LAYER_7B, hidden_size=8192, intermediate_size=28672, num_heads=64, num_kv_heads=8)
VIDUR_MODELS = {"meta-llama/Llama-2-7b-hf": LAYER_7B, "meta-llama/Llama-2-70b-hf": LLAMA_2_70B}
LINEAR_OPS = ["attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"]
OTHER_OPS = ["input_layernorm", "post_attention_layernorm", "attn_rope", "mlp_act", "add"]


def layer_s(device: DeviceSpec, spec: ModelSpec, chunks: list[ChunkShape], contexts: list[int]) -> float:
    """One layer, without the classifier."""
    latency = RooflineLatency(device)
    two_s = latency.mixed_s(replace(spec, num_layers=2), chunks, contexts, device.num_sms)
    return two_s - latency.mixed_s(replace(spec, num_layers=1), chunks, contexts, device.num_sms)


def token_level_error(device: DeviceSpec, model: str, num_tokens: int) -> float:
    rows = pd.read_parquet(
        PROFILES / "vidur_linear_ops.parquet",
        filters=[
            ("device", "==", device.name.split("-")[0].lower()),
            ("model", "==", model),
            ("tp", "==", 1),
            ("num_tokens", "==", num_tokens),
        ],
    )
    measured_s = rows.groupby("op").median_ms.median()[[*LINEAR_OPS, *OTHER_OPS]].sum() / 1e3
    # Sequences of one token make attention as small as it gets; what remains of it is less than its launch.
    predicted_s = layer_s(device, VIDUR_MODELS[model], [ChunkShape(1)] * num_tokens, []) - device.launch_overhead_s
    return float(predicted_s / measured_s - 1)


def attention_error(device: DeviceSpec, row: "pd.Series[float]", spec: ModelSpec) -> float:
    batch, q, kv = int(row["batch_size"]), int(row["q_tokens"]), int(row["kv_tokens"])
    # Sequences of one token cost the same outside attention, and inside it the traffic of their own rows.
    single_tokens_s = layer_s(device, spec, [ChunkShape(1)] * (batch * q), [])
    single_bytes = batch * q * 2 * (spec.num_heads + spec.num_kv_heads) * spec.head_dim * spec.dtype_bytes  # Q, O; K, V
    other_s = single_tokens_s - device.launch_overhead_s - single_bytes / device.memory_bandwidth_bytes_per_s
    predicted_s = layer_s(device, spec, [ChunkShape(q, kv)] * batch, []) - other_s
    return float(predicted_s / (row["median_ms"] / 1e3) - 1)


@pytest.mark.parametrize("model", VIDUR_MODELS)
@pytest.mark.parametrize("device", [A100_80G, H100, A40], ids=lambda d: d.name)
@pytest.mark.parametrize("num_tokens", [8, 16, 32, 2048, 4096])
def test_token_level__bound_by_memory_or_by_compute__errs_by_at_most_12_percent(
    device: DeviceSpec, model: str, num_tokens: int
) -> None:
    assert abs(token_level_error(device, model, num_tokens)) <= 0.12


@pytest.mark.parametrize("model", VIDUR_MODELS)
@pytest.mark.parametrize("device", [A100_80G, H100, A40], ids=lambda d: d.name)
@pytest.mark.parametrize("num_tokens", [64, 128, 512])
def test_token_level__near_the_knee__errs_by_at_most_17_percent(
    device: DeviceSpec, model: str, num_tokens: int
) -> None:
    assert abs(token_level_error(device, model, num_tokens)) <= 0.17


def attention_rows(source: str, kind: str, n_kv_head: int, batch_size: int, tokens: tuple[int, int]) -> pd.DataFrame:
    q_tokens, kv_tokens = tokens
    rows = pd.read_parquet(PROFILES / "attention.parquet")
    chosen = rows[
        rows.source.str.startswith(source)
        & (rows.kind == kind)
        & (rows.n_kv_head == n_kv_head)
        & (rows.tp == (2 if source == "vidur" else 1))
        & (rows.batch_size == batch_size)
        & (rows.q_tokens == q_tokens)
        & (rows.kv_tokens == kv_tokens)
    ]
    assert len(chosen), "the profile no longer holds this point"
    return chosen


def test_decode_attention__a100_large_batch_and_context__errs_by_at_most_10_percent() -> None:
    row = attention_rows("vidur", "decode", 8, 128, (1, 4032)).iloc[0]
    per_gpu = replace(LAYER_7B, num_heads=32, num_kv_heads=4)  # 64/8 heads on two GPUs

    assert abs(attention_error(A100_80G, row, per_gpu)) <= 0.10


def test_decode_attention__a100_single_sequence__is_too_fast_by_up_to_70_percent() -> None:
    row = attention_rows("vidur", "decode", 8, 1, (1, 1024)).iloc[0]
    per_gpu = replace(LAYER_7B, num_heads=32, num_kv_heads=4)

    assert -0.70 <= attention_error(A100_80G, row, per_gpu) <= 0


@pytest.mark.parametrize(("batch_size", "num_tokens"), [(2, 4096), (32, 4096), (64, 4096)])
def test_prefill_attention__h100_long_prompts__errs_by_at_most_15_percent(batch_size: int, num_tokens: int) -> None:
    rows = attention_rows("aiconfigurator", "prefill", 8, batch_size, (num_tokens, 0))
    row = rows[rows.n_q_head == 32].iloc[0]

    assert abs(attention_error(H100, row, replace(LAYER_7B, num_kv_heads=8))) <= 0.15


def test_prefill_attention__h100_short_prompt__is_too_fast_by_up_to_70_percent() -> None:
    rows = attention_rows("aiconfigurator", "prefill", 8, 8, (512, 0))
    row = rows[rows.n_q_head == 32].iloc[0]

    assert -0.70 <= attention_error(H100, row, replace(LAYER_7B, num_kv_heads=8)) <= 0
