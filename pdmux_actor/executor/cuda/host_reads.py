"""Copies what a launch sampled to the host, and reads it there once the launch is over."""

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.batch_order import Batch, places_in
from pdmux_actor.executor.cuda.device_sampler import NOT_FINITE, DeviceSample
from pdmux_actor.executor.model_runner import LOGITS_NOT_FINITE, Produced
from pdmux_actor.messages import SampledToken


def sample_to_host(sample: DeviceSample) -> DeviceSample:
    """Copies all that `sample` has, as `to_host` does."""

    def copied(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else to_host(tensor)

    return DeviceSample(
        token_ids=to_host(sample.token_ids),
        logprobs=copied(sample.logprobs),
        top_ids=copied(sample.top_ids),
        top_logprobs=copied(sample.top_logprobs),
    )


def to_host(tensor: Tensor) -> Tensor:
    """Copies to pinned memory, which is filled once the launch is over. torch keeps a cache of pinned blocks, so that
    this allocates rarely.
    """
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


def read_plain(sampled: Tensor, batch: Batch, sequences: Batch) -> Produced:
    """Reads `sampled`, [steps, rows] of `batch` and then padding. Tokens are those of `sequences`, in their order."""
    columns = sampled.t().tolist()
    in_order = columns[: len(batch)] if batch == sequences else [columns[p] for p in places_in(batch, sequences)]
    return produced([tuple([SampledToken(token_id) for token_id in token_ids]) for token_ids in in_order])


def produced(tokens: list[tuple[SampledToken, ...]]) -> Produced:
    """Returns tokens by sequence; a sequence whose logits were not finite has none, and an error."""
    broken = {i for i, of_sequence in enumerate(tokens) if NOT_FINITE in [token[0] for token in of_sequence]}
    if not broken:  # the next launch waits for this
        return Produced(tuple(tokens))
    return Produced(
        tuple(() if i in broken else of_sequence for i, of_sequence in enumerate(tokens)),
        dict.fromkeys(broken, LOGITS_NOT_FINITE),
    )
