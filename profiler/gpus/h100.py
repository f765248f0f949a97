"""NVIDIA H100, SXM."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_5_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="H100",
    num_sms=132,
    peak_flops_per_s=708 * TERA,
    memory_bandwidth_bytes_per_s=3_190 * GIGA,
    memory_bytes=80 * GIB,
    launch_overhead_s=6.6e-6,
    partition_granularity_sms=8,
    knee_exponent=2.2,
    gemm_tile_tokens=128,
    attention_compute_share=0.84,
    attention_padding_tokens=590,
    fused_decode_tokens=70,
    attention_start_s=6e-6,
    link_bandwidth_bytes_per_s=350 * GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=PCIE_5_BYTES_PER_S,
    source="NVIDIA H100 data sheet (SXM, 989 TFLOP/s dense bf16, 3350 GB/s); reached: fit of Vidur's H100 GEMM profile "
    "and of attention in vLLM 0.14 (aiconfigurator, BLIS); all-reduce: NCCL on 2, 4 and 8 GPUs of one H100 node (APEX)",
)
