"""Vidur's profiles of A100, H100 and A40: linear and elementwise operators, and attention kernels by head counts."""

from pathlib import Path

import numpy as np
import pandas as pd

from profiler.operator_profile import MeasuredOperator, OperatorProfile, batches_of
from profiler.readers.aiconfigurator import column, read_rows, require
from profiler.specs import ModelSpec

_PER_LAYER = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
)
_RESIDUAL = "add"  # twice a layer
_EMBEDDING = "emb"
_MILLI = 1e-3


def read_vidur(
    operators_file: Path, attention_file: Path, *, device: str, model: str, num_gpus: int, spec: ModelSpec
) -> OperatorProfile:
    """`device` and `model` as the files name them; `spec` is the same model. Attention is that of every model with as
    many heads per GPU. There is no classifier in it.

    Raises:
        ProfileUnusable: a file is missing, has other columns, or nothing of this device, model and head count.
    """
    rows = read_rows(operators_file, ("device", "model", "tp", "op", "num_tokens", "median_ms"))
    chosen = rows[(rows["device"] == device) & (rows["model"] == model) & (rows["tp"] == num_gpus)]
    require(chosen, rows[["device", "model", "tp"]], operators_file, f"{device} {model} {num_gpus}")
    by_tokens = chosen.pivot_table(index="num_tokens", columns="op", values="median_ms", aggfunc="median").dropna()
    tokens = by_tokens.index.to_numpy(dtype="float64")
    layer_ms = (by_tokens[list(_PER_LAYER)].sum(axis=1) + 2 * by_tokens[_RESIDUAL]).to_numpy(dtype="float64")
    attention = _attention_rows(attention_file, device, num_gpus, spec)
    prefills, decodes = attention[attention["kind"] == "prefill"], attention[attention["kind"] == "decode"]
    prompts = column(prefills, "batch_size")
    as_tokens = batches_of(decode_sequences=tokens, decode_depth=np.zeros_like(tokens))
    return OperatorProfile(
        per_layer=MeasuredOperator(batches=as_tokens, seconds=layer_ms * _MILLI),
        per_pass=MeasuredOperator(batches=as_tokens, seconds=by_tokens[_EMBEDDING].to_numpy(dtype="float64") * _MILLI),
        per_row=None,
        prefill_attention=MeasuredOperator(
            batches=batches_of(
                prompts=prompts,
                prefill_tokens=prompts * column(prefills, "q_tokens"),
                prefill_context=column(prefills, "kv_tokens"),
            ),
            seconds=column(prefills, "median_ms") * _MILLI,
        ),
        decode_attention=MeasuredOperator(
            batches=batches_of(
                decode_sequences=column(decodes, "batch_size"), decode_depth=column(decodes, "kv_tokens")
            ),
            seconds=column(decodes, "median_ms") * _MILLI,
        ),
    )


def _attention_rows(file: Path, device: str, num_gpus: int, spec: ModelSpec) -> pd.DataFrame:
    needed = ("device", "kind", "n_q_head", "n_kv_head", "head_dim", "tp", "batch_size", "q_tokens", "kv_tokens")
    rows = read_rows(file, (*needed, "median_ms"))
    q_heads, kv_heads = spec.num_heads // num_gpus, spec.kv_heads_per_gpu(num_gpus)
    chosen = rows[
        (rows["device"] == device)
        & (rows["n_q_head"] == q_heads * rows["tp"])
        & (rows["n_kv_head"] == kv_heads * rows["tp"])
        & (rows["head_dim"] == spec.head_dim)
    ]
    wanted = f"{device} with {q_heads} query and {kv_heads} KV heads per GPU"
    for kind in ("prefill", "decode"):
        known = rows[["device", "n_q_head", "n_kv_head", "tp"]]
        require(chosen[chosen["kind"] == kind], known, file, f"{kind} on {wanted}")
    return chosen
