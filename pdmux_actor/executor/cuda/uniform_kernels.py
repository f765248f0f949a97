"""The uniform numbers of executor.sampler on the device, bit for bit, so that no launch sends any."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _mix(values):
    mixed = values + 0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


@triton.jit
def _uniform_kernel(seeds_ptr, indices_ptr, uniforms_ptr):
    row = tl.program_id(0)
    seed = tl.load(seeds_ptr + row).to(tl.uint64, bitcast=True)
    index = tl.load(indices_ptr + row).to(tl.int64).to(tl.uint64, bitcast=True)
    mixed = _mix(_mix(seed) ^ index)
    tl.store(uniforms_ptr + row, (mixed >> 11).to(tl.float64) * 1.1102230246251565e-16)  # 2^-53


def uniform_numbers(seeds: Tensor, indices: Tensor) -> Tensor:
    """float64 [rows]. seeds: int64, the bits of the CPU's uint64; indices: int32, of a request's output tokens."""
    uniforms = torch.empty(seeds.shape, dtype=torch.float64, device=seeds.device)
    if len(seeds):  # one program a row: no size is an argument, and so none makes a variant to compile
        _uniform_kernel[(len(seeds),)](seeds, indices, uniforms, num_warps=1)
    return uniforms
