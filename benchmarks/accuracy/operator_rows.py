"""Operators of `aiconfigurator-core` beside what the figures of a device say of them: products in bfloat16, attention
with heads of 128, and NCCL's all-reduces within a node.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from engines.model_specs import LLAMA_3_8B

from profiler.latency import Floats
from profiler.operator_costs import AttentionCost, LinearCost, bandwidth, compute_rate, operator_costs
from profiler.operators import attention_flops, linear_bytes, linear_flops
from profiler.specs import DeviceSpec

SYSTEMS: Mapping[str, str] = {
    "A100-80G": "a100_sxm",
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}
_TABLES = {
    "products": ("gemm", "gemm_perf", ("m", "n", "k")),
    "prompts": (
        "attention",
        "context_attention_perf",
        ("num_heads", "num_key_value_heads", "batch_size", "isl", "step"),
    ),
    "decode": ("attention", "generation_attention_perf", ("num_heads", "num_key_value_heads", "batch_size", "step")),
    "all-reduce": ("comm", "nccl_perf", ("num_gpus", "message_size")),
}
OPERATORS = tuple(_TABLES)
_SHAPES = {"products": ["n", "k"], "prompts": ["num_heads", "num_key_value_heads", "batch_size"]}
_SHAPES["decode"] = _SHAPES["prompts"]  # all rows of a shape are held out, or none
_HEAD_DIM, _BYTES = 128, 2
_WIDTHS = (1024, 32768)  # of products that models of a GPU's size have
_MOST_TOKENS, _MOST_BYTES = 16384, 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRows:
    operator: str
    engine: str
    version: str
    rows: pd.DataFrame

    @property
    def measured_s(self) -> Floats:
        return self._column("latency") * 1e-3

    def halves(self) -> tuple["OperatorRows", "OperatorRows"]:
        """Four fifths of the shapes to fit, and the others. Of all-reduces, which are few, all are both."""
        if self.operator not in _SHAPES:
            return self, self
        keys = _SHAPES[self.operator]
        held = self.rows[keys].drop_duplicates().sample(frac=0.2, random_state=1)
        is_held = self.rows.merge(held.assign(held=True), on=keys, how="left")["held"].notna().to_numpy()
        return replace(self, rows=self.rows[~is_held]), replace(self, rows=self.rows[is_held])

    def only(self, chosen: "pd.Series[bool]") -> "OperatorRows":
        return replace(self, rows=self.rows[chosen])

    def predicted_s(self, device: DeviceSpec) -> Floats:
        flops_per_s, bytes_per_s = compute_rate(device, device.num_sms), bandwidth(device, device.num_sms)
        if self.operator == "products":
            m, n, k = (self._column(name) for name in "mnk")
            weight_bytes = linear_bytes(0, k, n, _BYTES, _BYTES)
            product = LinearCost(
                compute_s_per_token=linear_flops(1, k, n) / flops_per_s,
                weight_s=weight_bytes / bytes_per_s,
                traffic_s_per_token=(linear_bytes(1, k, n, _BYTES, _BYTES) - weight_bytes) / bytes_per_s,
                knee_exponent=device.knee_exponent,
                tile_tokens=device.gemm_tile_tokens,
            )
            return product.seconds(m) + device.launch_overhead_s
        if self.operator == "all-reduce":
            return np.concatenate([self._all_reduces_s(device, int(n)) for n in sorted(set(self._column("num_gpus")))])
        heads, kv_heads, count, known = (
            self._column(name) for name in ("num_heads", "num_key_value_heads", "batch_size", "step")
        )
        attention = AttentionCost(
            s_per_pair=attention_flops(1, 0, heads, _HEAD_DIM) / (flops_per_s * device.attention_compute_share),
            s_per_query=2 * heads * _HEAD_DIM * _BYTES / bytes_per_s,
            s_per_key=2 * kv_heads * _HEAD_DIM * _BYTES / (bytes_per_s * device.attention_bandwidth_share),
            start_s=device.attention_start_s,
            padding_tokens=device.attention_padding_tokens,
            masked_share=device.attention_masked_share,
            fused_decode_tokens=device.fused_decode_tokens,
            s_per_fused_sequence=0.0,
            s_per_longest_key=0.0,
        )
        if self.operator == "decode":
            keys = count * (known + 1)
            return attention.seconds(keys, count, keys) + device.launch_overhead_s
        new = self._column("isl")
        pairs = count * attention.prompt_pairs(new, known)
        return attention.seconds(pairs, count * new, count * (new + known)) + device.launch_overhead_s

    def _all_reduces_s(self, device: DeviceSpec, num_gpus: int) -> Floats:
        costs = operator_costs(LLAMA_3_8B, device, num_gpus, device.num_sms)
        sizes = self.rows[self.rows["num_gpus"] == num_gpus]["message_size"].to_numpy(np.float64)
        return costs.all_reduce_s(sizes / LLAMA_3_8B.hidden_size)

    def _column(self, name: str) -> Floats:
        return self.rows[name].to_numpy(np.float64)


def operator_rows(folder: Path, device: str, engine: str, operator: str) -> OperatorRows:
    """Of the engine's newest version; of several kernels and of several runs the quickest."""
    room, name, keys = _TABLES[operator]
    home = folder / "systems" / "data" / SYSTEMS[device] / room / ("nccl" if operator == "all-reduce" else engine)
    file = max(home.glob(f"*/{name}.parquet"), key=lambda file: _numbers(file.parent.name))
    rows = pd.read_parquet(file)
    rows = rows[np.logical_and.reduce(list(_chosen(operator, rows)))]
    quickest = rows.groupby(list(keys), observed=True)["latency"].min().reset_index().sort_values(list(keys))
    return OperatorRows(operator=operator, engine=home.name, version=file.parent.name, rows=quickest)


def _chosen(operator: str, rows: pd.DataFrame) -> Iterator["pd.Series[bool]"]:
    if operator == "products":
        yield rows["gemm_dtype"] == "bfloat16"
        yield rows["n"].between(*_WIDTHS) & rows["k"].between(*_WIDTHS) & (rows["m"] <= _MOST_TOKENS)
    elif operator == "all-reduce":
        yield (rows["op_name"] == "all_reduce") & (rows["nccl_dtype"] == "half")
        yield rows["message_size"] * _BYTES <= _MOST_BYTES
    else:
        yield (rows["kv_cache_dtype"] == "bfloat16") & (rows["head_dim"] == _HEAD_DIM)
        yield rows["num_heads"].isin([8, 16, 32, 40, 64]) & (rows["num_key_value_heads"] <= rows["num_heads"])
        yield rows["num_heads"] <= 16 * rows["num_key_value_heads"]
        for name, wanted in (("window_size", 0), ("attn_dtype", "bfloat16")):
            if name in rows:
                yield rows[name] == wanted


def _numbers(version: str) -> list[int]:
    return [int(part) for part in "".join(c if c.isdigit() else " " for c in version).split()]
