"""A CPU executor that runs every model by transformers' code, and transformers without its own words."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from cpu_rig import NAN_BYTE, CpuRig, cores_of_this_process, make_device, make_prompt, outputs

from pdmux_actor.executor.torch_cpu import TorchCpuExecutor


@contextmanager
def transformers_rig() -> Iterator[CpuRig]:
    executor = TorchCpuExecutor(
        kv_pool_bytes=32 << 20,
        block_bytes=2048,
        cores=cores_of_this_process()[:1],
        device=make_device(1),
        implementation="transformers",
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


def said(rig: CpuRig, model: str, lengths: Sequence[int] = (1, 17, 90), new_tokens: int = 6) -> list[list[int]]:
    """What a tiny model says to prompts of these lengths, in one batch and two layers at a time."""
    sequences = [rig.sequence(model, make_prompt(length, vocab_size=160), new_tokens) for length in lengths]
    rig.prefill(sequences, layers_per_slice=2)
    rig.decode(sequences, new_tokens - 1)
    return outputs(sequences, new_tokens)
