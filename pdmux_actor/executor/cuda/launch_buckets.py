"""Sizes that captured launches are padded to."""

from bisect import bisect_left

from profiler.specs import DeviceSpec, ModelSpec

SEQUENCE_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
# A prompt of few tokens takes as long as its weights are read, whatever it is padded to; later padding is computed.
TOKEN_BUCKETS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
# What the host takes to launch a layer's ten kernels one by one: benchmarks/gpu/floors.py measured 457 us beside an
# H200. A layer that computes longer hides it all.
EAGER_LAYER_S = 450e-6


def bucket_of(num_sequences: int) -> int:
    """The least bucket that holds the batch; batches beyond the largest are padded to a multiple of it.

    >>> bucket_of(1), bucket_of(17), bucket_of(256), bucket_of(300)
    (1, 24, 256, 512)
    """
    largest = SEQUENCE_BUCKETS[-1]
    if num_sequences > largest:
        return -(-num_sequences // largest) * largest
    return SEQUENCE_BUCKETS[bisect_left(SEQUENCE_BUCKETS, num_sequences)]


def token_bucket_of(num_tokens: int, most_tokens: float) -> int | None:
    """The least bucket that holds a prompt's tokens; None if it has more than `most_tokens`.

    >>> token_bucket_of(20, 300.0), token_bucket_of(256, 300.0), token_bucket_of(257, 300.0), token_bucket_of(1025, 1e9)
    (32, 256, None, None)
    """
    if num_tokens > TOKEN_BUCKETS[-1]:
        return None
    bucket = TOKEN_BUCKETS[bisect_left(TOKEN_BUCKETS, num_tokens)]
    return bucket if bucket <= most_tokens else None


def host_bound_tokens(spec: ModelSpec, device: DeviceSpec, eager_layer_s: float) -> float:
    """Returns how many tokens the device computes in the time in which the host launches a layer of them kernel by
    kernel: layers of longer prompts need no graph. A lane with a share of the SMs computes that share of them.
    """
    params_per_layer = (spec.num_active_params - spec.vocab_size * spec.hidden_size) / spec.num_layers
    return eager_layer_s * device.peak_flops_per_s / (2 * params_per_layer)
