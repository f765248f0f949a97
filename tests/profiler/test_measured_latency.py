from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_cases import SMALL, eq_1_and_2, measured

from profiler.fitted import FittedLatency
from profiler.gpus.h100 import DEVICE as H100
from profiler.latency import ChunkShape, LatencyModel, decode_by_share
from profiler.measured import MeasuredLatency
from profiler.measurement import Measurement
from profiler.probe import LaunchShape
from profiler.roofline import RooflineLatency
from profiler.table import TableLatency

BEYOND = RooflineLatency(H100)
FITTED = FittedLatency.fit({SMALL: measured(eq_1_and_2, 32, 64)}, beyond=BEYOND)
TABLE = TableLatency.fit({SMALL: measured(eq_1_and_2, 32, 64)}, beyond=BEYOND)

both = pytest.mark.parametrize("latency", [FITTED, TABLE], ids=["fitted", "table"])
chunks = st.lists(st.builds(ChunkShape, st.integers(1, 512), st.integers(0, 1024)), max_size=3)
contexts = st.lists(st.integers(0, 2048), max_size=16)


@pytest.mark.parametrize("latency", [FITTED, TABLE, BEYOND], ids=["fitted", "table", "roofline"])
@given(contexts=contexts, shares=st.lists(st.integers(1, 132), min_size=1, max_size=6))
def test_decode_by_share__any_batch_measured_or_not__is_decode_s(
    latency: LatencyModel, contexts: list[int], shares: list[int]
) -> None:
    for spec in (SMALL, replace(SMALL, num_layers=9)):
        by_share = decode_by_share(latency)(spec, contexts)
        assert [by_share(sms) for sms in shares] == [latency.decode_s(spec, contexts, sms) for sms in shares]


@both
@given(chunks=chunks, contexts=contexts, sms=st.sampled_from([32, 64]))
def test_measured__world_of_eq_1_and_2__is_predicted_exactly(
    latency: MeasuredLatency, chunks: list[ChunkShape], contexts: list[int], sms: int
) -> None:
    seconds = latency.mixed_s(SMALL, chunks, contexts, sms)

    if not chunks and not contexts:
        assert seconds == 0.0
        return
    new = sum(c.new_tokens for c in chunks)
    squares = sum(c.new_tokens**2 for c in chunks)
    products = sum(c.new_tokens * c.context_tokens for c in chunks)
    prefill_s = (2e-9 * squares + 3e-9 * products + 4e-6 * new) / sms
    assert seconds == pytest.approx(prefill_s + 1e-8 * sum(contexts) + 2e-5 * len(contexts) + 1e-3, rel=1e-6)


@both
def test_measured__partition_between_two__scales_what_scales(latency: MeasuredLatency) -> None:
    prefill = LaunchShape(sms=48, prompts=1, new_tokens=1024)

    assert latency.prefill_s(SMALL, prefill.chunks, 48) == pytest.approx(eq_1_and_2(prefill), rel=1e-6)


@both
def test_measured__partition_beyond_all__scales_the_nearest_as_the_roofline_does(latency: MeasuredLatency) -> None:
    work = [ChunkShape(4096)]
    roofline = BEYOND.prefill_s(SMALL, work, 128) / BEYOND.prefill_s(SMALL, work, 64)

    assert latency.prefill_s(SMALL, work, 128) == pytest.approx(latency.prefill_s(SMALL, work, 64) * roofline)
    assert latency.is_outside(SMALL, work, (), 128)


@pytest.mark.parametrize("kind", [FittedLatency, TableLatency], ids=["fitted", "table"])
def test_measured__one_launch_of_each_phase_on_a_partition__says_how_fast_it_is_and_not_how_it_grows(
    kind: type[FittedLatency | TableLatency],
) -> None:
    def measurement(sms: int, **shape: int) -> Measurement:
        """The roofline's time, on partitions 1.3 times as long."""
        launch = LaunchShape(sms=sms, **shape)
        seconds = (1.0 if sms == 132 else 1.3) * BEYOND.mixed_s(SMALL, launch.chunks, launch.contexts, sms)
        return Measurement(launch=launch, seconds=seconds, high_s=seconds, repeats=1)

    sizes = [{"prompts": 1, "new_tokens": n} for n in (64, 256, 1024, 4096)]
    sizes += [{"sequences": n, "depth": depth} for n in (1, 16, 64) for depth in (128, 1024)]
    whole = [measurement(132, **size) for size in sizes]
    few = [measurement(sms, **size) for sms in (16, 64) for size in (sizes[1], sizes[6])]
    latency = kind.fit({SMALL: [*whole, *few]}, beyond=BEYOND)

    for known in few:
        launch = known.launch
        assert latency.mixed_s(SMALL, launch.chunks, launch.contexts, launch.sms) == pytest.approx(known.seconds)
    for asked in (measurement(sms, **size) for sms in (16, 40, 64) for size in sizes):
        launch = asked.launch
        assert latency.mixed_s(SMALL, launch.chunks, launch.contexts, launch.sms) == pytest.approx(
            asked.seconds, rel=0.3
        )
        if not launch.chunks:
            on = decode_by_share(latency)(SMALL, launch.contexts)
            assert on(launch.sms) == latency.decode_s(SMALL, launch.contexts, launch.sms)
