"""Decides which shares of a device the two lanes can take."""

from collections.abc import Callable, Sequence, Set

from profiler.specs import DeviceSpec


def decode_shares(device: DeviceSpec) -> range:
    """SMs that decode can have while prefill has the rest, ascending, in steps of the device's granularity, one of
    which is the least that a lane can have: 128 of 132 cannot be had where it is 8.
    """
    step = device.partition_granularity_sms
    return range(step, device.num_sms - step + 1, step)


def least_decode_share(device: DeviceSpec, worst_decode_s: Callable[[int], float], target_s: float) -> int | None:
    """The least share whose worst-case decode latency meets the target; else the largest one.

    Prefill gets what remains: the split that meets the TBT target and is best for prefill (MuxWise §3.4.1). None when
    the device cannot be shared (a single SM).
    """
    shares = decode_shares(device)
    return least_share(shares, worst_decode_s, target_s) or max(shares, default=None)


def least_share(shares: Sequence[int], worst_decode_s: Callable[[int], float], target_s: float) -> int | None:
    """The first of the shares whose worst-case decode latency meets the target."""
    return next((share for share in shares if worst_decode_s(share) <= target_s), None)


def ample_decode_share(
    device: DeviceSpec,
    decode_s: Callable[[int], float],
    *,
    tolerance: float,
    known: Set[int],
    bearable_s: float,
) -> int:
    """The least share, up to half of the SMs, on which decode takes at most `1 + tolerance` times as long as on all.

    Decode is bound by memory bandwidth, which a part of the SMs can use up. A prompt can start at once on the others;
    on less than half of them it is better off when it waits for the end of the step and has a fair share then.
    The times of other shares than the `known` are only modelled. More SMs are never slower: of the shares between the
    largest that is known to be too slow and the least that is known not to be, the least that should do is tried, else
    the one next to what is known; if its modelled time is at most `bearable_s`.
    """
    longest_s = (1 + tolerance) * decode_s(device.num_sms)
    if device.num_sms not in known:
        return device.num_sms
    untried: list[int] = []
    least = device.num_sms
    for share in decode_shares(device):
        if share > device.num_sms // 2:
            break
        if share not in known:
            untried.append(share)
        elif decode_s(share) <= longest_s:
            least = share
            break
        else:
            untried.clear()
    if not untried:
        return least
    trial = next((share for share in untried if decode_s(share) <= longest_s), untried[-1])
    return trial if decode_s(trial) <= bearable_s else least


def fixed_decode_share(device: DeviceSpec, share: float) -> int | None:
    """The possible decode share nearest to a fraction of the device; None when the device cannot be shared."""
    return min(decode_shares(device), key=lambda sms: abs(sms - share * device.num_sms), default=None)
