import math
from dataclasses import replace

import pytest

from profiler.gpus.h200 import DEVICE as H200
from profiler.operator_costs import bandwidth, compute_rate
from profiler.partition_rates import PartitionRate, with_rates

TRUTH = replace(
    H200,
    peak_flops_per_s=7e14,
    memory_bandwidth_bytes_per_s=4e12,
    compute_scaling_exponent=0.9,
    bandwidth_saturation_share=0.3,
)


def rates_of(shares: tuple[int, ...], noise: float = 0.0) -> list[PartitionRate]:
    wave = [1 + noise * math.sin(7 * sms) for sms in shares]
    return [
        PartitionRate(
            sms=sms,
            flops_per_s=compute_rate(TRUTH, sms) * w,
            bandwidth_bytes_per_s=bandwidth(TRUTH, sms) / w,
        )
        for sms, w in zip(shares, wave, strict=True)
    ]


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_with_rates__of_a_device_that_scales_so__gives_its_rates_on_every_share(noise: float) -> None:
    measured = with_rates(H200, rates_of((16, 32, 64, 96, 132), noise))

    for sms in (16, 48, 80, 112, 132):
        assert compute_rate(measured, sms) == pytest.approx(compute_rate(TRUTH, sms), rel=0.02 + 2 * noise)
        assert bandwidth(measured, sms) == pytest.approx(bandwidth(TRUTH, sms), rel=0.02 + 2 * noise)


def test_with_rates__whole_device_only__keeps_the_scaling() -> None:
    measured = with_rates(H200, rates_of((132,)))

    assert measured.peak_flops_per_s == TRUTH.peak_flops_per_s
    assert measured.bandwidth_saturation_share == H200.bandwidth_saturation_share


@pytest.mark.parametrize(("exponent", "bound"), [(5.0, 2.0), (-1.0, 0.1)])
def test_with_rates__shares_that_scale_absurdly__stay_within_bounds(exponent: float, bound: float) -> None:
    rates = [
        PartitionRate(sms=sms, flops_per_s=(sms / 132) ** exponent, bandwidth_bytes_per_s=1.0) for sms in (16, 64, 132)
    ]

    assert with_rates(H200, rates).compute_scaling_exponent == pytest.approx(bound)
