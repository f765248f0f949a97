"""Copies what a launch sampled to the host, and reads it there once the launch is over."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.device_sampler import NOT_FINITE, DeviceSample
from pdmux_actor.executor.model_runner import LOGITS_NOT_FINITE, Produced
from pdmux_actor.messages import SampledToken
from pdmux_actor.scheduling.sequence import TokenSequence

Batch = tuple[TokenSequence, ...]


class BatchOrder:
    def __init__(self) -> None:
        self._launched: Batch = ()
        self._ordered: Batch = ()
        self.has_adapters = False
        """Whether a sequence of the last answer has one."""

    def of(self, sequences: Batch) -> Batch:
        """Returns the same sequences, without gaps: those that are new, or were beyond the end of this batch, take the
        places that have become free. The same batch again gets the same answer.
        """
        if self._launched == sequences:
            return self._ordered
        here = set(sequences)
        kept = [sequence if sequence in here else None for sequence in self._ordered[: len(sequences)]]
        here.difference_update(sequence for sequence in kept if sequence is not None)
        others = iter([sequence for sequence in sequences if sequence in here])
        ordered = [next(others) if sequence is None else sequence for sequence in kept]
        self._launched, self._ordered = sequences, (*ordered, *others)
        self.has_adapters = any(sequence.adapter is not None for sequence in sequences)
        return self._ordered


def places_in(ordered: Sequence[TokenSequence], sequences: Sequence[TokenSequence]) -> list[int]:
    """Returns where each of `sequences` is among `ordered`."""
    places = {sequence: place for place, sequence in enumerate(ordered)}
    return [places[sequence] for sequence in sequences]


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
