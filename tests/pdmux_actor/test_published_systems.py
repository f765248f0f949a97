"""Policies of other systems, against cases worked out by hand, in virtual time.

LinearLatency: a prompt of p tokens takes (1 + 0.2 p) ms on two SMs and scales with SMs, a decode step of n sequences
4 + 0.1 n ms on any.
"""

import itertools
from dataclasses import replace

import pytest
from engine_rig import PLAIN, LinearLatency, VirtualEngine, make_device, make_request

from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.policies import bullet
from pdmux_actor.scheduling.policies.semi_pd import moved_share


class Overlapping(LinearLatency):
    def overlapped_s(self, spec, chunks, context_tokens, sms, *, nano_batches):
        return self.mixed_s(spec, chunks, context_tokens, sms) / nano_batches


def launches(engine):
    return [d.launch for d in engine.scheduler.log.decisions()]


def test_nanoflow__prompts_beside_a_decode__fill_the_dense_batch_and_overlap():
    """A batch of 64 tokens: one decodes, 63 are prompts'. Each step takes half of what the fused step takes."""
    events = [
        (0.0, Arrival(make_request("decoding", prompt_tokens=4, max_tokens=8))),
        (0.001, Arrival(make_request("long", prompt_tokens=100, max_tokens=2))),
    ]
    settings = replace(PLAIN, max_batch_tokens=64)
    latency = Overlapping()
    engine = VirtualEngine(events, policy="nanoflow", quota_blocks=500, settings=settings, latency=latency).run()
    mixed = [d for d in engine.scheduler.log.decisions() if d.kind == "mixed"]

    assert [d.chunks for d in mixed[:4]] == [((0, 4),), ((0, 63),), ((63, 37),), ()]
    # 4 prompt tokens: 1.8 + 4 (a step of none) = 5.8 ms; 63 and a decode: 13.6 + 4.1 = 17.7; 37 and one: 8.4 + 4.1.
    # Halved. The last has no prompt: 1 + 4.2 ms, halved.
    assert [d.measured_s for d in mixed[:4]] == pytest.approx([0.0029, 0.00885, 0.00625, 0.0026])


def test_nanoflow__executor_without_overlap__runs_the_same_batches():
    events = [(0.0, Arrival(make_request("r", prompt_tokens=20, max_tokens=4)))]

    engine = VirtualEngine(events, policy="nanoflow").run()

    assert launches(engine)[0] == "mixed a tokens 0+20 decodes 0"
    assert len(engine.tokens_of("r")) == 4


@pytest.mark.parametrize(
    ("decode_sms", "ttft", "tpot", "moved"),
    [
        (50, 0.5, 0.9, 50),  # both in time
        (50, 2.0, 1.1, 50),  # both late
        # Prefill needs 50 * 1.2 = 60 of 100 SMs; decode could give all but 50 * 0.5 = 25: it keeps 40.
        (50, 1.2, 0.5, 40),
        # Prefill would need 50 * 3 = 150; decode keeps the 25 that it needs, on the grid of ten: 30.
        (50, 3.0, 0.5, 30),
        # Decode needs 50 * 1.4 = 70; prefill needs 50 * 0.2 = 10 of its 50, so it gets them.
        (50, 0.2, 1.4, 70),
        # Decode needs 100, prefill must keep 50 * 0.9 = 45: 55, on the grid 50.
        (50, 0.9, 2.0, 50),
        (50, 0.0, 2.0, 90),  # nobody prefills: all but the least that a lane has
    ],
)
def test_semi_pd__latencies_over_targets__border_moves_by_inverse_proportion(decode_sms, ttft, tpot, moved):
    device = replace(make_device(100), partition_granularity_sms=10)

    assert moved_share(device, decode_sms, ttft=ttft, tpot=tpot) == moved


def test_semi_pd__first_tokens_late_and_gaps_early__prefill_gets_more_within_windows():
    """Half of 8 SMs take 200 tokens in 41 * 2 / 4 = 20.5 ms; prompts come every 15 ms, so they queue beyond 0.1 s.
    Steps take some 5 ms on any share where 50 are allowed: decode ends with a single SM.
    """
    events = [
        (0.015 * i, Arrival(make_request(f"r{i}", prompt_tokens=200, max_tokens=4, ttft_s=0.1, tbt_s=0.05, first=i)))
        for i in range(1, 200)
    ]
    engine = VirtualEngine(events, policy="semi_pd", quota_blocks=600, num_sms=8).run()
    partitions = [line for line in launches(engine) if line.startswith("partition")]

    assert partitions[0] == "partition prefill 4 decode 4"
    assert "partition prefill 7 decode 1" in partitions


def test_semi_pd__late_first_tokens_of_requests_that_have_ended__count():
    """Each is answered with one token before the next comes: none runs, and none waits, when a window ends."""
    events = [
        (0.05 * i, Arrival(make_request(f"r{i}", prompt_tokens=200, max_tokens=1, ttft_s=0.001, first=i)))
        for i in range(1, 60)
    ]
    engine = VirtualEngine(events, policy="semi_pd", quota_blocks=600, num_sms=8).run()
    partitions = [line for line in launches(engine) if line.startswith("partition")]

    assert "partition prefill 7 decode 1" in partitions


def test_semi_pd__late_prompts_wait_behind_some_that_have_time__prefill_gets_more():
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=300, tbt_s=0.05))),
        *(
            (0.02, Arrival(make_request(f"early{i}", prompt_tokens=200, max_tokens=2, ttft_s=1000.0)))
            for i in range(80)
        ),
        *((0.03, Arrival(make_request(f"late{i}", prompt_tokens=200, max_tokens=2, ttft_s=0.1))) for i in range(10)),
    ]
    settings = replace(PLAIN, max_batch_tokens=200)
    engine = VirtualEngine(events, policy="semi_pd", quota_blocks=600, num_sms=8, settings=settings).run()

    early = [
        d for d in engine.scheduler.log.decisions() if d.kind == "prefill" and d.request_ids[0].startswith("early")
    ]
    assert (early[0].prefill_sms, early[-1].prefill_sms) == (4, 7)


class ShareLatency(LinearLatency):
    """Decode takes 4 ms + 8 ms / SMs."""

    def decode_s(self, spec, context_tokens, sms):
        return 0.004 + 0.008 / sms


def beside(policy, *, quota_blocks=600, prompt_tokens=200):
    events = [
        (0.0, Arrival(make_request("decoding", prompt_tokens=80, max_tokens=20))),
        (0.05, Arrival(make_request("long", prompt_tokens=prompt_tokens, max_tokens=2))),
    ]
    return VirtualEngine(events, policy=policy, quota_blocks=quota_blocks, num_sms=8, latency=ShareLatency()).run()


def test_nexus__memory_is_ample__decode_has_the_least_share_within_a_tenth():
    """On 8 SMs a step takes 5 ms, so at most 5.5: 4 + 8 / s <= 5.5 from s = 5.33 on, 6 SMs."""
    assert "partition prefill 2 decode 6" in launches(beside("nexus"))


def test_nexus__memory_is_short__prefill_has_the_least_share_within_thirty_percent():
    """Prefill scales with SMs: 8 / s <= 1.3 from s = 6.15 on, 7 SMs, one for decode. The decoding sequence holds a row
    of 8 blocks for 8 tokens, 88 of 120 blocks with its 81st token, 73 %; a prompt of 2 tokens still fits.
    """
    assert "partition prefill 7 decode 1" in launches(beside("nexus", quota_blocks=120, prompt_tokens=2))


def test_tropical__target_leaves_room_beside_a_step__layers_fill_it():
    """Two SMs, tau = 30 ms, a step t_d = 4.1 ms. The prompt of 200 tokens takes 41 ms, a layer of four 10.25 ms.

    It arrives during the third step. When that has ended slack is 0.95 * 30 - 4.1 = 24.4 ms: two layers (20.5). That
    leaves 3.9, too little for the third: a step, and the other two.
    """
    events = [
        (0.0, Arrival(make_request("decoding", prompt_tokens=4, max_tokens=30, tbt_s=0.030))),
        (0.011, Arrival(make_request("long", prompt_tokens=200, max_tokens=2, tbt_s=1.0))),
    ]
    engine = VirtualEngine(events, policy="tropical", quota_blocks=500).run()
    after = [line for line in launches(engine) if "batch 1" not in line and not line.startswith("partition")]

    assert after[:6] == [
        *["decode a x1"] * 3,
        "prefill a batch 2 layers [0,2) tokens 0+200",
        "decode a x1",
        "prefill a batch 2 layers [2,4) tokens 0+200",
    ]


def test_tropical__target_leaves_no_room__layers_and_steps_take_turns():
    events = [
        (0.0, Arrival(make_request("decoding", prompt_tokens=4, max_tokens=40, tbt_s=0.001))),
        (0.02, Arrival(make_request("long", prompt_tokens=200, max_tokens=2, tbt_s=0.001))),
    ]
    engine = VirtualEngine(events, policy="tropical", quota_blocks=500).run()
    lines = [line for line in launches(engine) if not line.startswith("partition")]
    slices = [i for i, line in enumerate(lines) if "batch 2" in line]

    assert [b - a for a, b in itertools.pairwise(slices)] == [2, 2, 2]
    assert len(engine.tokens_of("decoding")) == 40


def test_tropical__three_models_decode_in_turn__a_prompt_has_the_layers_that_fit_before_the_next_step():
    """Steps of 4.1 ms in turn leave each model 0.95 * 20 - 3 * 4.1 = 6.7 ms: one layer of 3.25, or two."""
    decoding = [(0.0, Arrival(make_request(m, m, prompt_tokens=2, max_tokens=100))) for m in "abc"]
    long = make_request("long", "a", prompt_tokens=60, max_tokens=2, first=9)
    engine = VirtualEngine([*decoding, (0.1, Arrival(long))], policy="tropical", models="abc", quota_blocks=150).run()

    told_s = {e.request_id: t for e, t in reversed([*zip(engine.token_events, engine.event_times_s, strict=True)])}
    assert told_s["long"] < 0.2


@pytest.mark.parametrize(
    ("decode_sms", "least_for_tbt", "most_for_ttft", "moved"),
    [
        (4, 2, 6, 4),  # both are met: it stays
        (4, 6, 7, 6),  # as far as decode needs
        (4, 1, 2, 2),  # as far as prefill needs
        (4, 5, 3, 5),  # no share meets both: decode meets its own
        (4, 9, 3, 7),  # nor can decode: it has all that it can
    ],
)
def test_bullet__border__moves_as_little_as_meets_both_targets(decode_sms, least_for_tbt, most_for_ttft, moved):
    shares = range(1, 8)

    def meets_tbt(share):
        return share >= least_for_tbt

    def meets_ttft(share):
        return share <= most_for_ttft

    assert bullet.moved_share(shares, decode_sms, meets_tbt, meets_ttft) == moved


def beside_with_targets(*, tbt_s, ttft_s):
    """Launches from the long prompt on. It comes at 50 ms, in a step that ends at 54.25: the first prompt took 4.25 ms
    on 8 SMs and steps take 5. On x SMs it takes 82 / x ms; a step on y beside it, at worst, 1.3 (4 + 8 / y).
    """
    events = [
        (0.0, Arrival(make_request("decoding", prompt_tokens=80, max_tokens=20, tbt_s=tbt_s))),
        (0.05, Arrival(make_request("long", prompt_tokens=200, max_tokens=2, ttft_s=ttft_s, tbt_s=tbt_s))),
    ]
    settings = {"policy": "bullet", "quota_blocks": 600, "num_sms": 8, "latency": ShareLatency()}
    lines = launches(VirtualEngine(events, **settings).run())
    first = next(i for i, line in enumerate(lines) if "batch 2" in line)
    start = max(i for i in range(first) if lines[i].startswith("partition"))
    return lines[start:]


def test_bullet__both_targets_are_met_on_the_first_split__it_stays_and_slices_last_a_step():
    """At worst 7.8 ms on 4 SMs. The prompt takes 20.5 ms on the others, so two of its four layers outlast a step."""
    lines = beside_with_targets(tbt_s=0.0082, ttft_s=1.0)

    assert lines[:3] == ["partition prefill 4 decode 4", "decode a x1", "prefill a batch 2 layers [0,2) tokens 0+200"]


def test_bullet__first_token_is_due_soon__prefill_gets_what_it_needs():
    """11.75 ms are left: 82 / 7. A step on the last SM takes at worst 15.6 of 20 ms."""
    assert beside_with_targets(tbt_s=0.02, ttft_s=0.016)[0] == "partition prefill 7 decode 1"


def test_bullet__no_split_meets_both__decode_pauses_within_the_slack_of_its_mean():
    """Steps of 5 ms have gained 11 * 0.5 ms on a target of 5.5: room for two layers of 10.25 / 4 ms on all SMs. After
    them 0.375 ms are left, and decode has all that it can.
    """
    lines = beside_with_targets(tbt_s=0.0055, ttft_s=0.015)

    assert lines[:4] == [
        "partition prefill 8 decode 0",
        "prefill a batch 2 layers [0,2) tokens 0+200",
        "partition prefill 1 decode 7",
        "decode a x1",
    ]
