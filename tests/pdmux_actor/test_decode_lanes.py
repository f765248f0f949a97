"""Several decodes at once: each model one at a time, on SMs of its own, as fast as the memory bandwidth allows."""

from dataclasses import replace
from itertools import pairwise

import pytest
from engine_rig import INFOS, PLAIN, VirtualEngine, make_device, make_request
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmux_actor.engine import Timetable
from pdmux_actor.executor.simulated import SimulatedExecutor
from pdmux_actor.scheduling.bubbles import lane_shares, logged_window
from pdmux_actor.scheduling.chrome_trace import chrome_trace
from pdmux_actor.scheduling.decision import Decision, DecisionKind, LogExcerpt
from pdmux_actor.scheduling.decision_log import DecisionLog
from pdmux_actor.scheduling.decode_outlook import DecodeOutlook
from pdmux_actor.scheduling.events import Arrival, AttachModel
from pdmux_actor.scheduling.launch import (
    DecodePart,
    DecodeStep,
    DropPrefill,
    Lane,
    LaunchCompletion,
    PrefillSlice,
    Repartition,
)
from pdmux_actor.scheduling.launches_in_flight import LanesInFlight, LaunchInFlight
from pdmux_actor.scheduling.policies.decode_lanes import Division, divide
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.prediction import LatencyPredictor
from profiler.bandwidth_sharing import DecodeReads, slowdown_beside
from profiler.contention import ContentionGuard

MODELS = "abc"


class SharesChecked(SimulatedExecutor):
    """Launches in flight have SMs of their own; `most_decodes` is the most that were in flight at once."""

    most_decodes = 0

    def submit(self, launch):
        if isinstance(launch, DropPrefill):
            return
        super().submit(launch)
        if isinstance(launch, Repartition):
            return
        self.in_air = {**getattr(self, "in_air", {}), id(launch): (launch, self._sms(launch))}
        held = [sm for _, sms in self.in_air.values() for sm in sms]
        assert len(held) == len(set(held)), "launches share SMs"
        assert set(held) <= set(range(self.device.num_sms))
        models = [launch.model for launch, _ in self.in_air.values() if launch.lane is Lane.DECODE]
        assert len(models) == len(set(models)), "a model decodes twice at once"
        self.most_decodes = max(self.most_decodes, len(models))

    def wait(self, deadline_s):
        completions = super().wait(deadline_s)
        for done in completions:
            self.in_air.pop(id(done.launch))
        return completions

    def _sms(self, launch):
        total, shares = self.device.num_sms, self._partition
        if launch.lane is Lane.PREFILL:
            return range(total - shares.prefill_sms, total)
        part = launch.part if isinstance(launch, DecodeStep) else None
        return range(shares.decode_sms) if part is None else range(part.first_sm, part.end_sm)


def run(policy="adbs", *, lanes=3, num_sms=6, models=MODELS, max_tokens=20, **options):
    arrivals = [
        (0.001 * i, Arrival(make_request(f"r{i}", models[i % len(models)], 5 + 11 * i % 60, max_tokens, first=i)))
        for i in range(9)
    ]
    return VirtualEngine(
        arrivals,
        policy=policy,
        models=models,
        num_sms=num_sms,
        settings=replace(PLAIN, decode_lanes=lanes, **options),
        executor_type=SharesChecked,
    ).run()


def test_adbs__several_models_decode__they_do_it_at_once_and_say_the_same():
    one, three = run(lanes=1), run(lanes=3)

    assert (one.executor.most_decodes, three.executor.most_decodes) == (1, 3)
    assert {f"r{i}": three.tokens_of(f"r{i}") for i in range(9)} == {f"r{i}": one.tokens_of(f"r{i}") for i in range(9)}
    assert three.executor.now() < 0.6 * one.executor.now()
    beside_prefill = [d for d in three.scheduler.log.decisions() if d.kind == "decode" and d.prefill_sms]
    assert any(d.part_sms == 1 for d in beside_prefill)


def test_mux__two_models_that_one_core_serves_as_fast_as_two__decode_at_once_on_a_core_each():
    alone = [(0.0, "a", 30), (1.0, "b", 30)]  # a step is measured on two cores, and on one
    together = [(2.0, "a", 200), (2.0, "b", 200)]
    engine = VirtualEngine(
        [
            (at_s, Arrival(make_request(f"r{i}", model, 16, max_tokens, first=i)))
            for i, (at_s, model, max_tokens) in enumerate([*alone, *together])
        ],
        models="ab",
        num_sms=2,
        settings=replace(PLAIN, decode_lanes=4),
        executor_type=SharesChecked,
    ).run()

    steps = [d for d in engine.scheduler.log.decisions() if d.kind == "decode"]
    assert {d.decode_sms for d in steps[:60]} == {1, 2}
    assert {d.part_sms for d in steps[-100:-10]} == {1}


def test_adbs__lanes_are_fewer_than_models__models_take_turns():
    engine = run(lanes=2, num_sms=4)

    assert engine.executor.most_decodes == 2
    steps = [d for d in engine.scheduler.log.decisions() if d.kind == "decode"]
    assert {d.decode_lane for d in steps} == {0, 1}
    models = [d.model for d in steps]
    models = models[models.index("c") :][:30]  # its prompt was the last
    assert all(set(models[i : i + 4]) == set(MODELS) for i in range(len(models) - 3))


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"adbs", "mux", "muxwise"}))
def test_policies__that_ask_for_one_decode__do_not_mind_more_lanes(policy):
    one, four = (run(policy, lanes=lanes).scheduler.log.decisions() for lanes in (1, 4))

    assert four == one


def test_log__decodes_at_once__have_lanes_and_tracks_of_their_own():
    engine = run()
    log = engine.scheduler.log
    decisions = log.decisions()
    start_s, end_s = logged_window(decisions)

    share = lane_shares(decisions, start_s, end_s)[Lane.DECODE]
    assert share.busy <= 1.0
    assert 1.5 < share.mean_launches <= 3
    report = engine.scheduler.load_report()
    assert 1 < report.decode_launches_at_once <= 3
    trace = chrome_trace({"u": LogExcerpt(decisions=tuple(decisions), now_s=end_s, unix_s=end_s)})
    names = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert [names[tid] for tid in (1, 2, 5, 6)] == ["prefill", "decode", "decode 2", "decode 3"]
    for tid in (2, 5, 6):
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in trace if e["ph"] == "X" and e["tid"] == tid)
        assert spans
        assert all(left[1] <= right[0] + 0.01 for left, right in pairwise(spans))


def test_log__since__finds_what_each_lane_had_in_flight():
    log = DecisionLog(100, 6)
    flying = {}
    for i, part in enumerate([None, 1, 2, 1, 1]):
        launch = _step("abcde"[i], part)
        if (done := flying.pop(part, None)) is not None:
            log.land(LaunchCompletion(launch=done, started_s=0.0, finished_s=float(i)))
        flying[part] = launch
        log.take_off(float(i), launch, predicted_s=1.0, ready_s=None, used_blocks=0)

    assert [d.model for d in log.since(3.5)] == ["e", "d", "c", "a"]


def _step(model, index=None):
    return DecodeStep(model=model, sequences=(), part=None if index is None else DecodePart(index, 2 * index, 2))


def test_lane_shares__spans_that_overlap__count_once_as_busy():
    def decode(index, started_s, finished_s, lane=0):
        return Decision(
            index=index, now_s=0.0, kind=DecisionKind.DECODE, prefill_sms=0, decode_sms=4, decode_lane=lane,
            started_s=started_s, finished_s=finished_s,
        )  # fmt: skip

    share = lane_shares([decode(0, 0.0, 6.0), decode(1, 2.0, 8.0, 1), decode(2, 7.0, 8.0)], 0.0, 10.0)[Lane.DECODE]
    assert (share.busy, share.further) == (pytest.approx(0.8), pytest.approx(0.5))
    assert share.mean_launches == pytest.approx(1.625)


# ---- shares ----


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pdl"), st.integers(0, 7), st.integers(1, 8)), max_size=40))
def test_lanes__any_order_of_launches__shares_are_disjoint_and_within_the_device(steps):
    total, clock = 8, 0.0
    lanes = LanesInFlight(total)
    flying: list[LaunchInFlight] = []
    for kind, which, sms in steps:
        clock += 1.0
        if kind == "l" and flying:
            landed = flying.pop(which % len(flying))
            assert lanes.land(landed.launch, clock) is landed
            assert 0 <= landed.company_s <= clock - landed.took_off_s
            assert landed.decode_company_s <= landed.company_s
            continue
        decodes = [f for f in flying if f.launch.lane is Lane.DECODE]
        end_sm = max((f.end_sm for f in decodes), default=0)
        if kind == "p" and len(decodes) == len(flying) and sms <= total - end_sm:
            partition = lanes.place_prefill(sms)
            launch = PrefillSlice(batch_id=1, model="m", chunks=(), first_layer=0, last_layer=1)
            flying.append(
                LaunchInFlight(launch=launch, sms=sms, modelled_s=1.0, took_off_s=clock, first_sm=total - sms)
            )
        elif kind == "d" and any(end - start >= sms for start, end in lanes.decode_gaps()):
            if any(f.launch.model == str(which) for f in decodes):
                continue
            part, partition = lanes.place_decode(sms)
            first_sm = 0 if part is None else part.first_sm
            launch = DecodeStep(model=str(which), sequences=(), part=part)
            assert part is not None or lanes.partition.decode_sms == sms
            flying.append(LaunchInFlight(launch=launch, sms=sms, modelled_s=1.0, took_off_s=clock, first_sm=first_sm))
        else:
            continue
        lanes.take_off(flying[-1])
        assert partition is None or partition == lanes.partition
        held = [sm for f in flying for sm in range(f.first_sm, f.end_sm)]
        assert len(held) == len(set(held))
        assert lanes.partition.prefill_sms + lanes.partition.decode_sms <= total
        assert all(f.end_sm <= lanes.partition.decode_sms for f in flying if f.launch.lane is Lane.DECODE)


def test_repartition__part_beyond_the_decode_share__is_refused():
    executor = run().executor
    executor.submit(Repartition(prefill_sms=4, decode_sms=2))
    with pytest.raises(AssertionError, match="exceeds"):
        SimulatedExecutor.submit(executor, DecodeStep(model="a", sequences=(), part=DecodePart(1, 2, 2)))
    with pytest.raises(AssertionError, match="exceeds"):
        executor.submit(Repartition(prefill_sms=4, decode_sms=3))


# ---- bandwidth ----


def _bound_device(step_bytes_share):
    """On which a step of 4.1 ms of model a reads for this share of its time."""
    step_bytes = DecodeReads(INFOS["a"].spec).bytes([8])
    return replace(make_device(6), memory_bandwidth_bytes_per_s=step_bytes / (0.0041 * step_bytes_share))


class BoundByBandwidth(SharesChecked):
    def __init__(self, *, device, **options):
        super().__init__(device=_bound_device(self.share), **options)


class OnlyReads(BoundByBandwidth):
    share = 1.0


class ReadsLittle(BoundByBandwidth):
    share = 0.1


@pytest.mark.parametrize(("kind", "gains"), [(OnlyReads, False), (ReadsLittle, True)])
def test_simulated__two_models_at_once__are_no_faster_than_the_bandwidth(kind, gains):
    infos = {"a": INFOS["a"], "again": replace(INFOS["a"], model="again")}
    duration_s = {}
    for lanes in (1, 2):
        arrivals = [(0.0, Arrival(make_request(m, m, 8, 50))) for m in infos]
        engine = _engine_of(infos, arrivals, lanes=lanes, executor_type=kind).run()
        duration_s[lanes] = engine.executor.now()

    ratio = duration_s[2] / duration_s[1]
    assert (0.45 < ratio < 0.6) if gains else (0.97 < ratio < 1.1)


def _engine_of(infos, arrivals, *, lanes, executor_type):
    engine = VirtualEngine(
        [], policy="adbs", models=(), num_sms=6, settings=replace(PLAIN, decode_lanes=lanes),
        executor_type=executor_type,
    )  # fmt: skip
    timetable = Timetable([*[(0.0, AttachModel(info, 200)) for info in infos.values()], *arrivals])
    engine.timetable = engine.loop._events = timetable
    return engine


def test_predictor__steps_beside_steps__teach_nothing_about_steps_alone():
    """They are 1.5 times slower than sharing the bandwidth explains: that is learned apart."""
    info = INFOS["a"]
    predictor = LatencyPredictor(_Constant())
    launch = DecodeStep(model="a", sequences=())

    def learn(measured_s, **company):
        flight = LaunchInFlight(launch=launch, sms=2, modelled_s=0.01, took_off_s=0.0, **company)
        predictor.learn(flight, LaunchCompletion(launch=launch, started_s=0.0, finished_s=measured_s))

    learn(0.02)
    learn(
        0.02 * slowdown_beside(0.5, 0.4) * 1.5,
        company_s=1.0,
        decode_company_s=1.0,
        draws=lambda: 0.5,
        beside_demand=0.4,
    )
    outlook = predictor.decode_outlook("a", info.spec, [])

    assert outlook.solo_s(2) == pytest.approx(0.02)
    assert outlook.beside_decodes_factor(2) == pytest.approx(1.5)
    flight = LaunchInFlight(launch=launch, sms=2, modelled_s=0.01, took_off_s=0.0, draws=lambda: 0.5, beside_demand=0.4)
    assert predictor.expected_s(flight, beside_other_lane=False) == pytest.approx(0.02 * 1.2 * 1.5)


class _Constant:
    def decode_s(self, spec, context_tokens, sms):
        return 0.01

    prefill_s = mixed_s = decode_s


# ---- how many lanes ----


def _outlook(step_s, read_share, *, device, beside=None):
    """Of a step that takes `step_s` on any share and reads for `read_share` of it."""
    reads = _Reads(read_share * step_s * device.memory_bandwidth_bytes_per_s)
    return DecodeOutlook(lambda: reads, [8], lambda sms: step_s, None, beside, ContentionGuard())


class _Reads(DecodeReads):
    __slots__ = ("_num_bytes",)

    def __init__(self, num_bytes):
        super().__init__(INFOS["a"].spec)
        self._num_bytes = num_bytes

    def bytes(self, context_tokens):
        return self._num_bytes


class _Slow:
    def factor(self, sms, bucket):
        return 3.0


def test_divide__steps_that_only_read__run_one_after_the_other():
    device = make_device(8)
    outlooks = [_outlook(0.01, 1.0, device=device) for _ in range(4)]

    assert divide(device, outlooks, 8, 4) == Division(1, 8, pytest.approx(0.04))


def test_divide__steps_that_wait_most_of_their_time__run_at_once():
    device = make_device(8)
    outlooks = [_outlook(0.01, 0.1, device=device) for _ in range(4)]

    division = divide(device, outlooks, 8, 4)

    assert (division.lanes, division.sms) == (4, 2)
    assert division.cycle_s == pytest.approx(0.01 * 1.03)


def test_divide__one_long_step_among_short_ones__sets_the_pace():
    device = make_device(8)
    outlooks = [_outlook(s, 0.0, device=device) for s in (0.06, 0.01, 0.01, 0.01)]

    assert divide(device, outlooks, 8, 4) == Division(2, 4, pytest.approx(0.06))


def test_divide__parts_would_be_less_than_a_step_of_the_device__fewer_lanes():
    device = replace(make_device(8), partition_granularity_sms=3)
    outlooks = [_outlook(0.01, 0.0, device=device) for _ in range(4)]

    assert divide(device, outlooks, 8, 4) == Division(2, 3, pytest.approx(0.02))
    assert divide(device, outlooks, 5, 4).lanes == 1


def test_divide__company_was_seen_to_cost_more_than_it_gains__one_after_the_other():
    device = make_device(8)
    outlooks = [_outlook(0.01, 0.1, device=device, beside=_Slow()) for _ in range(2)]

    assert divide(device, outlooks, 8, 4).lanes == 1
