"""NVIDIA A40."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_4_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="A40",
    num_sms=84,
    peak_flops_per_s=117 * TERA,
    memory_bandwidth_bytes_per_s=541 * GIGA,
    memory_bytes=45 * GIB,  # 48 GB less what ECC takes: the driver tells of 46,068 MiB
    launch_overhead_s=4.4e-6,
    partition_granularity_sms=4,
    knee_exponent=2.3,
    gemm_tile_tokens=128,
    fused_decode_tokens=70,
    attention_start_s=11e-6,
    link_bandwidth_bytes_per_s=40 * GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=PCIE_4_BYTES_PER_S,
    source="NVIDIA A40 data sheet (150 TFLOP/s dense bf16, 696 GB/s); reached: fit of Vidur's A40 GEMM profile; launch "
    "overhead as on A100; all-reduce: NOT measured, an NVLink bridge between pairs assumed",
)
