"""Holds what large kernels reach on a share of the SMs, measured: DuetServe's Pi(S) and B(S) (§4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from profiler.operator_costs import bandwidth
from profiler.specs import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRate:
    """Holds the rates of a lane that has `sms` SMs, while the other lane is idle."""

    sms: int
    flops_per_s: float
    bandwidth_bytes_per_s: float


def with_rates(device: DeviceSpec, rates: Sequence[PartitionRate]) -> DeviceSpec:
    """`device` with the peaks of the whole device, which is among `rates`, and the scaling that comes nearest to the
    others, in squares of logarithms (operator_costs.compute_rate and bandwidth).
    """
    whole = next(rate for rate in rates if rate.sms == device.num_sms)
    measured = replace(
        device, peak_flops_per_s=whole.flops_per_s, memory_bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s
    )
    parts = [rate for rate in rates if rate.sms < device.num_sms]
    if not parts:
        return measured
    log_shares = np.log([rate.sms / device.num_sms for rate in parts])
    log_rates = np.log([rate.flops_per_s / whole.flops_per_s for rate in parts])
    exponent = float(np.clip(log_shares @ log_rates / (log_shares @ log_shares), 0.1, 2.0))

    def error(saturation_share: float) -> float:
        candidate = replace(measured, bandwidth_saturation_share=saturation_share)
        ratios = [bandwidth(candidate, rate.sms) / rate.bandwidth_bytes_per_s for rate in parts]
        return float(np.sum(np.log(ratios) ** 2))

    # A share of 3 is as good as proportional to the SMs, one of 0.02 as good as constant.
    saturation_share = min(np.geomspace(0.02, 3.0, 100).tolist(), key=error)
    return replace(measured, compute_scaling_exponent=exponent, bandwidth_saturation_share=saturation_share)
