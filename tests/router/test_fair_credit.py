"""Tenants that take less than their share beside one that always waits."""

import pytest
from fleet_values import ask, fleet, model_load, unit

from pdmux_actor.messages import Slo
from router.admission.admission import Admit
from router.admission.fair_queue import FairQueue
from router.admission.service_counters import ServiceCounters
from router.gateway_scheduler import GatewayScheduler
from router.request_terms import AdmissionRequest

FULL = model_load(quota_blocks=20, tokens_per_row=16)  # 320 tokens: two requests of 100


def small(request_id: str, tenant: str, **changes) -> AdmissionRequest:
    return ask(request_id, tenant=tenant, **{"prompt_tokens": 90, "max_tokens": 10, **changes})


def serve(queue: FairQueue) -> str:
    head = queue.head("m", 0.0)
    assert head is not None
    queue.remove(head.request_id)
    queue.charge("m", head.tenant, prompt_tokens=100)
    return head.tenant


def queue_of_greedy(served: int) -> FairQueue:
    queue = FairQueue()
    for i in range(served + 100):
        queue.push(ask(f"greedy-{i}", tenant="greedy"), 0.0)
    for _ in range(served):
        serve(queue)
    return queue


@pytest.mark.parametrize(("credit", "first"), [(0.0, 1), (300.0, 4), (1000.0, 10)])
def test_push__burst_of_a_tenant_below_its_share__goes_first_as_far_as_its_credit(credit: float, first: int) -> None:
    queue = queue_of_greedy(served=50)
    for i in range(10):
        queue.push(ask(f"quiet-{i}", tenant="quiet"), 0.0, credit=credit)

    order = [serve(queue) for _ in range(20)]

    ahead = order.index("greedy") if "greedy" in order else len(order)
    assert abs(ahead - first) <= 1
    if first < 10:  # then they take turns
        assert sorted(order[first + 1 : first + 7]) == ["greedy"] * 3 + ["quiet"] * 3


def test_push__credit_was_used__is_earned_again_by_what_others_are_served() -> None:
    queue = queue_of_greedy(served=50)
    for i in range(10):
        queue.push(ask(f"quiet-{i}", tenant="quiet"), 0.0, credit=300.0)
    while queue.tenant_size("m", "quiet"):
        serve(queue)
    used_up = queue.served("m", "quiet")

    queue.push(ask("at-once", tenant="quiet"), 0.0, credit=300.0)
    assert queue.served("m", "quiet") == used_up
    queue.remove("at-once")
    for _ in range(20):
        assert serve(queue) == "greedy"
    queue.push(ask("later", tenant="quiet"), 0.0, credit=300.0)

    assert queue.served("m", "quiet") == queue.served("m", "greedy") - 300.0


def test_activate__many_come_one_after_the_other__none_gets_below_the_first() -> None:
    counters = ServiceCounters()
    counters.activate("greedy")
    counters.charge("greedy", 10_000.0)
    for i in range(20):
        counters.activate(f"quiet-{i}", credit=300.0)

    assert {counters.of(f"quiet-{i}") for i in range(20)} == {9_700.0}


def test_activate__nobody_waited_meanwhile__no_credit_was_earned() -> None:
    counters = ServiceCounters()
    counters.activate("busy")
    counters.charge("busy", 10_000.0)
    counters.deactivate("busy")

    counters.activate("quiet", credit=300.0)

    assert counters.of("quiet") == counters.of("busy")


def test_forget_idle__a_tenant_that_has_used_its_credit__is_remembered() -> None:
    counters = ServiceCounters()
    counters.activate("greedy")
    counters.charge("greedy", 10_000.0)
    for key, charge in (("used", 250.0), ("unused", 0.0)):
        counters.activate(key, credit=300.0)
        counters.charge(key, charge)
        counters.deactivate(key)

    counters.forget_idle()

    assert counters.of("used") == 9_950.0
    assert counters.of("unused") == 0.0


def test_forget_idle__every_request_has_a_name_of_its_own__those_furthest_ahead_are_remembered() -> None:
    """Where nothing waits no floor rises, above which the counters of all of them are."""
    queue = FairQueue()
    for i in range(10_000):
        queue.enter("m", f"user-{i}")
        queue.charge("m", f"user-{i}", prompt_tokens=1 + i)

    queue.keep_models(frozenset({"m"}))

    assert sum(queue.served("m", f"user-{i}") > 0 for i in range(10_000)) < 5_000
    assert queue.served("m", "user-9999") >= 10_000


def test_pump__greedy_tenant_is_served_all_the_time__a_neighbours_burst_does_not_take_turns_with_it() -> None:
    scheduler = GatewayScheduler(gateway_id="g")
    scheduler.update_view(fleet(unit("u", FULL, total_blocks=20)), 0.0)
    asks = [small(f"greedy-{i}", "greedy") for i in range(80)]
    running = [asked.request_id for asked in asks if isinstance(scheduler.offer(asked, 0.0), Admit)]
    order: list[str] = []
    for step in range(40):  # five requests per second
        now_s = 0.2 * (step + 1)
        if step == 30:
            for i in range(3):
                scheduler.offer(small(f"quiet-{i}", "quiet"), now_s)
        done = running.pop(0)
        scheduler.produced(done, 10, now_s)
        scheduler.end(done, now_s, finished=True)
        admitted = [asked.request_id for asked, outcome in scheduler.pump(now_s) if isinstance(outcome, Admit)]
        running += admitted
        order += admitted

    places = [place for place, name in enumerate(order) if name.startswith("quiet")]
    assert places == [30, 31, 32]
    assert len(order) == 40


def test_offer__two_tenants__prefill_longer_than_the_share_ahead_waits_here_not_behind_one_of_its_kind() -> None:
    scheduler = GatewayScheduler(gateway_id="g")
    scheduler.update_view(fleet(unit("u", model_load())), 0.0)
    slo = Slo(ttft_s=1.0, tbt_s=0.1)
    scheduler.offer(small("neighbour", "neighbour"), 0.0)
    scheduler.produced("neighbour", 1, 0.0)
    assert isinstance(scheduler.offer(ask("first", prompt_tokens=2000, slo=slo), 0.0), Admit)  # 0.2 s

    scheduler.offer(ask("second", prompt_tokens=2000, slo=slo), 0.0)

    assert list(scheduler.pump(0.1)) == []
    assert [asked.request_id for asked, _ in scheduler.pump(0.17)] == ["second"]


def test_offer__one_tenant_alone__a_quarter_of_the_target_may_be_ahead_on_the_unit() -> None:
    scheduler = GatewayScheduler(gateway_id="g")
    scheduler.update_view(fleet(unit("u", model_load())), 0.0)
    slo = Slo(ttft_s=1.0, tbt_s=0.1)

    sent = [scheduler.offer(ask(f"r{i}", prompt_tokens=1000, slo=slo), 0.0) for i in range(4)]  # 0.1 s each

    assert [isinstance(decision, Admit) for decision in sent] == [True, True, True, False]
