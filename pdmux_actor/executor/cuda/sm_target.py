"""Measures at start whether matrix products must be told how many SMs their partition has.

Libraries' largest kernels start one program for each SM of the GPU. On a partition with fewer some of them wait for the
others, and the product takes twice the time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LEAST_GAIN = 1.05


@contextmanager
def told_its_sms(torch_c: Any, spared_sms: int) -> Iterator[None]:
    """Kernels that fill the GPU by themselves (FlashAttention 3's, cublasLt's) launch as if it had `spared_sms` fewer.

    `torch_c` is torch._C, or whatever answers like it.
    """
    torch_c._set_sm_carveout_experimental(spared_sms)
    try:
        yield
    finally:
        torch_c._set_sm_carveout_experimental(None)


def products_gain_when_told(flops_per_s: Callable[[], float], torch: Any, spared_sms: int) -> bool:
    """`flops_per_s` measures a product on a partition that leaves `spared_sms` SMs to the other lane. If products gain,
    those of `torch` (or whatever answers like it) stay with cublasLt, which listens.
    """
    before = torch.backends.cuda.preferred_blas_library()
    untold = flops_per_s()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    with told_its_sms(torch._C, spared_sms):
        told = flops_per_s()
    gains = told > _LEAST_GAIN * untold
    if not gains:
        torch.backends.cuda.preferred_blas_library(before)
    return gains
