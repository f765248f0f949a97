"""Decides which dtype this machine's cores multiply fastest in, by measurement: what `dtype: auto` means on a CPU."""

import time

import torch

from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.linear import Linear, Projection
from profiler.specs import ModelSpec

CANDIDATES = (torch.float32, torch.bfloat16)
_LEAST_GAIN = 1.1  # float32 is the more exact one, so another must be faster by that
_MOST_ROWS = 8192
_TOKENS = (8, 256)  # a decode step and a prompt
_BUDGET_S = 0.15  # per dtype and number of tokens


def fastest_dtype(spec: ModelSpec, kernels: CompiledKernels = BY_TORCH) -> str:
    """`kernels` would multiply in bfloat16. Takes half a second, on the threads torch uses on the calling thread."""
    rows = min(2 * spec.intermediate_size, _MOST_ROWS)
    speedup = 1.0
    with torch.inference_mode():
        weight = torch.rand(rows, spec.hidden_size)
        in_half = weight.to(CANDIDATES[1])
        single = Linear(weight)
        half = kernels.dense(in_half)
        for tokens in _TOKENS:
            inputs = torch.rand(tokens, spec.hidden_size)
            speedup *= _best_s(single, inputs) / _best_s(half, inputs.to(torch.bfloat16))
    return "bfloat16" if speedup > _LEAST_GAIN ** len(_TOKENS) else "float32"


def _best_s(product: Projection, inputs: torch.Tensor) -> float:
    product(inputs)
    best_s, ends_s = float("inf"), time.perf_counter() + _BUDGET_S
    while (started_s := time.perf_counter()) < ends_s:
        product(inputs)
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s
