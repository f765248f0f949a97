"""The public profiles that latency models are judged by, operator by operator: shapes, and what was measured."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from engines.model_specs import (
    CODE_LLAMA_34B,
    LLAMA_2_7B,
    LLAMA_2_70B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    QWEN_72B,
)

from profiler.batch_features import BatchFeatures
from profiler.gpus.a40 import DEVICE as A40
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.h100 import DEVICE as H100
from profiler.gpus.rtx_4090 import DEVICE as RTX_4090
from profiler.gpus.rtx_pro_6000 import DEVICE as RTX_PRO_6000
from profiler.latency import Floats
from profiler.operator_profile import batches_of
from profiler.readers.aiconfigurator import column, read_rows
from profiler.specs import DeviceSpec, ModelSpec

SPECS: Mapping[str, ModelSpec] = MappingProxyType(
    {
        "meta-llama/Llama-2-7b-hf": LLAMA_2_7B,
        "meta-llama/Llama-2-70b-hf": LLAMA_2_70B,
        "meta-llama/Meta-Llama-3-8B": LLAMA_3_8B,
        "meta-llama/Meta-Llama-3-70B": LLAMA_3_70B,
        "Qwen/Qwen-72B": QWEN_72B,
        "codellama/CodeLlama-34b-Instruct-hf": CODE_LLAMA_34B,
        "meta-llama/Llama-3.1-8B": LLAMA_3_8B,
        "Qwen/Qwen3-32B": QWEN3_32B,
        "Qwen/Qwen3-30B-A3B-Instruct-2507": QWEN3_30B_A3B,
    }
)
DEVICES: Mapping[str, DeviceSpec] = MappingProxyType(
    {"a100": A100_80G, "h100": H100, "a40": A40, "RTXPRO6000": RTX_PRO_6000, "RTX4090": RTX_4090}
)
# Names of linear operators, in this project's words.
_VIDUR_LINEAR: Mapping[str, str] = MappingProxyType(
    {"attn_pre_proj": "qkv", "attn_post_proj": "output", "mlp_up_proj": "gate_up", "mlp_down_proj": "down"}
)
_VLLM_LINEAR: Mapping[str, str] = MappingProxyType(
    {"qkv_proj": "qkv", "o_proj": "output", "gate_up_proj": "gate_up", "down_proj": "down"}
)
_MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRows:
    """One linear operator of one model on one GPU of a mesh: seconds by tokens."""

    device: str
    model: str
    num_gpus: int
    operator: str
    tokens: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """`heads` are those of the model that was measured, `spec` a model with as many on one GPU."""

    source: str
    device: str
    heads: str
    kind: str
    spec: ModelSpec
    batches: BatchFeatures[Floats]
    seconds: Floats


def linear_rows(folder: Path) -> Iterator[LinearRows]:
    vidur = read_rows(folder / "vidur_linear_ops.parquet", ("device", "model", "tp", "op", "num_tokens", "median_ms"))
    vidur = vidur.rename(columns={"num_tokens": "tokens"}).assign(seconds=vidur["median_ms"] / 1e3)
    yield from _linear_rows(vidur, _VIDUR_LINEAR)
    vllm = read_rows(
        folder / "llmservingsim_vllm_dense.parquet", ("device", "model", "tp", "table", "layer", "tokens", "time_us")
    )
    vllm = vllm[vllm["table"] == "dense"].rename(columns={"layer": "op"})
    yield from _linear_rows(vllm.assign(seconds=vllm["time_us"] / 1e6), _VLLM_LINEAR)


def _linear_rows(rows: pd.DataFrame, names: Mapping[str, str]) -> Iterator[LinearRows]:
    chosen = rows[rows["op"].isin(list(names)) & rows["model"].isin(list(SPECS)) & (rows["tokens"] <= _MAX_TOKENS)]
    for (device, model, tp, op), group in chosen.groupby(["device", "model", "tp", "op"], observed=True):
        medians = group.groupby("tokens")["seconds"].median()
        yield LinearRows(
            device=device,
            model=model,
            num_gpus=int(tp),
            operator=names[op],
            tokens=medians.index.to_numpy(dtype=np.float64),
            seconds=medians.to_numpy(dtype=np.float64),
        )


def attention_rows(folder: Path) -> Iterator[AttentionRows]:
    """Sources that `research` found sane, with at least 20 rows."""
    columns = ("source", "device", "kind", "n_q_head", "n_kv_head", "tp", "batch_size", "q_tokens", "kv_tokens")
    rows = read_rows(folder / "attention.parquet", (*columns, "median_ms"))
    rows = rows[rows["source"].str.startswith(("vidur", "aiconfigurator", "blis"))]
    keys = ["source", "device", "kind", "n_q_head", "n_kv_head", "tp"]
    for (source, device, kind, q_heads, kv_heads, tp), group in rows.groupby(keys, observed=True):
        if len(group) < 20:
            continue
        count, new = column(group, "batch_size"), column(group, "q_tokens")
        depth = column(group, "kv_tokens")
        batches = (
            batches_of(decode_sequences=count, decode_depth=depth)
            if kind == "decode"
            else batches_of(prompts=count, prefill_tokens=count * new, prefill_context=depth)
        )
        yield AttentionRows(
            source=source.split("-")[0].split("@")[0],
            device=device,
            heads=f"{q_heads}/{kv_heads} on {tp}",
            kind=kind,
            spec=replace(LLAMA_2_7B, num_heads=max(1, q_heads // tp), num_kv_heads=max(1, kv_heads // tp)),
            batches=batches,
            seconds=column(group, "median_ms") / 1e3,
        )


def mixed_attention_rows(folder: Path) -> Iterator[AttentionRows]:
    rows = read_rows(
        folder / "llmservingsim_vllm_attention_mixed.parquet",
        ("device", "model", "tp", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    )
    for (device, model, tp), group in rows.groupby(["device", "model", "tp"], observed=True):
        spec = SPECS[model]
        yield AttentionRows(
            source="llmservingsim",
            device=device,
            heads=f"{model} on {tp}",
            kind="mixed",
            spec=replace(spec, num_heads=spec.num_heads // tp, num_kv_heads=spec.kv_heads_per_gpu(tp)),
            batches=batches_of(
                prefill_tokens=column(group, "prefill_chunk"),
                prefill_context=column(group, "kv_prefill"),
                decode_sequences=column(group, "n_decode"),
                decode_depth=column(group, "kv_decode"),
            ),
            seconds=column(group, "time_us") / 1e6,
        )
