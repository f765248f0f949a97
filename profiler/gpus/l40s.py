"""NVIDIA L40S."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_4_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="L40S",
    num_sms=142,
    peak_flops_per_s=272 * TERA,
    memory_bandwidth_bytes_per_s=690 * GIGA,
    memory_bytes=48 * GIB,
    launch_overhead_s=5e-6,
    partition_granularity_sms=4,
    knee_exponent=2.3,
    gemm_tile_tokens=128,
    fused_decode_tokens=70,
    attention_start_s=9e-6,
    link_bandwidth_bytes_per_s=20 * GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=PCIE_4_BYTES_PER_S,
    source="NVIDIA L40S data sheet (362 TFLOP/s dense bf16, 864 GB/s); reached: NOT measured, assumed 75 % and 80 % as "
    "on A40; launch overhead between A100's and H100's; all-reduce: NOT measured, PCIe 4.0 x16 assumed",
)
