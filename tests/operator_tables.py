"""A folder like that of `aiconfigurator_core`, with tables whose times follow from their sizes."""

from itertools import product
from pathlib import Path

import pandas as pd

ROWS = (1, 16, 128, 1024, 8192)
SIDES = (128, 1024, 4096, 16384, 65536)
_FLOPS_PER_S, _BYTES_PER_S, _START_S = 5e14, 3e12, 4e-6


def gemm_s(m: float, n: float, k: float) -> float:
    return _START_S + 2 * m * n * k / _FLOPS_PER_S + 2 * n * k / _BYTES_PER_S


def attention_s(sequences: float, depth: float) -> float:
    return _START_S + sequences * depth * 1e-10


def all_reduce_s(elements: float) -> float:
    return 5e-6 + elements * 1e-11


def scaling_s(m: float, k: float) -> float:
    return 2e-6 + m * k * 1e-13


def write_tables(folder: Path, *, engine: str = "vllm", system: str = "h200_sxm", version: str = "0.24.0") -> None:
    """Of 8 query heads and 2 KV heads; the largest product is missing, as in some of the package's tables."""

    def write(group: str, name: str, rows: list[dict[str, object]]) -> None:
        home = folder / "systems" / "data" / system / group / engine / version
        home.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_parquet(home / f"{name}.parquet")

    write(
        "gemm",
        "gemm_perf",
        [
            {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": 1e3 * gemm_s(m, n, k) / speed}
            for dtype, speed in (("bfloat16", 1), ("fp8", 2))
            for m, n, k in product(ROWS, SIDES, SIDES)
            if (n, k) != (SIDES[-1], SIDES[-1])
        ],
    )
    for name in ("computescale_perf", "scale_matrix_perf"):
        rows = [{"m": m, "k": k, "latency": 1e3 * scaling_s(m, k)} for m, k in product(ROWS, SIDES)]
        write("quantize", name, [{"quant_dtype": "fp8", **row} for row in rows])
    shape = {"num_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "kv_cache_dtype": "bfloat16", "window_size": 0}
    write(
        "attention",
        "context_attention_perf",
        [
            {**shape, "batch_size": b, "isl": n, "step": 0, "latency": 1e3 * attention_s(b * n, n / 100)}
            for b, n in product((1, 2, 4), (16, 256, 4096))
        ],
    )
    write(
        "attention",
        "generation_attention_perf",
        [
            {**shape, "batch_size": b, "isl": 1, "step": depth, "latency": 1e3 * attention_s(b, depth)}
            for b, depth in product((1, 8, 64, 512), (15, 255, 4095, 65535))
        ],
    )
    write(
        "comm",
        "custom_allreduce_perf",
        [
            {"num_gpus": gpus, "message_size": size, "latency": 1e3 * all_reduce_s(size) * slower}
            for gpus, size, slower in product((2, 4), (1024, 65536, 4194304, 67108864), (1, 3))
        ],
    )
