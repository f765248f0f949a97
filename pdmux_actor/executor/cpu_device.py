"""Measures in a fraction of a second what this machine's cores can do."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from pdmux_actor.executor.host_memory import host_memory_bytes
from pdmux_actor.models.compiled.compiled_kernels import CompiledKernels
from pdmux_actor.models.compiled.library import cached_folder
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.quantised import projection_maker
from pdmux_actor.models.torch_threads import use_torch_threads
from profiler.specs import DeviceSpec

_MATRIX_SIZE = 512
_STREAM_BYTES = 128 * 1024 * 1024
_BUDGET_S = 0.08
_FORMATS = ("int8", "int4")
# Small tensor operations that Python issues in a step of a model of a few layers.
_OPERATIONS_PER_STEP = 100


def measure_cpu(num_cores: int) -> DeviceSpec:
    """Best of several runs each of matrix products, reading memory and a tiny operation, on `num_cores` threads."""
    measured: list[DeviceSpec] = []
    # A thread of its own: the number of threads torch uses is a property of the calling thread.
    thread = threading.Thread(target=lambda: measured.append(_measure(num_cores)), name="measure-cpu")
    thread.start()
    # no deadline: the actor bounds the start of an engine
    thread.join()
    assert measured, "measuring the CPU failed"
    return measured[0]


def _measure(num_cores: int) -> DeviceSpec:
    use_torch_threads(num_cores)
    with torch.inference_mode():
        left = torch.rand(_MATRIX_SIZE, _MATRIX_SIZE)
        product = Linear(torch.rand(_MATRIX_SIZE, _MATRIX_SIZE))  # what the models multiply with
        tiny = torch.ones(8)
        matmul_s = _best_s(lambda: product(left))
        operation_s = _best_s(lambda: tiny.add_(1.0))
        shares = _compute_shares()
        bytes_per_s = _read_bytes_per_s(num_cores)
    return DeviceSpec(
        name="cpu",
        num_sms=num_cores,
        peak_flops_per_s=2 * _MATRIX_SIZE**3 / matmul_s,
        memory_bandwidth_bytes_per_s=bytes_per_s,
        memory_bytes=host_memory_bytes(),
        launch_overhead_s=operation_s * _OPERATIONS_PER_STEP,
        int8_compute_share=shares["int8"],
        int4_compute_share=shares["int4"],
        source=f"measured at start on {num_cores} cores",
    )


def _read_bytes_per_s(num_cores: int) -> float:
    """Reads as a decode step does, which writes next to nothing. All cores read at least as fast as one: where one of
    them is busy with other work, the others wait for it.
    """
    source = torch.ones(_STREAM_BYTES // 4)
    all_s = _best_s(source.sum)
    use_torch_threads(1)
    one_s = _best_s(source.sum)
    use_torch_threads(num_cores)
    return _STREAM_BYTES / min(all_s, one_s)


def _compute_shares() -> Mapping[str, float]:
    """How fast products of bfloat16 with weights of few bits are, measured beside those with weights of bfloat16."""
    weight = torch.rand(_MATRIX_SIZE, _MATRIX_SIZE, dtype=torch.bfloat16)
    inputs = torch.rand(_MATRIX_SIZE, _MATRIX_SIZE, dtype=torch.bfloat16)
    kernels = CompiledKernels.into(cached_folder())
    plain = projection_maker(None, kernels)(weight, None)
    products = [projection_maker(weights, kernels)(weight, None) for weights in _FORMATS]
    plain_s, *others_s = _best_by_turns_s([partial(product, inputs) for product in (plain, *products)])
    return {weights: plain_s / product_s for weights, product_s in zip(_FORMATS, others_s, strict=True)}


def _best_s(operation: Callable[[], object]) -> float:
    return _best_by_turns_s([operation])[0]


def _best_by_turns_s(operations: Sequence[Callable[[], object]]) -> list[float]:
    """By turns, so that other work on the machine meets all of them."""
    for operation in operations:
        operation()
    best_s, spent_s = [float("inf")] * len(operations), 0.0
    while spent_s < _BUDGET_S * len(operations):
        for place, operation in enumerate(operations):
            started_s = time.perf_counter()
            operation()
            elapsed_s = time.perf_counter() - started_s
            best_s[place], spent_s = min(best_s[place], elapsed_s), spent_s + elapsed_s
    return best_s
