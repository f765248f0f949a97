"""NVIDIA L40S."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_4_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="L40S",
    num_sms=142,
    peak_flops_per_s=228 * TERA,
    memory_bandwidth_bytes_per_s=720 * GIGA,
    memory_bytes=45 * GIB,  # 48 GB less what ECC takes: the driver tells of 46,068 MiB
    launch_overhead_s=5e-6,
    partition_granularity_sms=4,
    knee_exponent=4.2,
    gemm_tile_tokens=128,
    attention_compute_share=0.77,
    attention_bandwidth_share=0.97,
    attention_padding_tokens=75,
    fused_decode_tokens=70,
    attention_start_s=5.3e-6,
    link_bandwidth_bytes_per_s=18.3 * GIGA,
    link_sharing_exponent=1.8,
    link_latency_s=1.2e-6,
    all_reduce_start_s=4.6e-6,
    host_copy_bytes_per_s=PCIE_4_BYTES_PER_S,
    source="NVIDIA L40S data sheet (362 TFLOP/s dense bf16, 864 GB/s); reached: fit of vLLM 0.24's GEMMs and "
    "attention, launch overhead assumed between A100's and H100's; all-reduce: NCCL 2.27 on 2, 4 and 8 GPUs of one "
    "node over PCIe (both aiconfigurator)",
)
