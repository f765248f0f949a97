"""Says what is captured before launches ask for it, the likeliest first."""

from collections.abc import Iterator, Sequence

from pdmux_actor.executor.cuda.device_sampler import SamplingKind
from pdmux_actor.executor.cuda.graph_key import LAYERS, LOGITS, GraphKey, PlannedCapture
from pdmux_actor.executor.cuda.launch_buckets import SEQUENCE_BUCKETS, TOKEN_BUCKETS, bucket_of, host_bound_tokens
from pdmux_actor.executor.cuda.partition_streams import PartitionStreams
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.launch import Lane
from pdmux_actor.scheduling.partition import decode_shares
from profiler.specs import DeviceSpec


def captured_buckets(most_sequences: int) -> tuple[int, ...]:
    """Returns buckets of all batches of up to `most_sequences`, from large to small: small ones take what memory a
    large one has left.
    """
    largest = bucket_of(most_sequences)
    within = {bucket for bucket in SEQUENCE_BUCKETS if bucket <= largest}
    return tuple(sorted(within | {largest}, reverse=True))


def captured_shares(num_sms: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Returns the whole device, on which decode runs while no prompt waits; then shares of up to half of it, where
    policies find enough for decode, from the largest on; then the others.
    """
    small = sorted((share for share in shares if 2 * share <= num_sms), reverse=True)
    return (num_sms, *small, *sorted(share for share in shares if num_sms < 2 * share < 2 * num_sms))


def likely_captures(
    info: ModelInfo, streams: PartitionStreams, device: DeviceSpec, most_sequences: int
) -> Iterator[PlannedCapture]:
    """Yields decode steps that greedy requests need on all shares, and layers of prompts beside which nothing runs."""
    for share in captured_shares(device.num_sms, decode_shares(device)):
        sms, stream = streams.sms_given(Lane.DECODE, share), streams.stream(Lane.DECODE, share)
        for bucket in captured_buckets(most_sequences):
            for part in (LOGITS, SamplingKind.GREEDY.value):
                key = GraphKey(model=info.model, bucket=bucket, sms=sms, part=part)
                yield PlannedCapture(key, stream)
    yield from _layers(info, streams, device, device.num_sms)


def captures_beside_decode(info: ModelInfo, streams: PartitionStreams, device: DeviceSpec) -> Iterator[PlannedCapture]:
    """Yields layers of prompts on what each share of decode leaves."""
    for share in captured_shares(device.num_sms, decode_shares(device))[1:]:
        yield from _layers(info, streams, device, device.num_sms - share)


def _layers(info: ModelInfo, streams: PartitionStreams, device: DeviceSpec, share: int) -> Iterator[PlannedCapture]:
    sms, stream = streams.sms_given(Lane.PREFILL, share), streams.stream(Lane.PREFILL, share)
    most_tokens = host_bound_tokens(info.spec, device) * sms / device.num_sms
    for bucket in reversed(TOKEN_BUCKETS):
        if bucket <= most_tokens:
            yield PlannedCapture(GraphKey(model=info.model, bucket=bucket, sms=sms, part=LAYERS), stream)
