"""LLMServingSim's profiles of vLLM kernels: dense operators, experts, and attention of batches that mix both phases;
and experts on several GPUs of which each has all but the experts to itself (data parallel attention).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from profiler.latency import ChunkShape, Floats, LatencyModel
from profiler.operator_costs import operator_costs
from profiler.operator_profile import MeasuredOperator, OperatorProfile, batches_of
from profiler.readers.aiconfigurator import column, read_rows, require
from profiler.specs import DeviceSpec, ModelSpec

_PER_LAYER = ("qkv_proj", "o_proj", "gate_up_proj", "act_fn", "down_proj", "rotary_emb", "qk_norm")
_NORM = "layernorm"  # twice a layer
_PER_PASS = ("embedding", "final_layernorm")
_PER_ROW = ("lm_head", "sampler")
_MICRO = 1e-6


def read_llmservingsim(
    dense_file: Path, attention_file: Path, *, device: str, model: str, num_gpus: int, spec: ModelSpec
) -> OperatorProfile:
    """`device` and `model` as the files name them; `spec` is the same model.

    Raises:
        ProfileUnusable: a file is missing, has other columns, or nothing of this device and model.
    """
    dense = _rows(dense_file, device, model, num_gpus)
    attention = _rows(attention_file, device, model, num_gpus)
    by_tokens = dense[dense["table"] == "dense"].pivot_table(index="tokens", columns="layer", values="time_us")
    by_rows = dense[dense["table"] == "per_sequence"].pivot_table(index="sequences", columns="layer", values="time_us")
    tokens = by_tokens.index.to_numpy(dtype=np.float64)
    per_layer_us = 2 * by_tokens[_NORM] + by_tokens[[op for op in _PER_LAYER if op in by_tokens]].sum(axis=1)
    layer_us = per_layer_us.to_numpy(dtype=np.float64)
    if spec.is_moe:
        layer_us = layer_us + _experts_us(dense[dense["table"] == "moe"], tokens, spec)
    return OperatorProfile(
        per_layer=_operator(tokens, layer_us),
        per_pass=_operator(tokens, by_tokens[list(_PER_PASS)].sum(axis=1).to_numpy(dtype=np.float64)),
        per_row=_operator(
            by_rows.index.to_numpy(dtype=np.float64), by_rows[list(_PER_ROW)].sum(axis=1).to_numpy(dtype=np.float64)
        ),
        mixed_attention=MeasuredOperator(
            batches=batches_of(
                prefill_tokens=column(attention, "prefill_chunk"),
                prefill_context=column(attention, "kv_prefill"),
                decode_sequences=column(attention, "n_decode"),
                decode_depth=column(attention, "kv_decode"),
            ),
            seconds=column(attention, "time_us") * _MICRO,
        ),
    )


def _rows(file: Path, device: str, model: str, num_gpus: int) -> pd.DataFrame:
    rows = read_rows(file, ("device", "model", "tp", "time_us"))
    chosen = rows[(rows["device"] == device) & (rows["model"] == model) & (rows["tp"] == num_gpus)]
    return require(chosen, rows[["device", "model", "tp"]], file, f"{device} {model} {num_gpus}")


def _experts_us(rows: pd.DataFrame, tokens: Floats, spec: ModelSpec) -> Floats:
    """The MoE block as if tokens chose their experts evenly. Interpolated by activated experts at each measured token
    count, then between those.
    """
    counts = np.unique(column(rows, "tokens"))
    at_counts = []
    for count in counts:
        row = rows[rows["tokens"] == count].sort_values("activated_experts")
        touched = spec.num_experts * (1 - (1 - spec.experts_per_token / spec.num_experts) ** count)
        at_counts.append(np.interp(touched, column(row, "activated_experts"), column(row, "time_us")))
    interpolated: Floats = np.interp(np.log(tokens), np.log(counts), np.array(at_counts))
    return interpolated


def _operator(counts: Floats, micros: Floats) -> MeasuredOperator:
    # Rows are sampled from sequences, tokens pass layers; a decode batch has as many of one as of the other.
    return MeasuredOperator(
        batches=batches_of(decode_sequences=counts, decode_depth=np.zeros_like(counts)), seconds=micros * _MICRO
    )


def spec_of_rank(spec: ModelSpec, ranks: int) -> ModelSpec:
    """What one of `ranks` GPUs holds and computes for its own tokens."""
    return replace(spec, num_experts=spec.num_experts // ranks) if spec.is_moe else spec


class ExpertParallelLatency:
    """profiler.latency.LatencyModel of all ranks as one engine: sequences and chunks are theirs in turn."""

    def __init__(self, latency: LatencyModel, spec: ModelSpec, device: DeviceSpec, ranks: int) -> None:
        """`latency` is asked for the spec of a rank, `spec` is the whole model."""
        self._latency = latency
        self._ranks = ranks
        # All-gather before and reduce-scatter after the experts move as many bytes as one all-reduce of all tokens.
        costs = operator_costs(spec, device, ranks, device.num_sms)
        self._start_s = spec.num_moe_layers * costs.all_reduce_start_s
        self._per_token_s = spec.num_moe_layers * costs.all_reduce_s_per_token

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self.mixed_s(spec, (), context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        tokens = sum(chunk.new_tokens for chunk in chunks) + len(context_tokens)
        slowest_s = max(
            self._latency.mixed_s(spec, chunks[rank :: self._ranks], context_tokens[rank :: self._ranks], sms)
            for rank in range(self._ranks)
        )
        return slowest_s + self._start_s + self._per_token_s * tokens
