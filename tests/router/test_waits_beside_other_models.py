"""A request that waits makes requests of its own model wait behind it, and of no other that has room elsewhere."""

import asyncio

import pytest
from fake_unit import eventually
from fleet_values import ask, fleet, is_idle, model_load, unit
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.messages import Slo
from router.admission.admission import Admit, Queue
from router.gateway_scheduler import GatewayScheduler
from router.request_terms import AdmissionRequest, Priority
from router.serving.generation_runner import WaitingRequests

FULL = model_load("full", quota_blocks=20)  # 320 tokens: two requests of 100
FREE = model_load("free", quota_blocks=20)


def small(request_id: str, model: str, **changes):
    return ask(request_id, model, **{"prompt_tokens": 90, "max_tokens": 10, **changes})


def scheduler_in_which_one_waits(*units) -> GatewayScheduler:
    """A request of `full` waits, for room in its model's quota."""
    made = GatewayScheduler(gateway_id="g")
    made.update_view(fleet(*units, models=("full", "free")), 0.0)
    for i in range(2):
        assert isinstance(made.offer(small(f"full-{i}", "full"), 0.0), Admit)
    assert made.offer(small("waits", "full"), 0.0) == Queue()
    assert not made.pump(0.0)
    return made


def goes_at_once(made: GatewayScheduler, request, now_s: float) -> bool:
    decision = made.offer(request, now_s)
    admitted = {r.request_id for r, outcome in made.pump(now_s) if isinstance(outcome, Admit)}
    return isinstance(decision, Admit) or request.request_id in admitted


APART = (unit("u", FULL, total_blocks=20), unit("v", FREE, total_blocks=20))
TOGETHER = (unit("u", FULL, FREE, total_blocks=20),)


@pytest.mark.parametrize("units", [APART, TOGETHER], ids=["units of its own", "the same unit"])
def test_offer__room_for_its_model__is_admitted_though_another_models_request_waits(units) -> None:
    made = scheduler_in_which_one_waits(*units)

    assert goes_at_once(made, small("first", "free"), 0.1)
    assert goes_at_once(made, small("second", "free"), 0.1)
    assert not goes_at_once(made, small("third", "free"), 0.1)


def test_offer__other_models_units_are_full__is_decided_without_a_pump() -> None:
    made = scheduler_in_which_one_waits(*APART)

    assert isinstance(made.offer(small("first", "free"), 0.1), Admit)


@pytest.mark.parametrize("units", [APART, TOGETHER], ids=["units of its own", "the same unit"])
def test_offer__one_without_room_has_left__its_model_has_nothing_that_waits(units) -> None:
    """What could not go stands in nobody's way once it is gone."""
    made = scheduler_in_which_one_waits(*units)
    assert goes_at_once(made, small("runs", "free"), 0.1)
    large = ask("large", "free", prompt_tokens=290, max_tokens=10)
    assert not goes_at_once(made, large, 0.1)
    made.withdraw("large")

    assert goes_at_once(made, small("next", "free"), 0.2)


def test_withdraw__first_of_its_model_had_no_room__those_behind_it_are_tried() -> None:
    made = scheduler_in_which_one_waits(*APART)
    assert goes_at_once(made, small("runs", "free"), 0.1)
    assert not goes_at_once(made, ask("large", "free", prompt_tokens=290, max_tokens=10), 0.1)
    assert not goes_at_once(made, small("behind", "free"), 0.2)
    made.withdraw("large")

    assert [r.request_id for r, _ in made.pump(0.3)] == ["behind"]


@pytest.mark.parametrize("units", [APART, TOGETHER], ids=["units of its own", "the same unit"])
def test_offer__client_in_a_hurry_and_room__is_not_shed_for_a_queue_that_was(units) -> None:
    """How fast the model's queue moved when it had one says nothing of a request that can go at once."""
    made = scheduler_in_which_one_waits(*units)
    running = ["free-0", "free-1"]
    for name in running:
        assert goes_at_once(made, small(name, "free"), 0.1)
    for second in range(1, 10):  # one per second leaves the queue
        assert not goes_at_once(made, small(f"next-{second}", "free"), float(second))
        made.produced(running[0], 10, second + 0.9)
        made.end(running.pop(0), second + 0.9, finished=True)
        running += [r.request_id for r, _ in made.pump(second + 0.9)]
    for name in running:
        made.produced(name, 10, 10.0)
        made.end(name, 10.0, finished=True)
    assert not made.pump(10.0)

    assert goes_at_once(made, small("hurried", "free", deadline_s=10.2, slo=Slo(ttft_s=0.2, tbt_s=0.1)), 10.0)


def test_first_token__hundred_models_wait_on_other_units__none_of_them_is_tried(monkeypatch) -> None:
    models = tuple(f"m{i}" for i in range(100))
    loads = [model_load(m, quota_blocks=10_000) for m in models]
    # A chain: each unit has the next one's model, too, so that in the end all compete.
    units = [unit(f"u{i}", loads[i], loads[(i + 1) % 100], total_blocks=20_000) for i in range(100)]
    made = GatewayScheduler(gateway_id="g")
    made.update_view(fleet(*units, models=models), 0.0)
    long = [ask(f"{m}-{i}", m, prompt_tokens=50_000, slo=Slo(ttft_s=60.0, tbt_s=0.1)) for m in models for i in range(3)]
    first = [request.request_id for request in long if isinstance(made.offer(request, 0.0), Admit)]
    first += [r.request_id for r, outcome in made.pump(0.0) if isinstance(outcome, Admit)]
    assert len(made.admission.waiting()) > 100
    tried: list[str] = []
    choose = made._router.choose
    monkeypatch.setattr(
        made._router, "choose", lambda asked, *a, **k: tried.append(asked.model) or choose(asked, *a, **k)
    )

    made.produced(first[0], 1, 0.5)
    made.pump(0.5)

    assert 1 <= len(set(tried)) <= 2
    assert len(tried) <= 5


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 400), st.sampled_from([5.0, 1e9])), max_size=20
    ),
    st.integers(1, 300),
    st.booleans(),
)
def test_offer__model_with_room_and_an_idle_unit__is_admitted_whatever_others_queues_hold(
    others: list[tuple[str, int, float]], tokens: int, shared: bool
) -> None:
    """`shared`: a unit of another model has it too, beside its own idle one."""
    loads = {name: model_load(name, quota_blocks=20) for name in ("a", "b", "c", "own")}
    busy = [unit(f"u-{name}", loads[name], *([loads["own"]] if shared else []), total_blocks=40) for name in "abc"]
    made = GatewayScheduler(gateway_id="g")
    made.update_view(fleet(*busy, unit("idle", loads["own"], total_blocks=20), models=tuple(loads)), 0.0)
    running = []
    for number, (model, prompt_tokens, patience_s) in enumerate(others):
        request = ask(f"other-{number}", model, prompt_tokens=prompt_tokens, max_tokens=10, deadline_s=patience_s)
        if goes_at_once(made, request, 0.01 * number):
            running.append(request.request_id)

    assert goes_at_once(made, ask("own", "own", prompt_tokens=tokens, max_tokens=10), 0.5)

    waiting = [request.request_id for request, _ in made.admission.waiting()]
    for name in waiting:
        made.withdraw(name)
    for name in [*running, "own"]:
        made.end(name, 0.6, finished=True)
    made.pump(0.6)
    assert is_idle(made)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from("xy"), st.sampled_from(Priority), st.booleans()),
        min_size=4,
        max_size=40,
    )
)
def test_pump__any_history__same_key_and_class_is_served_in_order_and_higher_classes_first(
    asked: list[tuple[str, str, Priority, bool]],
) -> None:
    """Two models on one unit, with room for two requests of each; after each ask one may end."""
    made = GatewayScheduler(gateway_id="g")
    loads = (model_load("a", quota_blocks=20), model_load("b", quota_blocks=20))
    made.update_view(fleet(unit("u", *loads, total_blocks=20), models=("a", "b")), 0.0)
    patient = Slo(ttft_s=1e6, tbt_s=0.1)
    waiting: list[AdmissionRequest] = []
    running: list[str] = []
    for number, (model, tenant, priority, one_ends) in enumerate(asked):
        now_s = 0.01 * number
        request = small(f"r{number}", model, tenant=tenant, priority=priority, slo=patient)
        if isinstance(made.offer(request, now_s), Admit):
            running.append(request.request_id)
        else:
            waiting.append(request)
        if one_ends and running:
            made.end(running.pop(0), now_s, finished=False)
        for served, outcome in made.pump(now_s):
            assert isinstance(outcome, Admit)
            waiting.remove(served)
            running.append(served.request_id)
            of_model = [other for other in waiting if other.model == served.model]
            assert all(other.priority <= served.priority for other in of_model)
            before = [o for o in of_model if (o.tenant, o.priority) == (served.tenant, served.priority)]
            assert all(int(other.request_id[1:]) > int(served.request_id[1:]) for other in before)


def test_view__models_come_to_share_a_unit__what_one_was_served_elsewhere_is_not_held_against_it() -> None:
    busy, rare = (model_load(m, waiting=1, waiting_tokens=9_000) for m in ("busy", "rare"))
    made = GatewayScheduler(gateway_id="g")
    made.update_view(fleet(unit("u", model_load("busy")), unit("v", rare), models=("busy", "rare")), 0.0)
    for i in range(50):
        assert goes_at_once(made, ask(f"before-{i}", "busy"), 0.0)
        made.produced(f"before-{i}", 100, 0.0)
        made.end(f"before-{i}", 0.0, finished=True)
    made.update_view(fleet(unit("u", busy), unit("v", rare), models=("busy", "rare")), 0.1)
    for i in range(4):
        for model in ("busy", "rare"):
            assert not goes_at_once(made, ask(f"{model}-{i}", model, prompt_tokens=2000), 0.1)

    made.update_view(fleet(unit("w", busy, model_load("rare")), models=("busy", "rare")), 0.2)

    order: list[str] = []
    while len(order) < 4:
        next_s = made.next_pump_s()
        assert next_s is not None
        order += [request.model for request, _ in made.pump(next_s)]
    assert sorted(order[:4]) == ["busy", "busy", "rare", "rare"], order


async def test_enter__admitted_at_once_beside_one_that_waits__is_not_said_to_have_waited() -> None:
    made = scheduler_in_which_one_waits(*TOGETHER)
    room = WaitingRequests(made, clock=lambda: 0.1, unavailable=lambda *_: pytest.fail("a unit has the model"))
    waits: list[str] = []
    for name in ("first", "second"):
        assert isinstance(await room.enter(small(name, "free"), waits.append), Admit)
    assert waits == []

    third = asyncio.create_task(room.enter(small("third", "free"), waits.append))
    await eventually(lambda: len(waits) == 1)
    assert "KV blocks of free: 14 of 20" in waits[0]
    made.end("first", 0.1, finished=True)
    room.pump("free")

    assert isinstance(await third, Admit)
    room.close()
