"""The share of the SMs that the default policy gives to decode, beside a prompt and alone."""

import pytest
from engine_rig import LinearLatency, VirtualEngine, make_device, make_request

from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.launch import ample_decode_share
from pdmux_actor.scheduling.policies.request_delays import PrefillLoad


class MemoryBoundFromHalf(LinearLatency):
    """On 8 SMs: decode is as fast on four as on all, and prefill takes what it is given."""

    def decode_s(self, spec, context_tokens, sms):
        return 0.004 * max(1.0, 4 / sms)


def shares_beside_prompts(policy, events):
    engine = VirtualEngine(events, policy=policy, quota_blocks=600, num_sms=8, latency=MemoryBoundFromHalf()).run()
    return [d.decode_sms for d in engine.scheduler.log.decisions() if d.kind == "decode" and d.prefill_sms]


def some_decode(*, running=4):
    """Prompts under a loose target, one after the other, while other sequences decode."""
    first = [(0.0, Arrival(make_request(f"f{i}", max_tokens=100, tbt_s=0.1, first=i + 9))) for i in range(running)]
    later = [
        (0.1 * i, Arrival(make_request(f"r{i}", prompt_tokens=400, max_tokens=20, tbt_s=0.1))) for i in range(1, 4)
    ]
    return [*first, *later]


def test_mux__several_decode_and_the_lane_is_idle_between_prompts__decode_keeps_the_share_that_it_can_use():
    shares = shares_beside_prompts("mux", some_decode())

    assert 4 in shares
    assert min(shares) > 1


def test_muxwise__the_same_load__decode_has_the_least_share_that_meets_its_target():
    assert 1 in shares_beside_prompts("muxwise", some_decode())


def late_first_tokens(policy, events):
    """Requests that had theirs later than their target."""
    engine = VirtualEngine(events, policy=policy, quota_blocks=600, num_sms=8, latency=MemoryBoundFromHalf()).run()
    first_s = {}
    for time_s, event in zip(engine.event_times_s, engine.token_events, strict=True):
        if event.tokens:
            first_s.setdefault(event.request_id, time_s)
    asked = [(at_s, arrival.request) for at_s, arrival in events]
    return [r.request_id for at_s, r in asked if first_s[r.request_id] - at_s > r.slo.ttft_s]


def test_mux__prompts_queue_for_the_lane__all_are_in_time():
    """Five prompts take 26 ms on all SMs, 51 on half of them."""
    first = (0.0, Arrival(make_request("first", max_tokens=300, tbt_s=0.1)))
    burst = [
        (0.1, Arrival(make_request(f"r{i}", prompt_tokens=100, max_tokens=20, tbt_s=0.1, ttft_s=0.05)))
        for i in range(5)
    ]

    assert late_first_tokens("mux", [first, *burst]) == []
    assert late_first_tokens("static_split", [first, *burst]) != []


@pytest.mark.parametrize(("knee", "known", "share"), [
    (3, {8}, 3),  # the model's word is tried
    (3, {8, 3}, 2),  # then what is next below it
    (3, {8, 3, 2}, 3),  # which is too slow
    (5, {8}, 4),  # nothing up to half should do: the largest of these is tried, the model may be wrong
    (5, {8, 4}, 8),
    (5, set(), 8),  # all SMs come first
])  # fmt: skip
def test_ample_share__steps_are_tried_next_to_what_is_known__and_never_far_below_it(knee, known, share):
    found = ample_decode_share(
        make_device(8), lambda sms: max(1.0, knee / sms), tolerance=0.05, known=known, bearable_s=10.0
    )

    assert found == share


def test_ample_share__trial_might_break_the_target__is_not_made():
    found = ample_decode_share(make_device(8), lambda sms: max(1.0, 5 / sms), tolerance=0.05, known={8}, bearable_s=1.1)

    assert found == 8


def load_of(*, every_s, taken_s, empty):
    """Batches of 10 ms of the whole device, each on a share on which it takes `taken_s`."""
    load = PrefillLoad()
    for i in range(100):
        load.note_start(whole_device_s=0.01, taken_s=taken_s, now_s=every_s * i)
        if empty:
            load.note_empty(every_s * i + taken_s)
    return load.share


def test_prefill_load__lane_runs_empty_between_batches__is_the_work_that_came():
    assert load_of(every_s=0.05, taken_s=0.02, empty=True) == pytest.approx(0.2)


def test_prefill_load__lane_never_runs_empty__is_all_that_it_bears_on_its_share():
    """Also where launches and waits take time besides: more would have been done, had more been seen to come."""
    assert load_of(every_s=0.025, taken_s=0.02, empty=False) == pytest.approx(0.5)


def test_prefill_load__nothing_known_yet__is_none():
    assert PrefillLoad().share == 0.0
