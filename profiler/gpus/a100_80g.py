"""NVIDIA A100 with 80 GB, SXM."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_4_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="A100-80G",
    num_sms=108,
    peak_flops_per_s=229 * TERA,
    memory_bandwidth_bytes_per_s=1_620 * GIGA,
    memory_bytes=80 * GIB,
    launch_overhead_s=5.8e-6,
    partition_granularity_sms=4,
    bandwidth_saturation_share=0.15,
    compute_scaling_exponent=0.75,
    knee_exponent=2.4,
    gemm_tile_tokens=128,
    attention_bandwidth_share=1.0,
    fused_decode_tokens=70,
    attention_start_s=11e-6,
    link_bandwidth_bytes_per_s=165 * GIGA,
    link_latency_s=0.8e-6,
    all_reduce_start_s=6e-6,
    host_copy_bytes_per_s=PCIE_4_BYTES_PER_S,
    source="NVIDIA A100 data sheet (SXM, 312 TFLOP/s dense bf16, 2039 GB/s); reached: fits of Vidur's A100 profiles of "
    "GEMMs and of decode attention (prompts: assumed, its kernel of early 2024 skips no masked pairs); share of SMs: "
    "MuxServe's A100 profile under MPS; all-reduce: bandwidth of NCCL on a DGX A100 (Vidur), start as on H100",
)
