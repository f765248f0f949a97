"""Devices as data: data-sheet figures, what kernels were measured to reach of them, and where both come from.

Batches of prompts and decodes were measured on the RTX cards only; `fused_decode_tokens` of the others is like theirs.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from profiler.errors import UnknownDevice
from profiler.specs import DeviceSpec

_GIB = 1024**3
_TERA = 1e12
_SAME_MODEL = 2  # parts of a name in common: a family's letters and a number
_GIGA = 1e9
# From pinned memory over 16 lanes: NOT measured, 80 % of what the link carries.
_PCIE_4_BYTES_PER_S = 25 * _GIGA
_PCIE_5_BYTES_PER_S = 50 * _GIGA

A100_80G = DeviceSpec(
    name="A100-80G",
    num_sms=108,
    peak_flops_per_s=229 * _TERA,
    memory_bandwidth_bytes_per_s=1_620 * _GIGA,
    memory_bytes=80 * _GIB,
    launch_overhead_s=5.8e-6,
    partition_granularity_sms=4,
    bandwidth_saturation_share=0.15,
    compute_scaling_exponent=0.75,
    knee_exponent=2.4,
    gemm_tile_tokens=128,
    attention_bandwidth_share=1.0,
    fused_decode_tokens=70,
    attention_start_s=11e-6,
    link_bandwidth_bytes_per_s=165 * _GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=_PCIE_4_BYTES_PER_S,
    source="NVIDIA A100 data sheet (SXM, 312 TFLOP/s dense bf16, 2039 GB/s); reached: fits of Vidur's A100 profiles of "
    "GEMMs and of decode attention (prompts: assumed, its kernel of early 2024 skips no masked pairs); share of SMs: "
    "MuxServe's A100 profile under MPS; all-reduce: bandwidth of NCCL on a DGX A100 (Vidur), start as on H100",
)

H100 = DeviceSpec(
    name="H100",
    num_sms=132,
    peak_flops_per_s=708 * _TERA,
    memory_bandwidth_bytes_per_s=3_190 * _GIGA,
    memory_bytes=80 * _GIB,
    launch_overhead_s=6.6e-6,
    partition_granularity_sms=8,
    knee_exponent=2.2,
    gemm_tile_tokens=128,
    attention_compute_share=0.84,
    attention_padding_tokens=590,
    fused_decode_tokens=70,
    attention_start_s=6e-6,
    link_bandwidth_bytes_per_s=350 * _GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=_PCIE_5_BYTES_PER_S,
    source="NVIDIA H100 data sheet (SXM, 989 TFLOP/s dense bf16, 3350 GB/s); reached: fit of Vidur's H100 GEMM profile "
    "and of attention in vLLM 0.14 (aiconfigurator, BLIS); all-reduce: NCCL on 2, 4 and 8 GPUs of one H100 node (APEX)",
)

H200 = DeviceSpec(
    name="H200",
    num_sms=132,
    peak_flops_per_s=790 * _TERA,
    memory_bandwidth_bytes_per_s=4_300 * _GIGA,
    memory_bytes=139 * _GIB,
    launch_overhead_s=6.6e-6,
    partition_granularity_sms=8,
    knee_exponent=2.2,
    gemm_tile_tokens=128,
    attention_compute_share=0.84,
    attention_padding_tokens=590,
    fused_decode_tokens=70,
    attention_start_s=6e-6,
    link_bandwidth_bytes_per_s=310 * _GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=_PCIE_5_BYTES_PER_S,
    source="NVIDIA H200 data sheet (989 TFLOP/s dense bf16, 4800 GB/s); reached: measured bf16 matmul and copy on one "
    "H200; launch overhead as on H100"
    "; all-reduce: NCCL on 2, 4 and 8 GPUs of one H200 node (APEX)",
)

B200 = DeviceSpec(
    name="B200",
    num_sms=148,
    peak_flops_per_s=1_690 * _TERA,
    memory_bandwidth_bytes_per_s=7_000 * _GIGA,
    memory_bytes=180 * _GIB,
    launch_overhead_s=6.6e-6,
    partition_granularity_sms=8,
    knee_exponent=2.2,
    gemm_tile_tokens=128,
    attention_compute_share=0.84,
    attention_padding_tokens=590,
    fused_decode_tokens=70,
    attention_start_s=6e-6,
    link_bandwidth_bytes_per_s=630 * _GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=_PCIE_5_BYTES_PER_S,
    source="NVIDIA DGX B200 data sheet (2250 TFLOP/s dense bf16, 8000 GB/s, 180 GB a GPU); reached: NOT measured, "
    "assumed 75 % and 88 % as on A100, H100 and H200; launch overhead as on H100"
    "; all-reduce: NOT measured, 70 % of NVLink 5 as on H200",
)

L40S = DeviceSpec(
    name="L40S",
    num_sms=142,
    peak_flops_per_s=272 * _TERA,
    memory_bandwidth_bytes_per_s=690 * _GIGA,
    memory_bytes=48 * _GIB,
    launch_overhead_s=5e-6,
    partition_granularity_sms=4,
    knee_exponent=2.3,
    gemm_tile_tokens=128,
    fused_decode_tokens=70,
    attention_start_s=9e-6,
    link_bandwidth_bytes_per_s=20 * _GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=_PCIE_4_BYTES_PER_S,
    source="NVIDIA L40S data sheet (362 TFLOP/s dense bf16, 864 GB/s); reached: NOT measured, assumed 75 % and 80 % as "
    "on A40; launch overhead between A100's and H100's"
    "; all-reduce: NOT measured, PCIe 4.0 x16 assumed",
)

A40 = DeviceSpec(
    name="A40",
    num_sms=84,
    peak_flops_per_s=117 * _TERA,
    memory_bandwidth_bytes_per_s=541 * _GIGA,
    memory_bytes=48 * _GIB,
    launch_overhead_s=4.4e-6,
    partition_granularity_sms=4,
    knee_exponent=2.3,
    gemm_tile_tokens=128,
    fused_decode_tokens=70,
    attention_start_s=11e-6,
    link_bandwidth_bytes_per_s=40 * _GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=_PCIE_4_BYTES_PER_S,
    source="NVIDIA A40 data sheet (150 TFLOP/s dense bf16, 696 GB/s); reached: fit of Vidur's A40 GEMM profile; launch "
    "overhead as on A100"
    "; all-reduce: NOT measured, an NVLink bridge between pairs assumed",
)

RTX_PRO_6000 = DeviceSpec(
    name="RTX-PRO-6000",
    num_sms=188,
    peak_flops_per_s=399 * _TERA,
    memory_bandwidth_bytes_per_s=1_520 * _GIGA,
    memory_bytes=96 * _GIB,
    launch_overhead_s=6.3e-6,
    partition_granularity_sms=8,
    knee_exponent=2.1,
    gemm_tile_tokens=128,
    attention_compute_share=0.69,
    attention_bandwidth_share=0.96,
    attention_padding_tokens=120,
    fused_decode_tokens=73,
    fused_sequence_s=6.7e-9,
    attention_longest_key_s=21e-9,
    attention_start_s=6e-6,
    link_bandwidth_bytes_per_s=25 * _GIGA,
    link_latency_s=2e-6,
    all_reduce_start_s=10e-6,
    host_copy_bytes_per_s=_PCIE_5_BYTES_PER_S,
    source="NVIDIA RTX PRO 6000 Blackwell data sheet (96 GB, 1792 GB/s); reached: fit of LLMServingSim's vLLM GEMMs "
    "and attention; all-reduce: NOT measured, PCIe 5.0 x16 assumed",
)

RTX_4090 = DeviceSpec(
    name="RTX-4090",
    num_sms=128,
    peak_flops_per_s=165 * _TERA,
    memory_bandwidth_bytes_per_s=927 * _GIGA,
    memory_bytes=24 * _GIB,
    launch_overhead_s=5.3e-6,
    partition_granularity_sms=4,
    knee_exponent=5.0,
    gemm_tile_tokens=128,
    attention_compute_share=0.93,
    attention_bandwidth_share=0.91,
    attention_padding_tokens=200,
    fused_decode_tokens=76,
    fused_sequence_s=20e-9,
    attention_longest_key_s=32e-9,
    attention_start_s=4e-6,
    link_bandwidth_bytes_per_s=12 * _GIGA,
    link_latency_s=2e-6,
    all_reduce_start_s=10e-6,
    host_copy_bytes_per_s=_PCIE_4_BYTES_PER_S,
    source="NVIDIA RTX 4090 data sheet (24 GB, 1008 GB/s); reached: fit of LLMServingSim's vLLM GEMMs and "
    "attention; all-reduce: NOT measured, PCIe 4.0 x16 without peer access assumed",
)

DEVICES: Mapping[str, DeviceSpec] = MappingProxyType(
    {device.name: device for device in (A100_80G, H100, H200, B200, L40S, A40, RTX_PRO_6000, RTX_4090)}
)


def device_named(name: str) -> DeviceSpec:
    """Looks a GPU up, whatever its case.

    Raises:
        UnknownDevice: with the nearest known name.

    >>> device_named("h200").num_sms
    132
    """
    by_folded_name = {known.lower(): device for known, device in DEVICES.items()}
    device = by_folded_name.get(name.lower())
    if device is not None:
        return device
    raise UnknownDevice(name=name, nearest=_nearest(name.lower(), tuple(by_folded_name)), known=tuple(DEVICES))


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """Who has most letters and numbers in common with the name: A100 is A100-80G, not H100; else who is spelt alike."""
    parts = {other: _letters_and_numbers(other) for other in known}
    shared = {other: len(_letters_and_numbers(name) & parts[other]) for other in known}
    likest = max(known, key=lambda other: (shared[other], -len(parts[other])))
    near = [likest] if shared[likest] >= _SAME_MODEL else get_close_matches(name, known, n=1)
    return next((device for device in DEVICES if device.lower() in near), None)


def _letters_and_numbers(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+|[0-9]+", name))


def laptop_cpu(*, num_cores: int, memory_bytes: int) -> DeviceSpec:
    """A generic x86 laptop in float32, to plan and simulate with before anything was measured.

    >>> laptop_cpu(num_cores=2, memory_bytes=8 * 1024**3).name
    'cpu-2'
    """
    return DeviceSpec(
        name=f"cpu-{num_cores}",
        num_sms=num_cores,
        peak_flops_per_s=50 * _GIGA * num_cores,
        memory_bandwidth_bytes_per_s=20 * _GIGA,
        memory_bytes=memory_bytes,
        launch_overhead_s=10e-6,
        # One core of two drew all of the bandwidth that two draw; prefill gained 1.75x = 2 ** 0.8 from the second.
        bandwidth_saturation_share=0.12,
        compute_scaling_exponent=0.8,
        source="AVX2 core near 3 GHz, two DDR4 channels, an order of magnitude; scaling measured on two cores",
    )
