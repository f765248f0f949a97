"""Says what is captured before launches ask for it, the likeliest first."""

from collections.abc import Iterator, Sequence

from pdmux_actor.executor.cuda.device_sampler import SamplingKind
from pdmux_actor.executor.cuda.graph_key import LAYERS, LOGITS, PIECES, GraphKey, PlannedCapture
from pdmux_actor.executor.cuda.launch_buckets import SEQUENCE_BUCKETS, TOKEN_BUCKETS, bucket_of
from pdmux_actor.executor.cuda.partition_streams import PartitionStreams
from pdmux_actor.scheduling.launch import Lane, decode_shares
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
    model: str, streams: PartitionStreams, device: DeviceSpec, most_sequences: int, most_tokens: float, *, fuses: bool
) -> Iterator[PlannedCapture]:
    """Yields decode steps that greedy requests need on all shares; then layers of prompts of up to `most_tokens` on the
    whole device, and of fewer on what each share of decode leaves; where the policy `fuses`, then pieces of fused steps
    of as many tokens, which have the whole device.
    """
    shares = captured_shares(device.num_sms, decode_shares(device))
    for share in shares:
        sms, stream = streams.sms_given(Lane.DECODE, share), streams.stream(Lane.DECODE, share)
        for bucket in captured_buckets(most_sequences):
            for part in (LOGITS, SamplingKind.GREEDY.value):
                key = GraphKey(model=model, bucket=bucket, sms=sms, part=part)
                yield PlannedCapture(key, stream)
    for left_sms in (device.num_sms, *[device.num_sms - share for share in shares[1:]]):
        sms, stream = streams.sms_given(Lane.PREFILL, left_sms), streams.stream(Lane.PREFILL, left_sms)
        for bucket in reversed(TOKEN_BUCKETS):
            if bucket <= most_tokens * sms / device.num_sms:
                yield PlannedCapture(GraphKey(model=model, bucket=bucket, sms=sms, part=LAYERS), stream)
    if fuses:
        sms, stream = streams.sms_given(Lane.DECODE, device.num_sms), streams.stream(Lane.DECODE, device.num_sms)
        for bucket in reversed(TOKEN_BUCKETS):
            if bucket <= most_tokens:
                yield PlannedCapture(GraphKey(model=model, bucket=bucket, sms=sms, part=PIECES), stream)
