"""How many layers of a prefill run beside decode."""

import math


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
