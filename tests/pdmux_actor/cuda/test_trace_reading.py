"""What a profile of the hot path is searched for, on traces as torch.profiler writes them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from gpu.trace_reading import busy_shares, faults, kernel_times_s, within


def event(name: str, cat: str, ts: float = 0.0, dur: float = 1.0, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "args": args}


HOT = [
    event("cudaGraphLaunch", "cuda_runtime"),
    event("cudaMemcpyAsync", "cuda_runtime"),
    event("cudaEventQuery", "cuda_runtime"),
    event("cudaEventRecord", "cuda_runtime"),
    event("cudaLaunchKernel", "cuda_runtime"),
    event("cuLaunchKernelEx", "cuda_driver"),
    event("aten::addmm_", "cpu_op"),
    event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", stream=7),
    event("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", stream=7),
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    {"ph": "i", "name": "cudaMalloc", "cat": "cuda_runtime"},
]


def test_faults__launches_polls_and_pinned_copies__none() -> None:
    assert faults(HOT) == {}


@pytest.mark.parametrize(
    ("name", "cat"),
    [
        ("cudaMalloc", "cuda_runtime"),
        ("cudaStreamSynchronize", "cuda_runtime"),
        ("cudaHostAlloc", "cuda_runtime"),
        ("cuModuleLoadData", "cuda_driver"),
        ("aten::item", "cpu_op"),
        ("aten::_local_scalar_dense", "cpu_op"),
        ("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy"),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy"),
    ],
)
def test_faults__one_call_out_of_place__is_named_and_counted(name: str, cat: str) -> None:
    assert faults([*HOT, event(name, cat, stream=7), event(name, cat, stream=7)]) == {name: 2}


def test_faults__name_with_version__is_the_call() -> None:
    assert faults([event("cudaMalloc_v3020", "cuda_runtime")]) == {"cudaMalloc": 1}


def test_kernel_times__several_launches__are_added_and_sorted() -> None:
    trace = [event("a", "kernel", dur=1e6), event("b", "kernel", dur=3e6), event("a", "kernel", dur=1e6), *HOT[:3]]

    assert kernel_times_s(trace) == {"b": 3.0, "a": 2.0}


def test_busy_shares__overlapping_and_apart__of_the_whole_span() -> None:
    trace = [
        event("a", "kernel", ts=0, dur=50, stream=1),
        event("b", "kernel", ts=25, dur=50, stream=1),
        event("c", "kernel", ts=90, dur=10, stream=2),
    ]

    assert busy_shares(trace) == {"1": 0.75, "2": 0.1}
    assert busy_shares(HOT[:3]) == {}


def test_within__profiler_that_waits_before_and_after__is_left_out() -> None:
    trace = [
        event("cudaDeviceSynchronize", "cuda_runtime", ts=1),
        event("hot path", "user_annotation", ts=5, dur=10),
        event("hot path", "gpu_user_annotation", ts=6, dur=2),
        event("cudaMalloc", "cuda_runtime", ts=7),
        event("a", "kernel", ts=15, stream=1),
        event("cudaDeviceSynchronize", "cuda_runtime", ts=16),
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]

    assert faults(within(trace, "hot path")) == {"cudaMalloc": 1}
    assert kernel_times_s(within(trace, "hot path")) == {"a": 1e-6}
