"""Requests that give way: they have what others leave, and others do not notice."""

from dataclasses import replace

import pytest
from engine_rig import PLAIN, VirtualEngine, make_request
from slo_rig import Client, serve, share_in_time

from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.events import Arrival

LONG = Slo(ttft_s=3600.0, tbt_s=0.05)
PEOPLE = Client(who="people", rate_per_s=6.0, until_s=8.0)


class Background(Client):
    def requests(self):
        asked = Client.requests(self)
        for one in asked:
            one.request = replace(one.request, gives_way=True)
        return asked


BATCH = Background(who="batch", rate_per_s=12.0, prompt_tokens=3000, output_tokens=300, slo=LONG, until_s=8.0)


def background(request_id: str, **changes):
    return replace(make_request(request_id, ttft_s=3600.0, **changes), gives_way=True)


def first_token_s(engine: VirtualEngine, request_id: str) -> float:
    told = zip(engine.token_events, engine.event_times_s, strict=True)
    return next(at_s for event, at_s in told if event.request_id == request_id and event.tokens)


@pytest.mark.parametrize("policy", ["mux", "chunked_prefill"])
def test_background__beside_people__all_of_theirs_stay_in_time_and_all_of_it_is_done(policy) -> None:
    alone = serve([PEOPLE], policy=policy)["people"]
    beside = serve([PEOPLE, BATCH], policy=policy)

    assert share_in_time(alone) == share_in_time(beside["people"]) == 1.0
    assert all(one.finish is not None for one in beside["batch"])


def test_background__without_giving_way__would_have_made_people_late() -> None:
    """What the test above would not show if the load were too light."""
    pushy = Client(who="batch", rate_per_s=12.0, prompt_tokens=3000, output_tokens=300, slo=LONG, until_s=8.0)

    assert share_in_time(serve([PEOPLE, pushy], policy="chunked_prefill")["people"]) < 0.5


@pytest.mark.parametrize("policy", ["mux", "muxwise", "chunked_prefill", "prefill_first", "duetserve"])
def test_background__waits_with_others__begins_when_none_of_them_waits(policy) -> None:
    batch = [Arrival(background(f"batch-{i}", prompt_tokens=40, max_tokens=2)) for i in range(6)]
    people = [Arrival(make_request(f"person-{i}", prompt_tokens=40, max_tokens=2)) for i in range(6)]
    engine = VirtualEngine(
        [(0.0, event) for event in (*batch, *people)], policy=policy, settings=replace(PLAIN, max_batch_tokens=40)
    ).run()

    last_person = max(first_token_s(engine, f"person-{i}") for i in range(6))
    assert all(first_token_s(engine, f"batch-{i}") >= last_person for i in range(6))


@pytest.mark.parametrize("policy", ["mux", "chunked_prefill", "prefill_first"])
def test_background__holds_the_memory_that_a_prompt_needs__is_preempted_and_ends_with_the_same_tokens(policy) -> None:
    batch = [(0.0, Arrival(background(f"batch-{i}", prompt_tokens=100, max_tokens=200))) for i in range(2)]
    person = Arrival(make_request("person", prompt_tokens=150, max_tokens=3))
    alone = [VirtualEngine([event], policy=policy).run().tokens_of(event[1].request.request_id) for event in batch]
    free = VirtualEngine([(0.5, person)], policy=policy).run()
    engine = VirtualEngine([*batch, (0.5, person)], policy=policy).run()

    assert engine.scheduler.load_report().models[0].preemptions_total > 0
    assert first_token_s(engine, "person") - 0.5 < 3 * (first_token_s(free, "person") - 0.5) + 0.1
    assert [engine.tokens_of(f"batch-{i}") for i in range(2)] == alone


def test_background__late_or_not__counts_in_no_share_of_requests_in_time() -> None:
    engine = VirtualEngine([(0.0, Arrival(background("batch", max_tokens=30, tbt_s=1e-9)))]).run()

    load = engine.scheduler.load_report().models[0]
    assert load.output_tokens_total == 30
    assert (load.requests_ended_total, load.requests_in_time_total) == (0, 0)


@pytest.mark.parametrize("steps", [1, 8])
def test_background__its_gaps__count_in_no_share_of_gaps_in_time(steps) -> None:
    settings = replace(PLAIN, max_look_ahead_steps=steps)
    engine = VirtualEngine([(0.0, Arrival(background("batch", max_tokens=30, tbt_s=1e-9)))], settings=settings).run()

    load = engine.scheduler.load_report().models[0]
    assert load.output_tokens_total == 30
    assert load.tbt_attainment is None


def test_load_report__some_requests_give_way__says_how_many_of_all_that_wait_and_run() -> None:
    batch = [Arrival(background(f"batch-{i}", max_tokens=400)) for i in range(3)]
    people = [Arrival(make_request(f"person-{i}", max_tokens=20)) for i in range(2)]
    engine = VirtualEngine([(0.0, event) for event in (*batch, *people)])
    told = set()
    while not engine.is_over:
        engine.loop.turn()
        told |= {(m.running + m.waiting, m.giving_way) for m in engine.scheduler.load_report().models}

    assert {(5, 3), (3, 3)} <= told
    assert all(giving_way == min(3, all_) for all_, giving_way in told)
