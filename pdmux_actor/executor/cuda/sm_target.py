"""Matrix products on a partition, by a library that listens to how many SMs there are.

Libraries' large kernels start one program for each SM of the GPU. On a partition with fewer some of them wait for the
others, and the product takes up to twice the time. cublasLt chooses other kernels when it is told the SMs. On an H200
that is worth 5 to 30 % to products of decode steps, and costs prompts' products up to 2.5 times their time on small
partitions (docs/gpu.md): it is asked for each lane.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LEAST_GAIN = 1.03


@contextmanager
def told_its_sms(torch: Any, spared_sms: int, *, by_products: bool) -> Iterator[None]:
    """Kernels that fill the GPU by themselves (FlashAttention 3's, cublasLt's) launch as if it had `spared_sms` fewer.
    `by_products`: products are cublasLt's meanwhile, also where no SMs are spared.

    `torch` is the module, or whatever answers like it.
    """
    library = torch.backends.cuda.preferred_blas_library
    before = library() if by_products else None
    torch._C._set_sm_carveout_experimental(spared_sms or None)
    try:
        if by_products:
            library("cublaslt")
        yield
    finally:
        torch._C._set_sm_carveout_experimental(None)
        if by_products:
            library(before)


def gain_when_told(flops_per_s: Callable[[], float], torch: Any, spared_sms: int) -> bool:
    """Returns whether products are faster by cublasLt that is told the SMs. `flops_per_s` measures one on a partition
    that leaves `spared_sms` SMs to the other lane.
    """
    untold = flops_per_s()
    with told_its_sms(torch, spared_sms, by_products=True):
        told = flops_per_s()
    return told > _LEAST_GAIN * untold
