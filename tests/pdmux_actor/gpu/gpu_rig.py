"""The executor on a GPU. Tests that import this are skipped where there is no GPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no GPU is here", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton's interpreter is on: run these tests alone", allow_module_level=True)

from cpu_rig import CpuRig

from pdmux_actor.executor.open_cuda import open_cuda_executor
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits

DEVICE = torch.device("cuda", 0)


def open_gpu_rig(
    *,
    pool_mib: int,
    block_bytes: int,
    limits: LaunchLimits = DEFAULT_LIMITS,
    captures: bool = True,
    fuses: bool = False,
) -> CpuRig:
    executor = open_cuda_executor(
        kv_pool_bytes=pool_mib << 20, block_bytes=block_bytes, launch_limits=limits, captures=captures, fuses=fuses
    )
    return CpuRig(executor=executor, block_bytes=block_bytes)
