"""Random tensors in bfloat16 for the tests of kernels."""

import torch
from torch import Tensor


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
