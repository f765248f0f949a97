"""NVIDIA GeForce RTX 4090."""

from profiler.data_sheet_units import GIB, GIGA, PCIE_4_BYTES_PER_S, TERA
from profiler.specs import DeviceSpec

DEVICE = DeviceSpec(
    name="RTX-4090",
    num_sms=128,
    peak_flops_per_s=165 * TERA,
    memory_bandwidth_bytes_per_s=927 * GIGA,
    memory_bytes=24 * GIB,
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
    link_bandwidth_bytes_per_s=12 * GIGA,
    link_latency_s=2e-6,
    all_reduce_start_s=10e-6,
    host_copy_bytes_per_s=PCIE_4_BYTES_PER_S,
    source="NVIDIA RTX 4090 data sheet (24 GB, 1008 GB/s); reached: fit of LLMServingSim's vLLM GEMMs and "
    "attention; all-reduce: NOT measured, PCIe 4.0 x16 without peer access assumed",
)
