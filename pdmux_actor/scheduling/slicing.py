"""Works out how many layers of a prefill run beside decode."""

import math

_LONGEST_SLICE_STEPS = 1.5


def layers_per_slice(decode_s: float, prefill_s: float, num_layers: int) -> int:
    """N_PL = ceil(T_d * N_T / T_P), at least 1 and at most N_T (MuxWise §3.4.1).

    The slice then lasts about as long as the decode work beside it, so neither lane waits for the other.

    >>> layers_per_slice(decode_s=0.02, prefill_s=0.4, num_layers=32)
    2
    >>> layers_per_slice(decode_s=1.0, prefill_s=0.4, num_layers=32)
    32
    """
    if prefill_s <= 0:
        return num_layers
    return max(1, min(num_layers, math.ceil(decode_s * num_layers / prefill_s)))


def layers_within(decode_s: float, prefill_s: float, num_layers: int) -> int:
    """N_PL, but no more layers than take one and a half times `decode_s`, unless that is less than one.

    Rounding up makes a slice of two layers that take 0.9 decode steps each: nothing else can start meanwhile.

    >>> layers_within(decode_s=1.0, prefill_s=28.8, num_layers=32), layers_per_slice(1.0, 28.8, 32)
    (1, 2)
    >>> layers_within(decode_s=1.0, prefill_s=13.0, num_layers=32)
    3
    """
    longest = num_layers if prefill_s <= 0 else int(_LONGEST_SLICE_STEPS * decode_s * num_layers / prefill_s)
    return max(1, min(longest, layers_per_slice(decode_s, prefill_s, num_layers)))
