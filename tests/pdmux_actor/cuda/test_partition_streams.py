"""Every share that somebody asks for has a stream, and both lanes' streams of a share are of one pair."""

from types import SimpleNamespace

import pytest
from bookkeeping_driver import NUM_SMS, BookkeepingDriver

from pdmux_actor.errors import PartitioningUnavailable
from pdmux_actor.executor.cuda.green_contexts import GreenContexts
from pdmux_actor.executor.cuda.partition_streams import AtomStreams, PairStreams, PartitionStreams, open_green_streams
from pdmux_actor.scheduling.launch import Lane, decode_shares
from profiler.gpus.h200 import DEVICE as H200
from profiler.sweep import partition_shares


class WholeDevice:
    kind = "whole"
    step_sms = 16
    unpartitioned_reason = None

    def stream(self, lane: Lane, sms: int) -> str:
        return f"whole {lane.value}"

    def part_stream(self, first_sm: int, sms: int) -> str:
        raise AssertionError

    def close(self) -> None:
        pass


def open_streams(driver: BookkeepingDriver, *, divides_decode: bool = False) -> PartitionStreams:
    return open_green_streams(
        lambda: GreenContexts(driver, 0), whole=WholeDevice(), wrap=lambda handle: handle, divides_decode=divides_decode
    )


def sms_of(driver: BookkeepingDriver, stream: int) -> int:
    """Streams are numbered by their contexts."""
    return driver.contexts[stream - 1000]


@pytest.mark.parametrize("joins_groups", [True, False])
def test_stream__every_share_that_policies_choose__is_disjoint_and_nearly_as_large_as_asked(
    joins_groups: bool,
) -> None:
    driver = BookkeepingDriver(joins_groups=joins_groups)
    streams = open_streams(driver)
    device = SimpleNamespace(num_sms=NUM_SMS, partition_granularity_sms=streams.step_sms)
    made = len(driver.contexts)

    for share in decode_shares(device):
        decode, prefill = streams.stream(Lane.DECODE, share), streams.stream(Lane.PREFILL, NUM_SMS - share)
        assert sms_of(driver, decode) + sms_of(driver, prefill) == NUM_SMS
        assert abs(sms_of(driver, decode) - share) <= 8
        assert driver.streams[decode] < driver.streams[prefill]  # a lower number goes first

    assert len(driver.contexts) == made == 2 * 7


@pytest.mark.parametrize("lane", list(Lane))
def test_stream__every_share_that_a_profile_measures__has_about_its_sms(lane: Lane) -> None:
    driver = BookkeepingDriver()
    streams = open_streams(driver)
    device = SimpleNamespace(**{**vars_of(H200), "partition_granularity_sms": streams.step_sms})

    for share in partition_shares(device)[:-1]:
        assert abs(sms_of(driver, streams.stream(lane, share)) - share) <= 8
        assert streams.stream(lane, share) == streams.stream(lane, share)

    streams.close()
    assert (driver.contexts, driver.streams) == ({}, {})


def vars_of(spec: object) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__slots__}


def test_stream__whole_device__is_outside_all_partitions() -> None:
    streams = open_streams(BookkeepingDriver())

    assert streams.stream(Lane.DECODE, NUM_SMS) == "whole decode"
    assert streams.unpartitioned_reason is None


def test_open__driver_without_green_contexts__leaves_nothing_behind() -> None:
    driver = BookkeepingDriver(broken="cuGreenCtxStreamCreate", breaks_after=5)

    with pytest.raises(PartitioningUnavailable, match="cuGreenCtxStreamCreate"):
        open_streams(driver)

    assert driver.contexts == {}


@pytest.mark.parametrize(("num_sms", "shares"), [(16, [8]), (32, [8, 16, 24]), (60, [8, 16, 24, 32, 40, 48])])
def test_stream__slice_of_a_gpu__is_cut_finer(num_sms: int, shares: list[int]) -> None:
    driver = BookkeepingDriver(num_sms=num_sms)
    streams = open_streams(driver)
    device = SimpleNamespace(num_sms=num_sms, partition_granularity_sms=streams.step_sms)

    assert list(decode_shares(device)) == shares
    for share in shares:
        decode, prefill = streams.stream(Lane.DECODE, share), streams.stream(Lane.PREFILL, num_sms - share)
        assert sms_of(driver, decode) + sms_of(driver, prefill) == num_sms


def test_open__gpu_too_small_for_two_partitions__says_so() -> None:
    with pytest.raises(PartitioningUnavailable, match="14 SMs are too few for two partitions of 8; use a larger slice"):
        open_streams(BookkeepingDriver(num_sms=14))


def test_parts__of_decode_beside_prefill__have_no_sm_in_common() -> None:
    driver = BookkeepingDriver()
    streams = open_streams(driver, divides_decode=True)
    made = len(driver.numbers)

    parts = [streams.part_stream(0, 32), streams.part_stream(32, 16), streams.part_stream(48, 48)]
    prefill = streams.stream(Lane.PREFILL, NUM_SMS - 96)

    assert [sms_of(driver, part) for part in parts] == [32, 16, 48]
    assert sms_of(driver, prefill) == NUM_SMS - 96
    assert driver.numbers[made:] == [[4, 5], [6, 7, 8, 9, 10, 11]]  # what decode has alone was there
    assert driver.streams[parts[1]] < driver.streams[prefill]
    assert streams.part_stream(32, 16) == parts[1]
    assert streams.stream(Lane.DECODE, 32) == parts[0]
    assert streams.stream(Lane.DECODE, NUM_SMS) == "whole decode"
    streams.close()
    assert (driver.contexts, driver.streams) == ({}, {})


@pytest.mark.parametrize("most_groups", [16, 14])
def test_stream__lanes_of_different_splits__have_no_sm_in_common(most_groups: int) -> None:
    """A driver may make fewer groups than the SMs allow: the last one has the rest then."""
    driver = BookkeepingDriver(most_groups=most_groups)
    streams = open_streams(driver)
    shares = decode_shares(SimpleNamespace(num_sms=NUM_SMS, partition_granularity_sms=streams.step_sms))

    for decode_share in shares:
        for prefill_share in (NUM_SMS - share for share in shares if share >= decode_share):
            decode, prefill = (streams.stream(Lane.DECODE, decode_share), streams.stream(Lane.PREFILL, prefill_share))
            common = driver.sms_of[decode - 1000] & driver.sms_of[prefill - 1000]
            assert not common, f"{decode_share} beside {prefill_share}"
            assert streams.sms_given(Lane.DECODE, decode_share) == len(driver.sms_of[decode - 1000])
            assert streams.sms_given(Lane.PREFILL, prefill_share) == len(driver.sms_of[prefill - 1000])


def test_open__driver_that_splits_too_coarsely__makes_pairs(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(open_streams(BookkeepingDriver(most_groups=7)), PairStreams)
    assert "the least that prefill can have for 68 is 76" in caplog.text


def test_open__driver_that_joins_no_groups__makes_pairs_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    driver = BookkeepingDriver(joins_groups=False)

    streams = open_streams(driver)

    assert isinstance(streams, PairStreams)
    assert "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" in caplog.text
    assert streams.sms_given(Lane.DECODE, 48) == 48
    assert len(driver.contexts) == 2 * 7
    with pytest.raises(AssertionError, match="not divided"):
        streams.part_stream(0, 16)
    with pytest.raises(PartitioningUnavailable, match="INVALID_RESOURCE"):
        open_streams(BookkeepingDriver(joins_groups=False), divides_decode=True)


def test_open__driver_that_splits_nothing__is_unavailable() -> None:
    with pytest.raises(PartitioningUnavailable, match="cuDevSmResourceSplitByCount"):
        open_streams(BookkeepingDriver(broken="cuDevSmResourceSplitByCount"))


def test_open__first_context_refused_midway__atoms_leave_nothing_behind() -> None:
    driver = BookkeepingDriver(broken="cuGreenCtxCreate", breaks_after=3)

    with pytest.raises(PartitioningUnavailable, match="cuGreenCtxCreate"):
        AtomStreams(GreenContexts(driver, 0), whole=WholeDevice(), wrap=lambda handle: handle)

    assert (driver.contexts, driver.streams) == ({}, {})
