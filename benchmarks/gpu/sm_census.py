"""Which SMs a stream's kernels run on: every program writes the number of its SM."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 4096
_SPIN_NS = 20_000  # long enough that no SM takes two programs while another one idles


@triton.jit
def _census_kernel(out_ptr, spin_ns: tl.constexpr):
    until = tl.extra.cuda.globaltimer() + spin_ns
    while tl.extra.cuda.globaltimer() < until:
        pass
    tl.store(out_ptr + tl.program_id(0), tl.extra.cuda.smid())


class SmCensus:
    def __init__(self, device: torch.device) -> None:
        self._numbers = torch.full((_PROGRAMS,), -1, dtype=torch.int32, device=device)

    def take(self) -> None:
        _census_kernel[(_PROGRAMS,)](self._numbers, spin_ns=_SPIN_NS)

    def sms(self) -> frozenset[int]:
        """Of the last `take`, which is over."""
        numbers: Tensor = self._numbers.unique()
        return frozenset(numbers.tolist())
