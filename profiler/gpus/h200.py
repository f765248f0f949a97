"""NVIDIA H200, SXM."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_5_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="H200",
    num_sms=132,
    peak_flops_per_s=790 * TERA,
    memory_bandwidth_bytes_per_s=4_300 * GIGA,
    memory_bytes=139 * GIB,
    launch_overhead_s=6.6e-6,
    partition_granularity_sms=8,
    knee_exponent=2.2,
    gemm_tile_tokens=128,
    attention_compute_share=0.84,
    attention_padding_tokens=590,
    fused_decode_tokens=70,
    attention_start_s=6e-6,
    link_bandwidth_bytes_per_s=310 * GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=PCIE_5_BYTES_PER_S,
    source="NVIDIA H200 data sheet (989 TFLOP/s dense bf16, 4800 GB/s); reached: measured bf16 matmul and copy on one "
    "H200; launch overhead as on H100; all-reduce: NCCL on 2, 4 and 8 GPUs of one H200 node (APEX)",
)
