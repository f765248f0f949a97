"""NVIDIA RTX PRO 6000 Blackwell."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_5_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="RTX-PRO-6000",
    num_sms=188,
    peak_flops_per_s=399 * TERA,
    memory_bandwidth_bytes_per_s=1_520 * GIGA,
    memory_bytes=96 * GIB,
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
    link_bandwidth_bytes_per_s=32 * GIGA,
    link_sharing_exponent=0.32,
    link_latency_s=1.65e-6,
    all_reduce_start_s=3.4e-6,
    host_copy_bytes_per_s=PCIE_5_BYTES_PER_S,
    source="NVIDIA RTX PRO 6000 Blackwell data sheet (96 GB, 1792 GB/s); reached: fit of LLMServingSim's vLLM GEMMs "
    "and attention; all-reduce: NCCL 2.29 on 2, 4 and 8 GPUs of one node (aiconfigurator)",
)
