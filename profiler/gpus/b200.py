"""NVIDIA B200."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_5_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="B200",
    num_sms=148,
    peak_flops_per_s=1_690 * TERA,
    memory_bandwidth_bytes_per_s=7_000 * GIGA,
    memory_bytes=180 * GIB,
    launch_overhead_s=6.6e-6,
    partition_granularity_sms=8,
    knee_exponent=2.2,
    gemm_tile_tokens=128,
    attention_compute_share=0.84,
    attention_padding_tokens=590,
    fused_decode_tokens=70,
    attention_start_s=6e-6,
    link_bandwidth_bytes_per_s=630 * GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=PCIE_5_BYTES_PER_S,
    source="NVIDIA DGX B200 data sheet (2250 TFLOP/s dense bf16, 8000 GB/s, 180 GB a GPU); reached: NOT measured, "
    "assumed 75 % and 88 % as on A100, H100 and H200; launch overhead as on H100; "
    "all-reduce: NOT measured, 70 % of NVLink 5 as on H200",
)
