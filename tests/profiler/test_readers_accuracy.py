"""Public profiles: the readers, and how well tables and the roofline say what was kept from them."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from model_shapes import LLAMA_3_8B

from profiler.batch_features import BatchFeatures, Feature
from profiler.errors import ProfileUnusable
from profiler.gpus.a40 import DEVICE as A40
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.h100 import DEVICE as H100
from profiler.gpus.rtx_pro_6000 import DEVICE as RTX_PRO_6000
from profiler.grid_table import GridTable
from profiler.latency import ChunkShape, Floats
from profiler.operator_costs import operator_costs
from profiler.operator_profile import MeasuredOperator, batches_of
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec
from profiler.trend import DECODE_FEATURES, MIXED_FEATURES, PREFILL_FEATURES

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from accuracy.llmservingsim_profiles import read_llmservingsim
from accuracy.vidur_profiles import read_vidur

PROFILES = Path(__file__).resolve().parents[3] / "shared" / "profiles"

needs_profiles = pytest.mark.skipif(not PROFILES.is_dir(), reason="needs the profiles in ../shared/profiles")
LLAMA_2_70B = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=80,
    hidden_size=8192,
    intermediate_size=28672,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=32000,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    dtype="float16",
)
LINEAR = {"attn_pre_proj": "qkv", "attn_post_proj": "output", "mlp_up_proj": "gate_up", "mlp_down_proj": "down"}
KINDS: dict[str, tuple[tuple[Feature, ...], tuple[Feature, ...]]] = {
    "prefill": (PREFILL_FEATURES, ("prefill_tokens", "prefill_context")),
    "decode": (DECODE_FEATURES, ("decode_sequences", "decode_depth")),
    "mixed": (MIXED_FEATURES, ("prefill_tokens", "prefill_context", "decode_sequences", "decode_depth")),
}


def held_out_error(operator: MeasuredOperator, kind: str, max_knots: int) -> float:
    held = np.random.default_rng(7).random(len(operator.seconds)) < 0.2
    features, axes = KINDS[kind]

    def rows(mask: np.ndarray) -> BatchFeatures[Floats]:
        names = BatchFeatures.__slots__
        return BatchFeatures(**{name: getattr(operator.batches, name)[mask] for name in names})

    table = GridTable.fit(features, axes, rows(~held), operator.seconds[~held], max_knots=max_knots)
    return float(np.abs(table.seconds(rows(held)) / operator.seconds[held] - 1).mean())


def linear_error(device: DeviceSpec, rows: pd.DataFrame, predict) -> float:
    """`predict(op, num_gpus, tokens, held_out_tokens, seconds)` by group."""
    errors = []
    for (op, tp), group in rows.groupby(["op", "tp"], observed=True):
        medians = group.groupby("num_tokens").median_ms.median() / 1e3
        tokens, seconds = medians.index.to_numpy(dtype=float), medians.to_numpy(dtype=float)
        held = np.arange(len(tokens)) % 5 == 2
        predicted = predict(op, int(tp), tokens[~held], seconds[~held], tokens[held])
        errors.append(np.abs(predicted / seconds[held] - 1))
    return float(np.concatenate(errors).mean())


def vidur_rows(device: DeviceSpec) -> pd.DataFrame:
    return pd.read_parquet(
        PROFILES / "vidur_linear_ops.parquet",
        columns=["op", "tp", "num_tokens", "median_ms"],
        filters=[
            ("device", "==", device.name.split("-")[0].lower()),
            ("model", "==", "meta-llama/Llama-2-70b-hf"),
            ("op", "in", list(LINEAR)),
        ],
    )


@pytest.mark.parametrize("device", [A100_80G, H100, A40], ids=lambda d: d.name)
@pytest.mark.shared
@needs_profiles
def test_linear_operators__held_out__table_errs_by_5_percent_roofline_by_10(device: DeviceSpec) -> None:
    def by_table(op: str, tp: int, known: Floats, known_s: Floats, asked: Floats) -> Floats:
        def batches(tokens: Floats) -> BatchFeatures[Floats]:
            return batches_of(decode_sequences=tokens, decode_depth=0 * tokens)

        return GridTable.fit(("one", "tokens"), ("tokens",), batches(known), known_s).seconds(batches(asked))

    def by_roofline(op: str, tp: int, known: Floats, known_s: Floats, asked: Floats) -> Floats:
        costs = operator_costs(LLAMA_2_70B, device, tp, device.num_sms)
        return getattr(costs, LINEAR[op]).seconds(asked) + device.launch_overhead_s

    rows = vidur_rows(device)

    assert linear_error(device, rows, by_table) <= 0.05
    assert linear_error(device, rows, by_roofline) <= 0.10


@pytest.mark.shared
@needs_profiles
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_attention__a100_held_out__table_errs_by_5_percent(kind: str) -> None:
    profile = vidur_profile()
    operator = profile.prefill_attention if kind == "prefill" else profile.decode_attention
    assert operator is not None

    assert held_out_error(operator, kind, max_knots=128) <= 0.05


def vidur_profile():
    return read_vidur(
        PROFILES / "vidur_linear_ops.parquet",
        PROFILES / "attention.parquet",
        device="a100",
        model="meta-llama/Llama-2-70b-hf",
        num_gpus=2,
        spec=LLAMA_2_70B,
    )


def vllm_profile(model: str = "meta-llama/Llama-3.1-8B"):
    return read_llmservingsim(
        PROFILES / "llmservingsim_vllm_dense.parquet",
        PROFILES / "llmservingsim_vllm_attention_mixed.parquet",
        device="RTXPRO6000",
        model=model,
        num_gpus=1,
        spec=LLAMA_3_8B,
    )


@pytest.mark.shared
@needs_profiles
def test_mixed_attention__held_out__table_errs_by_6_percent() -> None:
    operator = vllm_profile().mixed_attention
    assert operator is not None

    assert held_out_error(operator, "mixed", max_knots=12) <= 0.06


@pytest.mark.shared
@needs_profiles
@pytest.mark.parametrize(
    ("chunks", "contexts"),
    [([ChunkShape(2048)], []), ([], [1024] * 32), ([], [1500] * 128), ([ChunkShape(1900)], [1200] * 100)],
)
def test_whole_pass__of_measured_operators__is_within_15_percent_of_the_roofline(
    chunks: list[ChunkShape], contexts: list[int]
) -> None:
    table = vllm_profile().latency(LLAMA_3_8B, RTX_PRO_6000)
    roofline = RooflineLatency(RTX_PRO_6000)
    sms = RTX_PRO_6000.num_sms

    assert table.mixed_s(LLAMA_3_8B, chunks, contexts, sms) == pytest.approx(
        roofline.mixed_s(LLAMA_3_8B, chunks, contexts, sms), rel=0.15
    )
    assert not table.is_outside(LLAMA_3_8B, chunks, contexts, sms)


@pytest.mark.shared
@needs_profiles
def test_whole_pass__of_two_gpus__has_all_reduces() -> None:
    """Splitwise measured 197, 377, 688 and 1485 ms for these prompts on two A100, with NCCL and an engine of 2023."""
    latency = vidur_profile().latency(LLAMA_2_70B, A100_80G, num_gpus=2)

    for tokens, measured_s in ((512, 0.197), (1024, 0.377), (2048, 0.688), (4096, 1.485)):
        assert latency.prefill_s(LLAMA_2_70B, [ChunkShape(tokens)], 108) == pytest.approx(measured_s, rel=0.1)


@pytest.mark.shared
@needs_profiles
def test_reader__model_that_the_file_lacks__lists_those_it_has() -> None:
    with pytest.raises(ProfileUnusable, match=r"holds nothing of RTXPRO6000 gpt 1; it has: .*Llama-3.1-8B"):
        vllm_profile("gpt")


def test_reader__file_that_is_no_profile__is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "x.parquet")

    with pytest.raises(ProfileUnusable, match="has no column 'device'"):
        read_llmservingsim(
            tmp_path / "x.parquet", tmp_path / "x.parquet", device="d", model="m", num_gpus=1, spec=LLAMA_3_8B
        )
    with pytest.raises(ProfileUnusable, match="no such file"):
        read_vidur(tmp_path / "no.parquet", tmp_path / "x.parquet", device="d", model="m", num_gpus=1, spec=LLAMA_3_8B)
