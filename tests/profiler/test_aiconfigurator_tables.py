"""Operator tables of aiconfigurator-core, put together to steps of a model. The package itself is not needed."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from operator_tables import all_reduce_s, attention_s, gemm_s, scaling_s, write_tables

from profiler.errors import ProfileUnusable
from profiler.gpus.a40 import DEVICE as A40
from profiler.gpus.h200 import DEVICE as H200
from profiler.latency import ChunkShape
from profiler.readers.aiconfigurator import OperatorTables, gemm_dtype_of
from profiler.specs import ModelSpec

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=4,
    hidden_size=4096,
    intermediate_size=8192,
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    vocab_size=65536,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    dtype="bfloat16",
)
ON_TWO = replace(SPEC, num_heads=16, num_kv_heads=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("aiconfigurator_core")
    write_tables(made)
    return made


def test_tables__of_another_gpu__say_which_they_have(folder: Path) -> None:
    with pytest.raises(ProfileUnusable, match="has no tables of A40; it has h200_sxm"):
        OperatorTables(folder=folder, device=A40, engine="vllm").profile(SPEC, 1)


def tables(folder: Path, **others: str) -> OperatorTables:
    return OperatorTables(folder=folder, device=H200, engine=others.pop("engine", "vllm"), **others)


def layer_gemms_s(m: int, spec: ModelSpec, num_gpus: int) -> float:
    heads, kv_heads = spec.num_heads // num_gpus, spec.num_kv_heads // num_gpus
    inner, hidden = spec.intermediate_size // num_gpus, spec.hidden_size
    products = [((heads + 2 * kv_heads) * 128, hidden), (hidden, heads * 128), (2 * inner, hidden), (hidden, inner)]
    return sum(gemm_s(m, n, k) for n, k in products)


def test_tables__decode_step__is_the_sum_of_its_operators(folder: Path) -> None:
    latency = tables(folder).profile(SPEC, 1).latency(SPEC, H200)

    found_s = latency.decode_s(SPEC, (255,) * 64, H200.num_sms)

    expected_s = 4 * (layer_gemms_s(64, SPEC, 1) + attention_s(64, 255)) + gemm_s(64, 65536, 4096)
    small_s = 4 * 5 * 3e-6
    assert expected_s < found_s < 1.12 * (expected_s + small_s)


def test_tables__mesh_of_two__takes_the_graphs_all_reduce(folder: Path) -> None:
    """Of an all-reduce that is launched one by one and in a graph the table has both: the quicker one."""
    latency = tables(folder).profile(ON_TWO, 2).latency(ON_TWO, H200, num_gpus=2)
    alone = replace(tables(folder).profile(ON_TWO, 2), all_reduce=None)
    roofline_s = alone.latency(ON_TWO, H200, num_gpus=2).prefill_s(ON_TWO, (ChunkShape(1024),), H200.num_sms)

    found_s = latency.prefill_s(ON_TWO, (ChunkShape(1024),), H200.num_sms)

    expected_s = 4 * (layer_gemms_s(1024, ON_TWO, 2) + 2 * all_reduce_s(1024 * 4096))
    assert expected_s < found_s < 1.25 * expected_s
    assert found_s != pytest.approx(roofline_s, rel=1e-3)


def test_tables__weights_of_one_byte__take_their_own_products(folder: Path) -> None:
    plain, quantised = (
        tables(folder, gemm_dtype=dtype)
        .profile(SPEC, 1)
        .latency(SPEC, H200)
        .prefill_s(SPEC, (ChunkShape(4096),), H200.num_sms)
        for dtype in ("bfloat16", "fp8")
    )

    assert 0.45 * plain < quantised < 0.7 * plain


def test_tables__engine_that_fuses_the_scaling__saves_its_kernels_in_every_layer(folder: Path) -> None:
    apart, fused = (
        replace(tables(folder, gemm_dtype="fp8"), fuses_scaling=fuses)
        .profile(SPEC, 1)
        .latency(SPEC, H200)
        .decode_s(SPEC, (255,) * 16, H200.num_sms)
        for fuses in (False, True)
    )

    of_a_layer_s = sum(2 * scaling_s(16, k) for k in (4096, 8 * 128, 4096, 8192))
    assert apart - fused == pytest.approx(4 * of_a_layer_s, rel=0.25)


def test_tables__outliers__count_as_what_the_next_larger_one_takes(tmp_path: Path) -> None:
    """A product of 16 rows and an all-reduce of 64 Ki elements, a hundred times as long as they should be."""
    write_tables(tmp_path)

    def steps_s() -> tuple[float, float]:
        found = tables(tmp_path).profile(ON_TWO, 2).latency(ON_TWO, H200, num_gpus=2)
        return (
            found.decode_s(ON_TWO, (255,) * 16, H200.num_sms),
            found.prefill_s(ON_TWO, (ChunkShape(16),), H200.num_sms),
        )

    before = steps_s()
    for name, where in (
        ("gemm_perf", {"m": 16, "n": 4096, "k": 4096}),
        ("custom_allreduce_perf", {"message_size": 65536}),
    ):
        (file,) = tmp_path.rglob(f"{name}.parquet")
        rows = pd.read_parquet(file)
        is_it = (rows[list(where)] == pd.Series(where)).all(axis=1)
        rows.loc[is_it, "latency"] *= 100
        rows.to_parquet(file)

    assert steps_s() == pytest.approx(before, rel=1.0)


@pytest.mark.parametrize(
    ("weights", "word"), [(None, "bfloat16"), ("fp8", "fp8"), ("int8", "int8_wo"), ("int4", "int4_wo")]
)
def test_gemm_dtype__of_a_model__is_the_tables_word_for_its_weights(weights: str | None, word: str) -> None:
    assert gemm_dtype_of(replace(SPEC, weights=weights)) == word


def test_tables__of_two_versions__newest_is_read(folder: Path, tmp_path: Path) -> None:
    for version in ("0.9.2", "0.24.0", "0.14.1"):
        write_tables(tmp_path, version=version)

    assert tables(tmp_path).version == "0.24.0"


@pytest.mark.parametrize(
    ("asked", "spec", "said"),
    [
        ({"engine": "sglang"}, SPEC, "has no gemm_perf of sglang on H200; name one of vllm, sglang, trtllm"),
        ({"gemm_dtype": "nvfp4"}, SPEC, "holds nothing of nvfp4; it has: bfloat16; fp8"),
        ({"kv_dtype": "fp8"}, SPEC, "holds nothing of 8 query and 2 KV heads of 128 with fp8 keys"),
        ({}, replace(SPEC, num_experts=8, experts_per_token=2, expert_intermediate_size=512), "experts are not read"),
    ],
)
def test_tables__not_what_is_asked__say_what_they_have(
    folder: Path, asked: dict[str, str], spec: ModelSpec, said: str
) -> None:
    with pytest.raises(ProfileUnusable) as refused:
        tables(folder, **asked).profile(spec, 1)

    assert said in str(refused.value)
