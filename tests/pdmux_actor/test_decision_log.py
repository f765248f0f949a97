"""What the log of a run in virtual time tells: predictions, spans, bubbles."""

from dataclasses import replace
from itertools import pairwise

import pytest
from engine_rig import PLAIN, VirtualEngine, make_request

from pdmux_actor.scheduling.bubbles import lane_shares, logged_window
from pdmux_actor.scheduling.decision import Decision, DecisionKind
from pdmux_actor.scheduling.decision_log import DecisionLog
from pdmux_actor.scheduling.events import Abort, Arrival
from pdmux_actor.scheduling.launch import DecodeStep, Lane, LaunchCompletion, Repartition
from pdmux_actor.scheduling.policies.registry import POLICIES

TIGHT_S = 0.006


def decode_beside_prefill(policy="muxwise", **settings):
    """A sequence decodes when a long prompt arrives."""
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=80, tbt_s=TIGHT_S))),
        (0.05, Arrival(make_request("long", prompt_tokens=200, max_tokens=2, tbt_s=TIGHT_S))),
    ]
    return VirtualEngine(events, policy=policy, quota_blocks=500, settings=replace(PLAIN, **settings)).run()


def logged(engine, *kinds):
    return [d for d in engine.scheduler.log.decisions() if d.kind in kinds]


def decode_launch():
    return DecodeStep(model="a", sequences=())


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_log__any_policy__every_launch_has_a_span_and_lanes_are_fifo(policy):
    engine = decode_beside_prefill(policy)

    for lane in Lane:
        spans = [d for d in engine.scheduler.log.decisions() if d.lane is lane]
        assert all(d.now_s <= d.started_s < d.finished_s for d in spans)
        assert all(a.finished_s <= b.started_s for a, b in pairwise(spans))
        assert all(d.predicted_s > 0 and d.used_blocks > 0 and not d.failed for d in spans)
        assert all(d.prefill_sms + d.decode_sms == 2 for d in spans)


def test_log__prefill_slice__says_what_was_launched():
    (whole,) = [d for d in logged(decode_beside_prefill(layer_slicing=False), DecisionKind.PREFILL) if d.batch_id == 2]

    assert (whole.model, whole.first_layer, whole.last_layer, whole.chunks) == ("a", 0, 4, ((0, 200),))
    assert whole.prompt_tokens == 200
    assert (whole.prefill_sms, whole.decode_sms) == (1, 1)
    assert whole.request_ids == ("long",)


def test_log__decode_beside_prefill__prediction_has_the_guard():
    """The simulated device slows a decode down by 1.15 beside a prefill; the guard starts from 1.3."""
    decodes = logged(decode_beside_prefill(), DecisionKind.DECODE)
    beside = [d for d in decodes if d.prefill_sms == 1 and d.bubble_s == 0 and d.num_decoding == 1]
    alone = [d for d in decodes if d.prefill_sms == 0 and d.steps == 1 and d.num_decoding == 1]

    assert min(d.predicted_s for d in beside) > 1.1 * alone[-1].predicted_s
    assert all(d.measured_s <= d.predicted_s + 1e-9 for d in beside)
    assert alone[-1].measured_s == pytest.approx(alone[-1].predicted_s)


def test_log__dropped_batch__is_noted():
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=200, tbt_s=0.005))),
        (0.05, Arrival(make_request("long", prompt_tokens=150, max_tokens=4, tbt_s=0.005))),
        (0.065, Abort("long")),
    ]
    (drop,) = logged(VirtualEngine(events, quota_blocks=400).run(), DecisionKind.DROP)

    assert drop.lane is None
    assert drop.launch == f"drop batch {drop.batch_id}"


def test_ring__more_decisions_than_it_holds__keeps_the_newest():
    log = DecisionLog(3, total_sms=4)
    for i in range(5):
        log.instruct(float(i), Repartition(prefill_sms=i, decode_sms=4 - i))

    assert [d.index for d in log.decisions()] == [2, 3, 4]
    assert [d.index for d in log.decisions(2)] == [3, 4]
    assert log.decisions(0) == []
    assert log.decisions(99) == log.decisions()


def test_ring__launch_lands_after_the_ring_came_round__is_no_error():
    log, launch = DecisionLog(2, total_sms=4), decode_launch()
    log.take_off(0.0, launch, predicted_s=1.0, ready_s=None, used_blocks=0)
    for i in range(2):
        log.instruct(1.0, Repartition(prefill_sms=i, decode_sms=4 - i))

    log.land(LaunchCompletion(launch=launch, started_s=0.0, finished_s=2.0))

    assert [d.kind for d in log.decisions()] == [DecisionKind.PARTITION] * 2


def test_ring__failed_launch__says_so():
    log, launch = DecisionLog(2, total_sms=4), decode_launch()
    log.take_off(0.0, launch, predicted_s=1.0, ready_s=None, used_blocks=0)
    assert log.decisions()[0].measured_s is None

    log.land(LaunchCompletion(launch=launch, started_s=0.5, finished_s=2.0, error="out of memory"))

    (decision,) = log.decisions()
    assert (decision.measured_s, decision.failed) == (1.5, True)


def test_since__long_launch_before_the_window__is_included_and_older_ones_are_not():
    log = DecisionLog(100, total_sms=4)
    for start_s in (0.0, 1.0, 2.0, 3.0):
        launch = decode_launch()
        log.take_off(start_s, launch, predicted_s=1.0, ready_s=None, used_blocks=0)
        log.land(LaunchCompletion(launch=launch, started_s=start_s, finished_s=start_s + 1))

    assert [d.now_s for d in log.since(2.5)] == [3.0, 2.0]


def test_bubbles__decode_made_to_wait_for_the_merge__shows_on_the_decode_lane():
    """Without query-based synchronisation decode idles while the last prefill slice runs (MuxWise, section 3.2.3)."""
    waits, goes_on = (
        [d.bubble_s for d in logged(decode_beside_prefill(query_sync=q), DecisionKind.DECODE)] for q in (False, True)
    )
    assert sum(waits) > 0.004
    assert sum(goes_on) == pytest.approx(0.0)


def test_bubbles__nothing_to_do__is_no_bubble():
    events = [(at_s, Arrival(make_request(f"r{at_s}", max_tokens=3))) for at_s in (0.0, 1.0, 5.0)]
    decisions = VirtualEngine(events).run().scheduler.log.decisions()

    shares = lane_shares(decisions, *logged_window(decisions))

    assert shares[Lane.PREFILL].busy + shares[Lane.DECODE].busy < 0.1
    assert [share.bubble for share in shares.values()] == pytest.approx([0.0, 0.0])


def test_bubbles__whole_device_in_turns__waiting_for_the_other_lane_is_no_bubble():
    engine = decode_beside_prefill("prefill_first")
    decisions = engine.scheduler.log.decisions()

    shares = lane_shares(decisions, *logged_window(decisions))

    assert shares[Lane.PREFILL].busy > 0.1
    assert [share.bubble for share in shares.values()] == pytest.approx([0.0, 0.0])


def test_shares__window_cuts_spans_and_bubbles():
    def decode(index, **times):
        return Decision(index=index, now_s=0.0, kind=DecisionKind.DECODE, prefill_sms=0, decode_sms=4, **times)

    decisions = [decode(0, started_s=0.0, finished_s=2.0), decode(1, ready_s=2.0, started_s=6.0)]

    assert lane_shares(decisions, 1.0, 5.0)[Lane.DECODE].busy == 0.25
    assert lane_shares(decisions, 1.0, 5.0)[Lane.DECODE].bubble == 0.75
    assert lane_shares(decisions, 5.0, 9.0)[Lane.DECODE].busy == 0.75  # in flight: busy to the end of the window
    assert lane_shares(decisions, 5.0, 5.0)[Lane.DECODE].bubble_ratio == 0.0


def test_load_report__decode_waits__tells_the_share():
    events = [(0.0, Arrival(make_request("decoding", max_tokens=400, tbt_s=TIGHT_S)))]
    events += [(0.05 + 0.1 * i, Arrival(make_request(f"p{i}", prompt_tokens=200, max_tokens=2))) for i in range(20)]
    reports = []
    for query_sync in (False, True):
        settings = replace(PLAIN, query_sync=query_sync)
        engine = VirtualEngine(events, policy="muxwise", quota_blocks=600, settings=settings)
        while engine.executor.now() < 1.5:
            engine.loop.turn()
        reports.append(engine.scheduler.load_report())

    assert reports[0].decode_bubble_share > 0.01
    assert reports[1].decode_bubble_share == pytest.approx(0.0, abs=1e-9)
