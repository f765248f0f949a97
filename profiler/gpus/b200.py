"""NVIDIA B200."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_5_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="B200",
    num_sms=148,
    peak_flops_per_s=1_650 * TERA,
    memory_bandwidth_bytes_per_s=6_300 * GIGA,
    memory_bytes=180 * GIB,
    launch_overhead_s=3.8e-6,
    partition_granularity_sms=8,
    knee_exponent=3.6,
    gemm_tile_tokens=128,
    attention_compute_share=0.87,
    attention_bandwidth_share=1.1,  # attention draws more than products do
    attention_padding_tokens=1070,
    fused_decode_tokens=70,
    attention_start_s=6.6e-6,
    link_bandwidth_bytes_per_s=400 * GIGA,
    link_latency_s=1.3e-6,
    all_reduce_start_s=8.2e-6,
    host_copy_bytes_per_s=PCIE_5_BYTES_PER_S,
    source="NVIDIA DGX B200 data sheet (2250 TFLOP/s dense bf16, 8000 GB/s, 180 GB a GPU); reached: fit of vLLM "
    "0.24's GEMMs and attention; all-reduce: NCCL 2.29 on 2, 4 and 8 GPUs of one node (both aiconfigurator)",
)
