"""MurmurHash3 of (seed, position, column), which seeded sampling draws from: SGLang has it as a CPU kernel too."""

import numpy as np
import torch


def _rotated(x, bits):
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _mixed(hashed, block):
    block = _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated(hashed ^ block, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def murmur_hash32(seeds, positions, columns):
    seeds = seeds.numpy().astype(np.uint64)[:, None]
    hashed = np.zeros((len(seeds), len(columns)), dtype=np.uint32)
    blocks = (seeds, seeds >> np.uint64(32), positions.numpy()[:, None], columns.numpy()[None, :])
    with np.errstate(over="ignore"):
        for block in blocks:
            hashed = _mixed(hashed, block.astype(np.uint32))
        hashed ^= np.uint32(16)
        hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return torch.from_numpy(hashed ^ (hashed >> np.uint32(16)))


def declare():
    """The library must be kept: with it its operators end."""
    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    library.impl("murmur_hash32_cpu", murmur_hash32, "CPU")
    return library
