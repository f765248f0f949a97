"""What a model's requests lose to the others of their unit, held against runs of the same requests alone."""

from collections.abc import Sequence

import pytest

from pdmux_actor.messages import NeighbourLoss
from pdmux_actor.scheduling.events import Arrival, AttachModel, Event, RemoveModel
from pdmux_actor.scheduling.policies.registry import POLICIES
from tests.pdmux_actor.engine_rig import INFOS, VirtualEngine, make_request

Arrivals = Sequence[tuple[float, Arrival]]


def arrivals(model: str, *, start_s: float, every_s: float, prompt_tokens: int, count: int = 12) -> Arrivals:
    return [
        (
            start_s + every_s * i,
            Arrival(make_request(f"{model}{i}", model=model, prompt_tokens=prompt_tokens, max_tokens=12)),
        )
        for i in range(count)
    ]


# Of what is lost. Not proved why less is found: between slices of its prompts, which wait for slack, nobody may run.
LEAST_FOUND = {"tropical": 0.6}


def run(
    *groups: Sequence[tuple[float, Event]], policy: str, models: Sequence[str] = ("a", "b"), num_sms: int = 2
) -> VirtualEngine:
    events = sorted((event for group in groups for event in group), key=lambda event: event[0])
    return VirtualEngine(events, policy=policy, models=models, quota_blocks=300, num_sms=num_sms).run()


def taken_s(engine: VirtualEngine, asked: Arrivals) -> float:
    """From the requests' arrivals to their last tokens, in sum."""
    ends_s = {
        event.request_id: at_s
        for event, at_s in zip(engine.token_events, engine.event_times_s, strict=True)
        if event.finish is not None
    }
    return sum(ends_s[arrival.request.request_id] - at_s for at_s, arrival in asked)


def losses(engine: VirtualEngine, model: str) -> dict[str, NeighbourLoss]:
    load = next(m for m in engine.scheduler.load_report().models if m.model == model)
    return {loss.neighbour: loss for loss in load.lost_to}


@pytest.mark.parametrize("num_sms", [2, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_neighbour_slowdown__two_models_share_a_unit__about_what_running_alone_would_have_saved(policy, num_sms):
    a = arrivals("a", start_s=0.0, every_s=0.05, prompt_tokens=40)
    b = arrivals("b", start_s=0.013, every_s=0.045, prompt_tokens=60)

    both = run(a, b, policy=policy, num_sms=num_sms)

    for model, other, asked in (("a", "b", a), ("b", "a", b)):
        alone = run(asked, policy=policy, num_sms=num_sms)
        lost_s = taken_s(both, asked) - taken_s(alone, asked)
        loss = losses(both, model)[other]
        assert LEAST_FOUND.get(policy, 0.7) * lost_s <= loss.ttft_s + loss.tbt_s <= 1.2 * lost_s


def test_neighbour_slowdown__prompt_waits_for_anothers_prefill__for_as_long():
    long = [(0.0, Arrival(make_request("a0", model="a", prompt_tokens=99, max_tokens=1)))]
    waits = [(0.004, Arrival(make_request("b0", model="b", prompt_tokens=9, max_tokens=1)))]

    engine = run(long, waits, policy="prefill_first")

    prefill_s = 0.001 + 0.0002 * 99
    assert losses(engine, "b")["a"].ttft_s == pytest.approx(prefill_s - 0.004)
    assert losses(engine, "a")["b"] == NeighbourLoss(neighbour="b", ttft_s=0.0, tbt_s=0.0)


def test_neighbour_slowdown__neighbour_that_asks_nothing__costs_nothing():
    a = arrivals("a", start_s=0.0, every_s=0.01, prompt_tokens=40)

    engine = run(a, policy="mux", models=("a", "b", "c"))

    assert losses(engine, "a") == {n: NeighbourLoss(neighbour=n, ttft_s=0.0, tbt_s=0.0) for n in ("b", "c")}


def test_neighbour_slowdown__one_model__has_no_neighbours():
    engine = run(arrivals("a", start_s=0.0, every_s=0.01, prompt_tokens=40), policy="mux", models=("a",))

    assert losses(engine, "a") == {}


def test_neighbour_slowdown__neighbour_left_and_came_back__starts_from_nothing():
    a = arrivals("a", start_s=0.0, every_s=0.01, prompt_tokens=40)
    b = arrivals("b", start_s=0.0, every_s=0.01, prompt_tokens=40)
    moves = [(60.0, RemoveModel("b")), (61.0, AttachModel(INFOS["b"], 200))]

    engine = run(a, b, moves, policy="mux")

    assert losses(engine, "a") == {"b": NeighbourLoss(neighbour="b", ttft_s=0.0, tbt_s=0.0)}
