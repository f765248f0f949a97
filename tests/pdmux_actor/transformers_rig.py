"""A CPU executor that runs every model by transformers' code, and transformers without its own words."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from cpu_rig import NAN_BYTE, CpuRig, make_device

from pdmux_actor.executor.torch_cpu import TorchCpuExecutor


@contextmanager
def transformers_rig() -> Iterator[CpuRig]:
    executor = TorchCpuExecutor(
        kv_pool_bytes=32 << 20, block_bytes=2048, num_cores=1, device=make_device(1), implementation="transformers"
    )
    executor._storage.pool[:-1].fill_(NAN_BYTE)  # what is read must have been written
    rig = CpuRig(executor=executor)
    yield rig
    rig.close()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """And one thread."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
