"""What distinguishes the policies, seen in the decision log of runs in virtual time."""

import itertools
import math
from dataclasses import replace

import pytest
from engine_rig import PLAIN, LinearLatency, VirtualEngine, make_request

from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.learned_scales import LearnedScales

TIGHT_S = 0.006  # a decode step alone takes 4.1 ms, beside a prefill at worst 1.3 times that


def launches(engine):
    return [d.launch for d in engine.scheduler.log.decisions()]


def prefill_beside_decode(policy, *, num_sms=2, settings=None, tbt_s=TIGHT_S):
    """A sequence decodes when a long prompt arrives."""
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=80, tbt_s=tbt_s))),
        (0.05, Arrival(make_request("long", prompt_tokens=200, max_tokens=2, tbt_s=tbt_s))),
    ]
    return VirtualEngine(events, policy=policy, quota_blocks=500, num_sms=num_sms, settings=settings).run()


def gaps_s(policy, **kwargs):
    """Gaps between tokens of the decoding sequence, by the times at which they were handed over."""
    engine = prefill_beside_decode(policy, **kwargs)
    times = [t for t, e in zip(engine.event_times_s, engine.token_events, strict=True)
             if e.request_id == "decoding" and e.tokens]  # fmt: skip
    return [b - a for a, b in itertools.pairwise(times)]


@pytest.mark.parametrize("policy", ["mux", "muxwise"])
def test_muxwise__tight_target__is_met_beside_a_long_prefill(policy):
    assert max(gaps_s(policy)) <= TIGHT_S + 1e-9


def test_prefill_first__same_load__breaks_the_target():
    assert max(gaps_s("prefill_first")) > 5 * TIGHT_S


def test_muxwise__more_sms_than_decode_needs__prefill_has_the_rest():
    log = launches(prefill_beside_decode("muxwise", num_sms=8))

    assert "partition prefill 7 decode 1" in log


class CrowdedLatency(LinearLatency):
    """Decode takes a millisecond a sequence, and scales with its SMs."""

    def decode_s(self, spec, context_tokens, sms):
        return 0.001 * len(context_tokens) * 8 / sms


@pytest.mark.parametrize("policy", ["mux", "muxwise"])
def test_muxwise__batch_grows_while_the_prefill_lane_never_idles__decode_gets_more_sms(policy):
    events = [
        (0.02 * i, Arrival(make_request(f"r{i}", prompt_tokens=8 + 7 * (i % 3), max_tokens=200, tbt_s=0.04)))
        for i in range(20)
    ]
    latency = CrowdedLatency(prefill_fixed_s=0.1)
    engine = VirtualEngine(events, policy=policy, quota_blocks=600, num_sms=8, latency=latency).run()
    decisions = engine.scheduler.log.decisions()

    last_prefill = max(i for i, d in enumerate(decisions) if d.kind == "prefill")
    beside = [(d.num_decoding, d.decode_sms) for d in decisions[:last_prefill] if d.kind == "decode" and d.prefill_sms]
    # At worst 1.3 times as long as alone, which is n * 8 / sms milliseconds: to be within 40.
    needed = [min(7, math.ceil(1.3 * 8 * batch / 40)) for batch, _ in beside]
    assert max(needed) >= 4
    assert [pair for pair, least in zip(beside, needed, strict=True) if pair[1] < least] == []


def test_muxwise__without_layer_slicing__whole_prefills():
    settings = replace(PLAIN, layer_slicing=False)
    slices = [line for line in launches(prefill_beside_decode("muxwise", settings=settings)) if "batch 2" in line]

    assert slices == ["prefill a batch 2 layers [0,4) tokens 0+200"]


def test_muxwise__without_query_sync__decode_waits_for_the_last_slice():
    without = prefill_beside_decode("muxwise", settings=replace(PLAIN, query_sync=False))
    with_sync = prefill_beside_decode("muxwise", settings=replace(PLAIN, query_sync=True))

    assert _decodes_before_merge(without) == 0
    assert _decodes_before_merge(with_sync) > 0


def _decodes_before_merge(engine):
    """Decode launches of the first sequence alone after the last prefill slice was launched."""
    decisions = engine.scheduler.log.decisions()
    last = max(i for i, d in enumerate(decisions) if d.launch.startswith("prefill a batch 2"))
    alone = 0
    for decision in decisions[last + 1 :]:
        if decision.launch.startswith("decode") and decision.request_ids == ("decoding",):
            alone += 1
        elif decision.launch.startswith("decode"):
            break
    return alone


def overtaking(policy="muxwise", *, short_ttft_s=0.05, long_ttft_s=2.0, settings=None):
    """A short prompt with little time arrives behind a long one."""
    long = make_request("long", prompt_tokens=400, max_tokens=2, ttft_s=long_ttft_s)
    short = make_request("short", prompt_tokens=10, max_tokens=2, ttft_s=short_ttft_s)
    events = [(0.0, Arrival(long)), (0.002, Arrival(short))]
    settings = settings or replace(PLAIN, solo_slice_s=0.01)
    return VirtualEngine(events, policy=policy, quota_blocks=600, settings=settings).run()


def first_tokens(engine):
    order = [e.request_id for e in engine.token_events if e.tokens]
    return list(dict.fromkeys(order))


def test_preemption__short_prompt_would_miss__overtakes_and_the_long_one_finishes():
    engine = overtaking()

    assert first_tokens(engine) == ["short", "long"]
    assert len(engine.tokens_of("long")) == 2


def test_preemption__long_prompt_would_miss_its_own__is_not_preempted():
    assert first_tokens(overtaking(long_ttft_s=0.083)) == ["long", "short"]


def test_preemption__long_prompt_is_late_already__does_not_hold_the_short_one_up():
    assert first_tokens(overtaking("mux", long_ttft_s=0.001))[0] == "short"


def test_preemption__short_prompt_has_time__waits_its_turn():
    assert first_tokens(overtaking(short_ttft_s=1.0)) == ["long", "short"]


def test_preemption__switched_off__never_happens():
    settings = replace(PLAIN, solo_slice_s=0.01, preempt_prefill=False)

    assert first_tokens(overtaking(settings=settings)) == ["long", "short"]


def behind_a_waiting_long_one(policy="muxwise", **settings):
    """A long prompt runs (81 ms on 2 SMs), another one waits (61 ms), and behind that a short one (3 ms)."""
    events = [
        (0.0, Arrival(make_request("long", prompt_tokens=400, max_tokens=1, ttft_s=2.0))),
        (0.002, Arrival(make_request("waiting", prompt_tokens=300, max_tokens=1, ttft_s=2.0, first=2))),
        (0.003, Arrival(make_request("short", prompt_tokens=10, max_tokens=1, ttft_s=0.05, first=3))),
    ]
    settings = replace(PLAIN, solo_slice_s=0.01, max_batch_tokens=400, **settings)
    return VirtualEngine(events, policy=policy, quota_blocks=1200, settings=settings).run()


def test_preemption__short_prompt_behind_a_waiting_one__waits_for_both_unless_any_prompt_preempts():
    """A layer of the long one takes 81 / 4 ms. Behind both, the short one shares a batch with the second: 1 + 62 ms."""
    first = behind_a_waiting_long_one()
    any_prompt = behind_a_waiting_long_one(any_prompt_preempts=True)

    assert first_tokens(first) == ["long", "waiting", "short"]
    assert first.event_times_s == pytest.approx([0.081, 0.081 + 0.063, 0.081 + 0.063])
    assert first_tokens(any_prompt) == ["short", "long", "waiting"]
    assert any_prompt.event_times_s == pytest.approx([0.02025 + 0.003, 0.081 + 0.003, 0.081 + 0.003 + 0.061])


def test_preemption__late_batch_under_short_prompts_without_end__makes_way_once():
    """Each short one takes 3 ms, the next one comes after 3 ms: all of the time, were the long one to wait for them."""
    events = [
        (0.0, Arrival(make_request("long", prompt_tokens=400, max_tokens=1, ttft_s=0.001))),
        *(
            (
                0.002 + 0.003 * i,
                Arrival(make_request(f"s{i}", prompt_tokens=10, max_tokens=1, ttft_s=0.03, first=i + 3)),
            )
            for i in range(60)
        ),
    ]
    settings = replace(PLAIN, solo_slice_s=0.01, any_prompt_preempts=True)
    order = first_tokens(VirtualEngine(events, policy="muxwise", quota_blocks=1200, settings=settings).run())

    assert order[0].startswith("s")
    assert order.index("long") < 20


def test_preemption__of_the_preempting_batch__does_not_happen():
    events = [
        (0.0, Arrival(make_request("long", prompt_tokens=400, max_tokens=1, ttft_s=3.0))),
        (0.002, Arrival(make_request("middle", prompt_tokens=150, max_tokens=1, ttft_s=0.06))),
        (0.014, Arrival(make_request("short", prompt_tokens=5, max_tokens=1, ttft_s=0.02))),
    ]
    settings = replace(PLAIN, solo_slice_s=0.005)
    engine = VirtualEngine(events, policy="muxwise", quota_blocks=600, settings=settings).run()

    assert first_tokens(engine)[0] == "middle"


def test_duetserve__target_is_loose__aggregates():
    log = launches(prefill_beside_decode("duetserve", tbt_s=1.0))

    assert any(line.startswith("mixed a tokens 0+200 decodes 1") for line in log)
    assert not any(line.startswith("partition prefill 1 decode 1") for line in log)


def test_duetserve__target_is_tight__multiplexes_with_k_steps():
    log = launches(prefill_beside_decode("duetserve", tbt_s=0.013))

    assert "partition prefill 1 decode 1" in log
    assert "decode a x3" in log  # k in launches whose tokens, handed over together, come within the target


def test_duetserve__target_admits_one_step_only__tokens_are_handed_over_one_by_one():
    late = [gap for gap in gaps_s("duetserve", tbt_s=TIGHT_S) if gap > TIGHT_S]

    assert len(late) <= 1  # the end of the iteration: both lanes wait for one another


def test_mux__nothing_waits__looks_ahead_within_the_target():
    events = [(0.0, Arrival(make_request("r", max_tokens=60, tbt_s=0.02)))]
    engine = VirtualEngine(events, policy="mux").run()

    assert "decode a x2" in launches(engine)  # 2 x 4.1 ms fit half of 20 ms, 3 do not
    assert len(engine.tokens_of("r")) == 60


class SharedOutLatency(LinearLatency):
    """Decode on fewer SMs takes longer."""

    def decode_s(self, spec, context_tokens, sms):
        return 0.008 / sms + 0.0001 * len(context_tokens)


def test_mux__sequence_joins_while_a_slow_step_runs__looks_no_further_ahead_than_its_target():
    events = [(0.0, Arrival(make_request("r0", max_tokens=100, tbt_s=0.012)))]
    for i in range(1, 6):
        request = make_request(f"r{i}", prompt_tokens=20, max_tokens=20, first=i + 1, tbt_s=0.012)
        events.append((0.0307 * i, Arrival(request)))
    engine = VirtualEngine(events, quota_blocks=600, num_sms=4, latency=SharedOutLatency()).run()

    assert any(line.startswith("decode a x") for line in launches(engine))
    times = list(zip(engine.event_times_s, engine.token_events, strict=True))
    for i in range(6):
        of_request = [t for t, e in times if e.request_id == f"r{i}" and e.tokens]
        assert max(b - a for a, b in itertools.pairwise(of_request)) <= 0.012


def test_adbs__two_models__prefills_in_turn_and_decodes_beside():
    requests = [make_request(f"{m}{i}", m, 100, 20, first=i) for i in range(4) for m in "ab"]
    settings = replace(PLAIN, max_batch_tokens=100)
    engine = VirtualEngine(
        [(0.0, Arrival(r)) for r in requests], policy="adbs", models="ab", quota_blocks=280, settings=settings
    ).run()

    prefills = [line.split()[1] for line in launches(engine) if line.startswith("prefill")]
    assert prefills[:4] == ["a", "b", "a", "b"]
    assert "partition prefill 1 decode 1" in launches(engine)


def test_temporal__two_models__oldest_request_has_the_device():
    events = [
        (0.0, Arrival(make_request("a0", "a", 10, 20))),
        (0.01, Arrival(make_request("b0", "b", 10, 20))),
    ]
    engine = VirtualEngine(events, policy="temporal", models="ab").run()

    ends = [e.request_id for e in engine.token_events if e.finish]
    first_b = next(i for i, e in enumerate(engine.token_events) if e.request_id == "b0")
    assert ends[0] == "a0"
    assert all(e.request_id == "b0" for e in engine.token_events[first_b:])


def test_static_split__idle_prefill_lane__decode_keeps_its_share():
    engine = VirtualEngine([(0.0, Arrival(make_request("r", max_tokens=5)))], policy="static_split", num_sms=8).run()

    assert engine.scheduler.load_report().decode_sms == 4


JOINING_S = 0.0075


def joining(policy):
    """Prompts whose prefills end at all phases of decode steps, with a target of 1.4 to 1.8 steps; gaps by request."""
    arrivals = [(0.0, Arrival(make_request("decoding", max_tokens=300, tbt_s=JOINING_S)))]
    for i in range(25):
        request = make_request(f"new{i}", prompt_tokens=2 + i, max_tokens=3, tbt_s=JOINING_S, first=i + 2)
        arrivals.append((0.1 + 0.0347 * i, Arrival(request)))
    engine = VirtualEngine(arrivals, policy=policy, quota_blocks=500, settings=PLAIN).run()
    times = {}
    for t, event in zip(engine.event_times_s, engine.token_events, strict=True):
        times.setdefault(event.request_id, []).extend([t] * len(event.tokens))
    return {request_id: [b - a for a, b in itertools.pairwise(ts)] for request_id, ts in times.items()}


def test_mux__prefills_that_end_in_the_midst_of_a_decode_step__join_within_the_target():
    gaps = joining("mux")

    assert sum(gap > JOINING_S for found in gaps.values() for gap in found) == 0


def test_mux__decode_takes_all_of_its_target__prompts_are_not_held_for_the_end_of_its_step():
    """A step of 4.7 ms beside a prefill, within 5.5: at its end a prompt of 2 ms could not go first either."""
    arrivals = [(0.0, Arrival(make_request("decoding", max_tokens=200, tbt_s=0.0055)))]
    for i in range(20):
        request = make_request(f"new{i}", prompt_tokens=4, max_tokens=2, tbt_s=0.0055, first=i + 2)
        arrivals.append((0.1 + 0.001 * i, Arrival(request)))
    latency = LinearLatency(prefill_fixed_s=0.0001)
    engine = VirtualEngine(arrivals, policy="mux", quota_blocks=500, latency=latency).run()
    prefills = [d for d in engine.scheduler.log.decisions() if d.kind == "prefill" and d.now_s > 0.1]

    assert len(first_tokens(engine)) == 21
    assert sum(d.bubble_s for d in prefills) < 0.1 * sum(d.measured_s for d in prefills)


def test_muxwise__same_prompts__some_wait_up_to_two_steps():
    gaps = joining("muxwise")

    assert sum(found[0] > JOINING_S for request_id, found in gaps.items() if request_id != "decoding") >= 2


def test_scales__sizes_between_two_that_were_seen__are_interpolated():
    scales = LearnedScales()
    scales.observe("m", "prefill", 2, 16, 1.0)
    scales.observe("m", "prefill", 2, 256, 3.0)

    assert scales.scale("m", ("prefill",), 2, 64) == pytest.approx(2.0)
    assert scales.scale("m", ("prefill",), 1, 1024) == pytest.approx(3.0)  # the nearest share and size
    assert scales.scale("m", ("mixed", "prefill"), 2, 16) == pytest.approx(1.0)
    assert scales.scale("other", ("prefill",), 2, 16) == 1.0


def test_mux__prompts_of_one_model_are_fused__gaps_of_the_other_stay_within_its_target():
    target_s = 0.0215  # a cycle of both models takes 8.2 ms; a fused step of 12 prompt tokens 10.9 ms
    events = [(0.0, Arrival(make_request(f"{model}0", model, max_tokens=120, tbt_s=target_s))) for model in "ab"]
    for i in range(30):
        request = make_request(f"a{i + 1}", "a", prompt_tokens=12, max_tokens=2, first=i + 2, tbt_s=target_s)
        events.append((0.05 + 0.0231 * i, Arrival(request)))
    engine = VirtualEngine(events, policy="mux", models=("a", "b"), quota_blocks=250, num_sms=1).run()

    times = [t for t, e in zip(engine.event_times_s, engine.token_events, strict=True)
             if e.request_id == "b0" and e.tokens]  # fmt: skip
    assert any(line.startswith("mixed a") for line in launches(engine))
    assert max(b - a for a, b in itertools.pairwise(times)) <= target_s
