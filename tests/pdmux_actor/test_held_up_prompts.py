"""Past capacity, prompts that were begun and are late have a share of the time, as those that wait have."""

from dataclasses import replace
from itertools import pairwise

from engine_rig import PLAIN, VirtualEngine, make_request

from pdmux_actor.scheduling.events import Arrival

GAP_S = 0.0085  # between short prompts, each of which takes 0.009 s


def shorts(start_s, end_s):
    """Prompts of model a, one of which could be in time at any moment."""
    times_s = [start_s + GAP_S * i for i in range(int((end_s - start_s) / GAP_S))]
    return [(t, Arrival(make_request(f"a{t}", "a", 40, 1, first=1 + i, ttft_s=0.1))) for i, t in enumerate(times_s)]


def first_tokens_s(events, until_s, **options):
    """When each request had its first token; those that had none are left out."""
    engine = VirtualEngine(events, **options)
    while engine.executor.now() < until_s and not engine.is_over:
        engine.loop.turn()
        engine.scheduler.check_integrity()
    told = [(e, t) for e, t in zip(engine.token_events, engine.event_times_s, strict=True) if e.tokens]
    return {event.request_id: at_s for event, at_s in reversed(told)}


def test_late_batch__prompts_that_could_be_in_time_come_all_the_time__is_not_preempted_for_ever():
    long = make_request("long", "a", 480, 2, first=500, ttft_s=0.2)

    told_s = first_tokens_s([*shorts(0.0, 5.0), (0.5, Arrival(long))], 5.0, quota_blocks=600)

    assert told_s["long"] < 4.0


def test_late_batch__preempted_by_one_prompt_after_the_other__leaves_them_most_of_the_time():
    long = make_request("long", "a", 480, 2, first=500, ttft_s=0.2)
    arrivals = shorts(0.0, 5.0)

    told_s = first_tokens_s([*arrivals, (0.5, Arrival(long))], 5.0, quota_blocks=600)

    in_time = [r for t, a in arrivals if (r := a.request.request_id) in told_s and told_s[r] - t <= 0.1]
    assert len(in_time) > 0.75 * len(arrivals)


def test_late_prompt__between_two_chunks_beside_a_busy_model__goes_on_and_so_do_those_behind_it():
    """It began while nothing else could be in time. Others of its model stay behind it."""
    cut = replace(PLAIN, longest_chunk_tokens=64, max_batch_tokens=64)
    long = make_request("long", "b", 390, 2, first=500, ttft_s=0.02)
    later = make_request("later", "b", 10, 2, first=500, ttft_s=0.5)
    pause_s = (2.0, 2.1)
    flood = [*shorts(0.5, pause_s[0]), *shorts(pause_s[1], 6.0)]

    told_s = first_tokens_s(
        [*flood, (1.9, Arrival(long)), (3.0, Arrival(later))], 6.0, settings=cut, models="ab", quota_blocks=300
    )

    assert told_s["long"] < 5.0
    assert told_s["later"] < 5.5


def test_running_sequence__prompts_of_another_model_come_all_the_time_on_one_core__has_its_turns():
    """They are fused into decode steps of their own model there, one after the other."""
    answer = make_request("b", "b", 20, 330, first=500, tbt_s=0.5)
    others = [(0.1 + 0.009 * i, make_request(f"a{i}", "a", 10, 3, first=1 + i, tbt_s=0.5)) for i in range(200)]
    events = [(0.0, Arrival(answer)), *((at_s, Arrival(request)) for at_s, request in others)]
    engine = VirtualEngine(events, models="ab", quota_blocks=300, num_sms=1).run()

    told_s = [t for e, t in zip(engine.token_events, engine.event_times_s, strict=True) if e.request_id == "b"]
    assert max(later - earlier for earlier, later in pairwise(told_s)) < 0.1
