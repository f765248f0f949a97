from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_cases import SMALL, eq_1_and_2, measured

from profiler.gpus.h100 import DEVICE as H100
from profiler.latency import ChunkShape, LatencyModel, decode_by_share
from profiler.measured import FittedLatency, MeasuredLatency
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


@pytest.mark.parametrize("kind", [FittedLatency, TableLatency])
def test_measured__lanes_with_shares_of_their_own__each_phase_has_what_lies_between(
    kind: type[FittedLatency] | type[TableLatency],
) -> None:
    rows = [
        row
        for row in measured(eq_1_and_2, 32, 48, 64)
        if row.launch.phase != "mixed" and not (row.launch.sms == 48 and row.launch.phase == "prefill")
    ]
    latency = kind.fit({SMALL: rows}, beyond=BEYOND)
    prefill, decode = LaunchShape(sms=48, prompts=1, new_tokens=1024), LaunchShape(sms=48, sequences=4, depth=64)

    assert latency.prefill_s(SMALL, prefill.chunks, 48) == pytest.approx(eq_1_and_2(prefill), rel=1e-6)
    assert latency.decode_s(SMALL, decode.contexts, 48) == pytest.approx(eq_1_and_2(decode), rel=1e-6)
    assert not latency.is_outside(SMALL, (), decode.contexts, 48)


@both
def test_measured__model_never_measured__is_answered_by_the_roofline(latency: MeasuredLatency) -> None:
    other = replace(SMALL, num_layers=8)

    assert latency.decode_s(other, [64] * 4, 32) == BEYOND.decode_s(other, [64] * 4, 32)
    assert latency.is_outside(other, (), [64], 32)


def stepped(launch: LaunchShape) -> float:
    """Decode in waves of 16 sequences: no sum of features says that."""
    waves = -(-launch.sequences // 16)
    return eq_1_and_2(replace(launch, sequences=0)) + 2e-3 * waves + 1e-8 * launch.features.decode_tokens


@pytest.mark.parametrize("sequences", [1, 4, 16, 64])
def test_table__what_no_equation_says__is_kept_at_measured_points(sequences: int) -> None:
    rows = measured(stepped, 32)
    launch = LaunchShape(sms=32, sequences=sequences, depth=128)

    table = TableLatency.fit({SMALL: rows}, beyond=BEYOND).decode_s(SMALL, launch.contexts, 32)
    fitted = FittedLatency.fit({SMALL: rows}, beyond=BEYOND).decode_s(SMALL, launch.contexts, 32)

    assert table == pytest.approx(stepped(launch), rel=0.03)
    assert abs(fitted / stepped(launch) - 1) > 0.05


@pytest.mark.parametrize(
    ("contexts", "is_outside"),
    [([128] * 4, False), ([500] * 20, False), ([128] * 65, True), ([5000] * 4, True), ([2] * 4, True)],
)
def test_table__query_outside_the_grid__is_marked(contexts: list[int], is_outside: bool) -> None:
    assert TABLE.is_outside(SMALL, (), contexts, 32) is is_outside
    assert not FITTED.is_outside(SMALL, (), contexts, 32)


def test_table__hole_in_the_grid__is_marked_and_plausible() -> None:
    rows = [m for m in measured(eq_1_and_2, 32) if not (m.launch.sequences >= 4 and m.launch.depth >= 128)]
    table = TableLatency.fit({SMALL: rows}, beyond=BEYOND)
    launch = LaunchShape(sms=32, sequences=64, depth=1024)

    assert table.decode_s(SMALL, launch.contexts, 32) == pytest.approx(eq_1_and_2(launch), rel=0.01)


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


@pytest.mark.parametrize("kind", [FittedLatency, TableLatency], ids=["fitted", "table"])
@pytest.mark.parametrize("prefills", [1, 3])
def test_measured__partition_with_few_launches_of_one_phase__keeps_its_fit_of_the_other(
    kind: type[FittedLatency | TableLatency], prefills: int
) -> None:
    whole = measured(eq_1_and_2, 132)
    part = [m for m in measured(lambda launch: 3 * eq_1_and_2(launch), 16) if m.launch.phase == "decode"]
    few = [m for m in measured(eq_1_and_2, 16) if m.launch.phase == "prefill"][:prefills]
    latency = kind.fit({SMALL: [*whole, *part, *few]}, beyond=BEYOND)

    for m in part:
        assert latency.decode_s(SMALL, m.launch.contexts, 16) == pytest.approx(m.seconds, rel=1e-6)
    for m in few:
        assert latency.prefill_s(SMALL, m.launch.chunks, 16) == pytest.approx(m.seconds, rel=0.5)
