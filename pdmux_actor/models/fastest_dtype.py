"""Decides which dtype this machine's cores multiply fastest in, by measurement: what `dtype: auto` means on a CPU."""

import time

import torch

from pdmux_actor.models.linear import Linear
from profiler.specs import ModelSpec

CANDIDATES = (torch.float32, torch.bfloat16)
_LEAST_GAIN = 1.1  # float32 is the more exact one, so another must be faster by that
_MOST_ROWS = 8192
_TOKENS = (8, 256)  # a decode step and a prompt
_BUDGET_S = 0.15  # per dtype and number of tokens


def fastest_dtype(spec: ModelSpec) -> str:
    """Takes about half a second. Uses as many threads as torch uses on the calling thread."""
    rows = min(2 * spec.intermediate_size, _MOST_ROWS)
    speedup = 1.0
    with torch.inference_mode():
        weight = torch.rand(rows, spec.hidden_size)
        single, half = (Linear(weight.to(dtype)) for dtype in CANDIDATES)
        for tokens in _TOKENS:
            inputs = torch.rand(tokens, spec.hidden_size)
            speedup *= _best_s(single, inputs) / _best_s(half, inputs.to(torch.bfloat16))
    return "bfloat16" if speedup > _LEAST_GAIN ** len(_TOKENS) else "float32"


def _best_s(product: Linear, inputs: torch.Tensor) -> float:
    product(inputs)
    best_s, ends_s = float("inf"), time.perf_counter() + _BUDGET_S
    while (started_s := time.perf_counter()) < ends_s:
        product(inputs)
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s
