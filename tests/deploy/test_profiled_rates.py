from dataclasses import replace

from deploy.profiling.profile_runs import _with_rates
from profiler.gpus.h200 import DEVICE as H200
from profiler.operator_costs import bandwidth, compute_rate
from profiler.partition_rates import PartitionRate
from profiler.profile import Profile

PROFILE = Profile(engine="native", device=replace(H200, name="of a test"), num_gpus=1, machine={}, models={})
RATES = tuple(
    PartitionRate(sms=sms, flops_per_s=compute_rate(H200, sms), bandwidth_bytes_per_s=bandwidth(H200, sms) / 2)
    for sms in (16, 64, 132)
)


class Opened:
    """A ProfiledEngine of which only rates are asked."""

    device = H200

    def __init__(self, rates: tuple[PartitionRate, ...]) -> None:
        self.rates, self.asked = rates, 0

    def partition_rates(self) -> tuple[PartitionRate, ...]:
        self.asked += 1
        return self.rates


def test_profile__of_a_partitioned_gpu__has_its_rates_and_measures_them_once() -> None:
    opened = Opened(RATES)

    profile = _with_rates(PROFILE, opened)
    again = _with_rates(profile, opened)

    assert profile.partition_rates == RATES
    assert profile.device.memory_bandwidth_bytes_per_s == H200.memory_bandwidth_bytes_per_s / 2
    assert (again, opened.asked) == (profile, 1)


def test_profile__of_cores__keeps_its_device() -> None:
    assert _with_rates(PROFILE, Opened(())) == PROFILE
